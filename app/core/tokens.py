"""Bearer tokens: random, shown once, stored as SHA-256 only."""

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.core.postgres import Database, load_queries

#: 256 bits: guessing is hopeless, so a plain hash is enough to store.
TOKEN_BYTES = 32
TOKEN_PREFIX = "spw_"  # noqa: S105 - a public prefix that lets scanners recognise leaked tokens
LIST_ROWS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token as its list shows it, without the secret."""

    id: UUID
    owner: str
    created_at: datetime
    revoked_at: datetime | None


class TokenStore:
    """Creates, lists, revokes and looks up tokens."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries("tokens.sql")

    async def create(self, *, owner: str) -> tuple[UUID, str]:
        """Return the id and the secret of a new token; the secret cannot be shown again."""
        token_id, token = uuid.uuid4(), TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        await self._db.value(self._sql.create_token, id=token_id, owner=owner, token_sha256=token_hash(token))
        return token_id, token

    async def entries(self) -> list[TokenEntry]:
        """Return all tokens, oldest first."""
        rows = await self._db.many(self._sql.list_tokens, rows_max=LIST_ROWS_MAX)
        return [TokenEntry(*row) for row in rows]

    async def revoke(self, token_id: UUID) -> bool:
        """Revoke a token; False when there was no live one."""
        return bool(await self._db.value(self._sql.revoke_token, id=token_id))

    async def owner(self, token: str) -> str | None:
        """Return the owner of a live token."""
        owner: str | None = await self._db.value(self._sql.token_owner, token_sha256=token_hash(token))
        return owner


def token_hash(token: str) -> bytes:
    """Return the 32 bytes under which a token is stored; comparing them leaks nothing of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
