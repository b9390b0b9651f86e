"""Who is asking: the bearer token's owner and scopes, remembered for seconds.

Invariant: memory is bounded, and tokens nobody knows never push out those that are known. Concurrent questions about
one token are one statement.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from app.api.wire import header_values
from app.core.clock import Monotonic
from app.core.tokens import Identity, Scope, token_hash
from contracts.errors import ErrorCode, ServiceError

#: A token that nobody knows is asked about again this soon: it may just have been created.
UNKNOWN_CACHE_S_MAX = 1.0
TOKEN_BYTES_MAX = 256

LookUp = Callable[[str], Awaitable[Identity | None]]


class _Cache:
    """Answers by token hash, oldest out first."""

    def __init__(self, *, entries_max: int, age_s_max: float, monotonic_s: Monotonic) -> None:
        self._entries: dict[bytes, tuple[float, Identity | None]] = {}
        self._entries_max = entries_max
        self._age_s_max = age_s_max
        self._now_s = monotonic_s

    def get(self, key: bytes) -> tuple[float, Identity | None] | None:
        entry = self._entries.get(key)
        return entry if entry is not None and self._now_s() - entry[0] < self._age_s_max else None

    def put(self, key: bytes, identity: Identity | None) -> None:
        self._entries.pop(key, None)
        while len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (self._now_s(), identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """How long and how many answers are remembered."""

    age_s_max: float
    entries_max: int


class Authenticator:
    """Answers who owns a request's token."""

    def __init__(self, look_up: LookUp, *, limits: CacheLimits, monotonic_s: Monotonic) -> None:
        self._look_up = look_up
        self._known = _Cache(entries_max=limits.entries_max, age_s_max=limits.age_s_max, monotonic_s=monotonic_s)
        self._unknown = _Cache(
            entries_max=limits.entries_max,
            age_s_max=min(limits.age_s_max, UNKNOWN_CACHE_S_MAX),
            monotonic_s=monotonic_s,
        )
        self._asking: dict[bytes, asyncio.Future[Identity | None]] = {}

    async def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the owner of the request's token, which must be one for users.

        Raises:
            ServiceError: `unauthenticated` or `forbidden`.
            DatabaseUnavailableError: the token is not remembered and the database does not answer.
        """
        return (await self.require(headers, Scope.USER)).owner

    async def require(self, headers: Iterable[tuple[bytes, bytes]], scope: Scope) -> Identity:
        """Return who asks, with a token that has the scope.

        Raises:
            ServiceError: `unauthenticated` or `forbidden`.
            DatabaseUnavailableError: the token is not remembered and the database does not answer.
        """
        identity = await self.identity(headers)
        if scope not in identity.scopes:
            raise ServiceError(ErrorCode.FORBIDDEN, f"This needs a token with the scope `{scope.value}`.")
        return identity

    async def identity(self, headers: Iterable[tuple[bytes, bytes]]) -> Identity:
        """Return who asks.

        Raises:
            ServiceError: `unauthenticated`.
            DatabaseUnavailableError: the token is not remembered and the database does not answer.
        """
        token = _bearer_token(header_values(headers, b"authorization"))
        if token is None:
            raise _unauthenticated("Send the header `Authorization: Bearer TOKEN`.")
        key = token_hash(token)
        entry = self._known.get(key) or self._unknown.get(key)
        identity = await self._ask_once(key, token) if entry is None else entry[1]
        if identity is None:
            raise _unauthenticated("The token is not valid.")
        return identity

    async def _ask_once(self, key: bytes, token: str) -> Identity | None:
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.ensure_future(self._ask(key, token))
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        # One asker that goes away must not take the answer from the others.
        return await asyncio.shield(asking)

    async def _ask(self, key: bytes, token: str) -> Identity | None:
        identity = await self._look_up(token)
        (self._unknown if identity is None else self._known).put(key, identity)
        return identity


def _bearer_token(values: list[bytes]) -> str | None:
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(b" ")
    token = token.strip(b" ")
    if scheme.lower() != b"bearer" or not 0 < len(token) <= TOKEN_BYTES_MAX or not token.isascii():
        return None
    return token.decode("ascii")


def _unauthenticated(message: str) -> ServiceError:
    return ServiceError(ErrorCode.UNAUTHENTICATED, message)
