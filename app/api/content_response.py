"""Sends a content from the store to a client, some bytes at a time.

Invariant: one chunk is the most that is kept of a content; whoever goes away, stalls or fails, the connection to the
store is given back and the turn is free again.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from fastapi import Response
from starlette.types import Receive, Scope, Send

from app.api.wire import wire_of
from app.core.objects import ObjectMissingError, StoreUnavailableError
from contracts.errors import ErrorCode, ServiceError

#: Contents that one process sends at once, and to one owner.
CONTENTS_MAX = 64
OWNER_CONTENTS_MAX = 16
#: A client must take this many bytes within this time, or its connection ends.
PIECE_BYTES = 64 * 1024
PIECE_S_MAX = 30.0
RETRY_AFTER_S = 2.0

#: Counts a failed call: kind of server, call.
CountFailure = Callable[[str, str], None]


class Turns:
    """How many contents are on their way, in all and to each owner."""

    def __init__(self) -> None:
        self._owners: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """How many are on their way."""
        return sum(self._owners.values())

    @contextmanager
    def take(self, owner: str) -> Iterator[None]:
        """Hold a turn.

        Raises:
            ServiceError: `rate_limited` for the owner's own limit, `backlog_full` for ours.
        """
        held = self._owners.get(owner, 0)
        if held >= OWNER_CONTENTS_MAX:
            message = f"At most {OWNER_CONTENTS_MAX} contents at once."
            raise ServiceError(ErrorCode.RATE_LIMITED, message, retry_after_s=RETRY_AFTER_S)
        if self.taken >= CONTENTS_MAX:
            message = "Too many contents are being read."
            raise ServiceError(ErrorCode.BACKLOG_FULL, message, retry_after_s=RETRY_AFTER_S)
        self._owners[owner] = held + 1
        try:
            yield
        finally:
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What is sent: `length_bytes` of `chunks`; `missing` says why there is nothing in the store."""

    owner: str
    chunks: AsyncGenerator[bytes]
    length_bytes: int
    missing: Callable[[], Awaitable[ServiceError]]


class ContentResponse(Response):
    """An answer whose body comes from the store; until its first byte is there it can still be a problem."""

    def __init__(
        self, sending: Sending, *, turns: Turns, count_failure: CountFailure, status: int, headers: Mapping[str, str]
    ) -> None:
        super().__init__(status_code=status, headers={**headers, "Content-Length": str(sending.length_bytes)})
        self._sending = sending
        self._turns = turns
        self._count_failure = count_failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._turns.take(self._sending.owner):
            async with aclosing(self._sending.chunks) as chunks:
                first = await self._first(chunks)
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": list(self.raw_headers)}
                )
                watching = asyncio.ensure_future(_until_gone(receive))
                try:
                    await self._send_body(_Client(send, watching), first, chunks)
                except TimeoutError:
                    wire_of(scope).abort()
                finally:
                    watching.cancel()
                    await asyncio.wait({watching})

    async def _first(self, chunks: AsyncGenerator[bytes]) -> bytes:
        try:
            return await anext(chunks, b"")
        except StoreUnavailableError as error:
            self._count_failure("store", "content")
            message = "The store for results does not answer."
            raise ServiceError(ErrorCode.DEPENDENCY_UNAVAILABLE, message, retry_after_s=RETRY_AFTER_S) from error
        except ObjectMissingError as error:
            raise await self._sending.missing() from error

    async def _send_body(self, client: "_Client", first: bytes, chunks: AsyncGenerator[bytes]) -> None:
        """Send all, or less: the server then ends the connection, and the client sees that bytes are missing."""
        left = self._sending.length_bytes
        chunk = first
        try:
            while chunk and left and not client.gone:
                left = await client.send(chunk, left=left)
                chunk = await anext(chunks, b"") if left else b""
        except (StoreUnavailableError, ObjectMissingError):
            self._count_failure("store", "content")


@dataclass(frozen=True, slots=True)
class _Client:
    """Who reads the answer."""

    send_message: Send
    watching: "asyncio.Future[None]"

    @property
    def gone(self) -> bool:
        return self.watching.done()

    async def send(self, chunk: bytes, *, left: int) -> int:
        """Send a chunk of what is left, and return how many bytes are left then."""
        for start in range(0, min(len(chunk), left), PIECE_BYTES):
            if self.gone:
                break
            piece = chunk[start : min(start + PIECE_BYTES, start + left)]
            left -= len(piece)
            async with asyncio.timeout(PIECE_S_MAX):
                await self.send_message({"type": "http.response.body", "body": piece, "more_body": left > 0})
        return left


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
