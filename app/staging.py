"""Writes one upload to staging: part by part as it comes, with the store's silence bounded.

Invariant: one part is the most that is kept of an upload, and nothing is copied on its way: a part is written to
memory once and read from there by the store's client.
"""

import asyncio
import io
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.core.clock import monotonic_s
from app.core.objects import PART_BYTES, ObjectStore, StoreUnavailableError

#: A call is given up when for this long the store has neither taken a byte of it nor answered any call of the process.
#: A slow store that goes on working is not away, so no fixed deadline bounds a part; each call's own silence is
#: bounded by the setting for calls to the store all the same.
STORE_STALL_S = 3.5
#: Giving up a multipart upload may take this long before the reservation is dropped without it: the janitor aborts
#: what is left under the row's prefix.
ABORT_TIMEOUT_S = 1.0
#: The staged file's type is known for certain only when it was decoded.
STAGING_MEDIA_TYPE = "application/octet-stream"

_T = TypeVar("_T")


class Part(io.BytesIO):
    """A part in memory that knows when the store last took bytes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.read_at_s = 0.0

    def read(self, size_bytes: int | None = -1, /) -> bytes:
        """Return the next bytes."""
        self.read_at_s = monotonic_s()
        return super().read(size_bytes)


class StoreCalls:
    """Calls to the store: at most so many at once, each given up when the store stalls."""

    def __init__(self, *, calls_max: int, silence_s_max: float) -> None:
        # Waiting for a turn is no stall: the upload's own deadline bounds it.
        self._turns = asyncio.Semaphore(calls_max)
        self._silence_s_max = silence_s_max
        self._answered_at_s = 0.0

    async def run(self, call: Callable[[], Coroutine[Any, Any, _T]], *, part: Part | None = None) -> _T:
        """Return the call's answer.

        Raises:
            StoreUnavailableError: the store refused, failed or stalled.
            ObjectMissingError: the multipart upload was given up by somebody else.
        """
        async with self._turns:
            running = asyncio.ensure_future(call())
            try:
                await self._wait(running, part)
                answer = running.result()
            finally:
                if not running.done():
                    running.cancel()
                    await asyncio.wait({running}, timeout=ABORT_TIMEOUT_S)
            self._answered_at_s = monotonic_s()
            return answer

    async def _wait(self, running: "asyncio.Future[Any]", part: Part | None) -> None:
        started_s = monotonic_s()
        while not running.done():
            own_s = max(started_s, part.read_at_s if part else 0.0)
            stalled_at_s = min(max(own_s, self._answered_at_s) + STORE_STALL_S, own_s + self._silence_s_max)
            left_s = stalled_at_s - monotonic_s()
            if left_s <= 0:
                raise StoreUnavailableError("the store stalled")
            await asyncio.wait({running}, timeout=left_s)


@dataclass(slots=True)
class StagingWriter:
    """Writes one staging object: whole when it fits in a part, else as a multipart upload, part by part."""

    store: ObjectStore
    calls: StoreCalls
    key: str
    part: Part = field(default_factory=Part)
    upload_id: str | None = None
    etags: list[str] = field(default_factory=list)
    #: A call to the store is under way (or has failed): time that runs out now is not the client's.
    busy: bool = False

    async def write(self, view: memoryview) -> None:
        """Take bytes in; sends a full part on when more follow."""
        while len(view):
            room_bytes = PART_BYTES - self.part.tell()
            if not room_bytes:
                await self._send_part()
                continue
            self.part.write(view[:room_bytes])
            view = view[room_bytes:]

    async def finish(self) -> None:
        """Make the object visible and durable."""
        if self.upload_id is None:
            part = self.part
            await self._call(lambda: self._put(part), part=part)
            return
        await self._send_part()
        upload_id = self.upload_id
        await self._call(lambda: self.store.finish_multipart(self.key, upload_id=upload_id, etags=self.etags))
        self.upload_id = None

    async def abort(self) -> None:
        """Give up what was begun; best effort and soon, the janitor does the rest."""
        if self.upload_id is None:
            return
        async with asyncio.timeout(ABORT_TIMEOUT_S):
            await self.store.abort_multipart(self.key, upload_id=self.upload_id)

    async def _put(self, part: Part) -> None:
        part.seek(0)
        await self.store.put(self.key, part, media_type=STAGING_MEDIA_TYPE)

    async def _send_part(self) -> None:
        if self.upload_id is None:
            self.upload_id = await self._call(
                lambda: self.store.start_multipart(self.key, media_type=STAGING_MEDIA_TYPE)
            )
        part, upload_id, number = self.part, self.upload_id, len(self.etags) + 1
        part.seek(0)
        etag = await self._call(
            lambda: self.store.put_part(self.key, upload_id=upload_id, number=number, body=part), part=part
        )
        self.etags.append(etag)
        self.part = Part()

    async def _call(self, call: Callable[[], Coroutine[Any, Any, _T]], *, part: Part | None = None) -> _T:
        self.busy = True
        answer = await self.calls.run(call, part=part)
        self.busy = False
        return answer
