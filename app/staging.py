"""Writes one upload to staging: part by part as it comes, with the store's silence bounded.

Invariant: while the store takes parts the next one is filled, and all together hold at most `HELD_BYTES_MAX`.
Nothing waits for the client with a connection of the store in its hand.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.core.clock import monotonic_s
from app.core.objects import PART_BYTES, ObjectStore, StoreUnavailableError
from app.core.parts import Part

#: Most bytes of one upload in memory: a full part, and what is left of those on their way.
HELD_BYTES_MAX = PART_BYTES + 256 * 1024
#: Parts of one upload on their way at once. A store has all bytes of a part long before it has made them durable.
SENDING_PARTS_MAX = 2
#: A call is given up when for this long the store has neither taken a byte of it nor answered any call of the process.
#: A slow store that goes on working is not away; the setting for calls to the store bounds each call all the same.
STORE_STALL_S = 3.5
#: Giving up a multipart upload may take this long before the reservation is dropped without it: the janitor aborts
#: what is left under the row's prefix.
ABORT_TIMEOUT_S = 1.0
#: The staged file's type is known for certain only when it was decoded.
STAGING_MEDIA_TYPE = "application/octet-stream"

_T = TypeVar("_T")


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
    sending: "list[_Sending]" = field(default_factory=list)
    upload_id: str | None = None
    etags: list[str] = field(default_factory=list)
    #: The upload waits for the store (or a call has failed): time that runs out now is not the client's.
    busy: bool = False

    async def write(self, view: memoryview) -> None:
        """Take bytes in; a full part is on its way once more bytes follow."""
        while len(view):
            room_bytes = PART_BYTES - len(self.part)
            if not room_bytes:
                await self._wait(self._send_part())
                continue
            piece = view[:room_bytes]
            if self.sending:
                await self._wait(self._until_held(HELD_BYTES_MAX - self.part.held_bytes - len(piece)))
            self.part.write(piece)
            view = view[len(piece) :]

    async def finish(self) -> None:
        """Make the object visible and durable."""
        await self._wait(self._finish())

    async def abort(self) -> None:
        """Give up what was begun; best effort and soon, the janitor does the rest."""
        try:
            await self._end_calls()
        finally:
            # Whoever holds the error that ended the upload holds the frames of its calls, and they hold the parts.
            for part in (self.part, *(sending.part for sending in self.sending)):
                part.drop()
        if self.upload_id is None:
            return
        async with asyncio.timeout(ABORT_TIMEOUT_S):
            await self.store.abort_multipart(self.key, upload_id=self.upload_id)

    async def _end_calls(self) -> None:
        """End the calls under way; what came of them is of no interest any more."""
        calls = [sending.call for sending in self.sending]
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=ABORT_TIMEOUT_S)
        for call in calls:
            if call.done() and not call.cancelled():
                call.exception()

    async def _finish(self) -> None:
        part = self.part
        if self.upload_id is None:
            part.keep()
            await self.calls.run(lambda: self.store.put(self.key, part, media_type=STAGING_MEDIA_TYPE), part=part)
            return
        await self._send_part()
        await self._arrived(parts_max=0)
        upload_id = self.upload_id
        await self.calls.run(lambda: self.store.finish_multipart(self.key, upload_id=upload_id, etags=self.etags))
        self.upload_id = None

    async def _send_part(self) -> None:
        """Send the part on its way, once few enough are before it."""
        await self._arrived(parts_max=SENDING_PARTS_MAX - 1)
        if self.upload_id is None:
            self.upload_id = await self.calls.run(
                lambda: self.store.start_multipart(self.key, media_type=STAGING_MEDIA_TYPE)
            )
        part, upload_id, number = self.part, self.upload_id, len(self.etags) + len(self.sending) + 1
        call = self.calls.run(
            lambda: self.store.put_part(self.key, upload_id=upload_id, number=number, body=part), part=part
        )
        self.sending.append(_Sending(part, asyncio.ensure_future(call)))
        self.part = Part()

    async def _arrived(self, *, parts_max: int) -> None:
        """Wait, in the order of the parts, until no more than so many are on their way."""
        while len(self.sending) > parts_max:
            self.etags.append(await self.sending[0].call)
            del self.sending[0]

    async def _until_held(self, bytes_max: int) -> None:
        """Wait until the parts on their way hold no more than so many bytes, or raise what went wrong with one."""
        while True:
            under_way = [sending for sending in self.sending if sending.under_way()]
            if sum(sending.part.held_bytes for sending in under_way) <= max(bytes_max, 0):
                return
            less = [asyncio.ensure_future(sending.part.less_held()) for sending in under_way]
            either: list[asyncio.Future[Any]] = [*less, *(sending.call for sending in under_way)]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiting in less:
                    waiting.cancel()

    async def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        self.busy = True
        await work
        self.busy = False


@dataclass(frozen=True, slots=True)
class _Sending:
    """A part on its way to the store."""

    part: Part
    call: "asyncio.Future[str]"

    def under_way(self) -> bool:
        """Return whether the store has yet to answer; raises what went wrong when something has."""
        if self.call.done():
            self.call.result()
        return not self.call.done()
