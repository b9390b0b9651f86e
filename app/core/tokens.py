"""Bearer tokens: random, shown once, stored as SHA-256 only."""

import hashlib
import secrets
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from app.core.postgres import Database, load_queries

#: 256 bits: guessing is hopeless, so a plain hash is enough to store.
TOKEN_BYTES = 32
TOKEN_PREFIX = "spw_"  # noqa: S105 - a public prefix that lets scanners recognise leaked tokens
LIST_ROWS_MAX = 10_000


class Scope(StrEnum):
    """What a token may be used for; none includes another."""

    USER = "user"  #: uploads, jobs and messages of its owner
    ADMIN = "admin"  #: other owners' failed jobs
    METRICS = "metrics"  #: numbers about the service


@dataclass(frozen=True, slots=True)
class Identity:
    """Which token, whose it is, and what for."""

    token_id: UUID
    owner: str
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token as its list shows it, without the secret."""

    id: UUID
    owner: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    revoked_at: datetime | None


class TokenStore:
    """Creates, lists, revokes and looks up tokens."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries("tokens.sql")

    async def create(self, *, owner: str, scopes: Iterable[Scope] = (Scope.USER,)) -> tuple[UUID, str]:
        """Return the id and the secret of a new token; the secret cannot be shown again."""
        token_id, token = uuid.uuid4(), TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        await self._db.value(
            self._sql.create_token,
            id=token_id,
            owner=owner,
            token_sha256=token_hash(token),
            scopes=sorted({scope.value for scope in scopes}),
        )
        return token_id, token

    async def entries(self) -> list[TokenEntry]:
        """Return all tokens, oldest first."""
        rows = await self._db.many(self._sql.list_tokens, rows_max=LIST_ROWS_MAX)
        return [TokenEntry(**{**row, "scopes": tuple(Scope(name) for name in row["scopes"])}) for row in rows]

    async def revoke(self, token_id: UUID) -> bool:
        """Revoke a token; False when there was no live one."""
        return bool(await self._db.value(self._sql.revoke_token, id=token_id))

    async def identity(self, token: str) -> Identity | None:
        """Return whose live token this is, and what for."""
        row = await self._db.one(self._sql.token_identity, token_sha256=token_hash(token))
        if row is None:
            return None
        scopes = frozenset(Scope(name) for name in row["scopes"])
        return Identity(token_id=row["id"], owner=row["owner"], scopes=scopes)


def token_hash(token: str) -> bytes:
    """Return the 32 bytes under which a token is stored; comparing them leaks nothing of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
