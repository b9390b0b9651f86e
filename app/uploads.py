"""One upload's life, without HTTP: bytes stream to staging, the reservation is kept alive, then it becomes a job.

Invariant: an upload ends accepted, or with its reservation dropped and its multipart upload aborted; only when the
outcome of a statement is unknown is nothing touched, and the row decides. One part is the most that an upload keeps
in memory, and while that part is on its way to the store the client is not read from.
"""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from app.core.clock import monotonic_s
from app.core.crashpoints import Crasher
from app.core.jobstore import JobStore, Reservation, Source
from app.core.objects import PART_BYTES, ObjectMissingError, ObjectStore, StoreUnavailableError
from app.core.postgres import DatabaseUnavailableError
from app.core.settings import Settings
from app.core.sniff import Header, check_header
from app.core.telemetry import logger
from contracts.errors import ErrorCode, FailureCode, ServiceError
from contracts.jobs import JobState
from contracts.keys import staging_key
from contracts.limits import SNIFF_BYTES

#: A call is given up when for this long the store has neither taken a byte of it nor answered any call of the process.
#: A slow store that goes on working is not away, so no fixed deadline bounds a part; each call's own silence is
#: bounded by the setting for calls to the store all the same.
STORE_STALL_S = 3.5
#: Giving up a multipart upload may take this long before the reservation is dropped without it: the janitor aborts
#: what is left under the row's prefix.
ABORT_TIMEOUT_S = 1.0
#: How long a process that stops waits for the clean-up after its last uploads.
CLOSE_S_MAX = 2.0
#: Times an accept is tried, and asked about, when the database does not answer.
ACCEPT_TRIES_MAX = 2
#: An upload's lease is renewed this often within its length.
RENEWALS_PER_LEASE = 3
#: The staged file's type is known for certain only when it was decoded.
STAGING_MEDIA_TYPE = "application/octet-stream"
#: Said with refusals of an upload in hand.
RETRY_AFTER_S = 2.0

_T = TypeVar("_T")

log = logger()

_HEADER_MESSAGES = {
    FailureCode.UNSUPPORTED_FORMAT: "The file is not an image of an accepted format.",
    FailureCode.TOO_MANY_PIXELS: "The image's header announces too many pixels.",
    FailureCode.TOO_LARGE_DIMENSION: "The image's header announces a side that is too long.",
}

#: Counts a failed call: kind of server, call.
CountFailure = Callable[[str, str], None]


@dataclass(slots=True)
class _Hand:
    """An upload of this process: its reservation, and the time-out that ends it early when that is lost."""

    reservation: Reservation
    lost: bool = False
    scope: asyncio.Timeout | None = None

    def lose(self) -> None:
        """End the upload: its reservation is no longer ours."""
        self.lost = True
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(asyncio.get_running_loop().time())


class _Part(io.BytesIO):
    """A part in memory that knows when the store last took bytes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.read_at_s = 0.0

    def read(self, size: int | None = -1, /) -> bytes:
        self.read_at_s = monotonic_s()
        return super().read(size)


class _StoreCalls:
    """Calls to the store: at most so many at once, each given up when the store stalls."""

    def __init__(self, *, calls_max: int, silence_s_max: float) -> None:
        # Waiting for a turn is no stall: the upload's own deadline bounds it.
        self._turns = asyncio.Semaphore(calls_max)
        self._silence_s_max = silence_s_max
        self._answered_at_s = 0.0

    async def run(self, call: Callable[[], Coroutine[Any, Any, _T]], *, part: _Part | None = None) -> _T:
        """Return the call's answer.

        Raises:
            StoreUnavailableError: the store refused, failed or stalled.
        """
        async with self._turns:
            running = asyncio.ensure_future(call())
            try:
                await self._wait(running, part)
                answer = running.result()
            except ObjectMissingError as error:
                raise StoreUnavailableError("the bucket or the upload is not there") from error
            finally:
                if not running.done():
                    running.cancel()
                    await asyncio.wait({running}, timeout=ABORT_TIMEOUT_S)
            self._answered_at_s = monotonic_s()
            return answer

    async def _wait(self, running: "asyncio.Future[Any]", part: _Part | None) -> None:
        started_s = monotonic_s()
        while not running.done():
            own_s = max(started_s, part.read_at_s if part else 0.0)
            stalled_at_s = min(max(own_s, self._answered_at_s) + STORE_STALL_S, own_s + self._silence_s_max)
            left_s = stalled_at_s - monotonic_s()
            if left_s <= 0:
                raise StoreUnavailableError("the store stalled")
            await asyncio.wait({running}, timeout=left_s)


@dataclass(slots=True)
class _Writer:
    """Writes one staging object: whole when it fits in a part, else as a multipart upload, part by part."""

    store: ObjectStore
    calls: _StoreCalls
    key: str
    part: _Part = field(default_factory=_Part)
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

    async def _put(self, part: _Part) -> None:
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
        self.part = _Part()

    async def _call(self, call: Callable[[], Coroutine[Any, Any, _T]], *, part: _Part | None = None) -> _T:
        self.busy = True
        answer = await self.calls.run(call, part=part)
        self.busy = False
        return answer


class Uploads:
    """The uploads that this process has in hand."""

    def __init__(
        self, settings: Settings, *, jobs: JobStore, leases: JobStore, store: ObjectStore, count_failure: CountFailure
    ) -> None:
        """Take what uploads need; `leases` has connections that no request can be waiting for."""
        self._settings = settings
        self._limits = settings.image_limits()
        self._crasher = Crasher(settings.crash_point)
        self._jobs = jobs
        self._leases = leases
        self._store = store
        self._count_failure = count_failure
        # Two connections stay free for aborts, which must not wait behind what they undo.
        self._calls = _StoreCalls(
            calls_max=max(1, settings.s3_connections_max - 2), silence_s_max=settings.s3_timeout_s
        )
        self._hands: dict[UUID, _Hand] = {}
        self._none_in_hand = asyncio.Event()
        self._none_in_hand.set()
        self._undoing: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        """How many uploads are in hand."""
        return len(self._hands)

    @property
    def renew_interval_s(self) -> float:
        """How often `renew` is to be called, seconds."""
        return self._settings.upload_lease_s / RENEWALS_PER_LEASE

    async def receive(self, reservation: Reservation, chunks: AsyncIterable[memoryview]) -> Source:
        """Store an admitted upload and make it a queued job; returns only after both are durable.

        Raises:
            ServiceError: with the code of what was wrong with the file, the client's pace, a server or the
                reservation. Whatever `chunks` raises comes through, after the clean-up.
        """
        with self._in_hand(reservation) as hand:
            self._crasher.reach("api.reserved")
            source = await self._stage_or_undo(hand, chunks)
            self._crasher.reach("api.staged")
            await self._accept(reservation, source)
            self._crasher.reach("api.accepted")
            log.info("job.accepted", job_id=str(reservation.job_id), source_bytes=source.source_bytes)
            return source

    async def drop(self, reservation: Reservation) -> None:
        """End a reservation whose upload never began."""
        await self._undo(reservation, None)

    async def renew(self) -> None:
        """Extend all leases with one statement; an upload whose reservation is gone is ended.

        Raises:
            DatabaseUnavailableError: nothing was learnt; the leases run on.
        """
        asked = {hand.reservation.job_id: hand.reservation.upload_token for hand in self._hands.values()}
        if not asked:
            return
        kept = await self._leases.renew_uploads(asked, lease_s=self._settings.upload_lease_s)
        for job_id in asked.keys() - kept:
            if job_id in self._hands:
                self._hands[job_id].lose()

    async def close(self) -> None:
        """Return when every upload was let go and cleaned up after, or after `CLOSE_S_MAX`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._none_in_hand.wait()
                if self._undoing:
                    await asyncio.wait(self._undoing)

    @contextmanager
    def _in_hand(self, reservation: Reservation) -> Iterator[_Hand]:
        hand = self._hands[reservation.job_id] = _Hand(reservation)
        self._none_in_hand.clear()
        try:
            yield hand
        finally:
            del self._hands[reservation.job_id]
            if not self._hands:
                self._none_in_hand.set()

    async def _stage_or_undo(self, hand: _Hand, chunks: AsyncIterable[memoryview]) -> Source:
        writer = _Writer(self._store, self._calls, staging_key(hand.reservation.job_id))
        try:
            async with asyncio.timeout(self._settings.upload_deadline_s) as hand.scope:
                return await self._stage(writer, chunks)
        except BaseException as error:  # a cancelled upload leaves no more behind than a refused one
            await self._undo(hand.reservation, writer)
            if not isinstance(error, StoreUnavailableError | TimeoutError):
                raise
            raise self._why_not_staged(hand, writer, error) from error
        finally:
            hand.scope = None

    def _why_not_staged(self, hand: _Hand, writer: _Writer, error: Exception) -> ServiceError:
        if hand.lost:
            return _lost()
        if isinstance(error, TimeoutError) and not writer.busy:
            return ServiceError(ErrorCode.UPLOAD_TOO_SLOW, "The upload did not end within its time.")
        self._count_failure("store", "stage")
        return _unavailable("The store for uploads does not answer.")

    async def _stage(self, writer: _Writer, chunks: AsyncIterable[memoryview]) -> Source:
        digest, head, source_bytes = hashlib.sha256(), bytearray(), 0
        header: Header | None = None
        async for view in chunks:
            source_bytes += len(view)
            if source_bytes > self._limits.source_bytes_max:
                raise ServiceError(ErrorCode.TOO_MANY_BYTES, f"At most {self._limits.source_bytes_max} bytes.")
            if header is None:
                head += view[: SNIFF_BYTES - len(head)]
                header = self._check(head) if len(head) >= SNIFF_BYTES else None
            digest.update(view)
            await writer.write(view)
        if not source_bytes:
            raise ServiceError(ErrorCode.EMPTY_FILE, "The file has no bytes.")
        header = header or self._check(head)
        await writer.finish()
        return Source(
            source_bytes=source_bytes,
            sha256=digest.hexdigest(),
            format=header.image_format,
            width=header.width_px,
            height=header.height_px,
        )

    def _check(self, head: bytearray) -> Header:
        verdict = check_header(bytes(head), self._limits)
        if isinstance(verdict, FailureCode):
            raise ServiceError(ErrorCode(verdict.value), _HEADER_MESSAGES[verdict])
        return verdict

    async def _undo(self, reservation: Reservation, writer: _Writer | None) -> None:
        undoing = asyncio.ensure_future(self._abort_and_drop(reservation, writer))
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)
        await asyncio.shield(undoing)

    async def _abort_and_drop(self, reservation: Reservation, writer: _Writer | None) -> None:
        if writer is not None:
            await self._quietly("store", "abort", writer.abort())
        await self._quietly(
            "database",
            "drop_upload",
            self._jobs.drop_upload(job_id=reservation.job_id, upload_token=reservation.upload_token),
        )

    async def _quietly(self, server: str, name: str, call: Awaitable[object]) -> None:
        # What fails here is repaired by the janitor when the lease has run out.
        try:
            await call
        except (StoreUnavailableError, DatabaseUnavailableError, TimeoutError):
            self._count_failure(server, name)

    async def _accept(self, reservation: Reservation, source: Source) -> None:
        for _ in range(ACCEPT_TRIES_MAX):
            state = await self._try_accept(reservation, source)
            if state is JobState.UPLOADING:
                continue
            if state in (None, JobState.DROPPED):
                await self._quietly("store", "delete", self._store.delete([staging_key(reservation.job_id)]))
                raise _lost()
            return
        raise _unavailable("The database does not answer.")

    async def _try_accept(self, reservation: Reservation, source: Source) -> JobState | None:
        """Return the reservation's state after an accept; `uploading` when that did not happen."""
        job_id, token = reservation.job_id, reservation.upload_token
        try:
            if await self._jobs.accept(
                job_id=job_id,
                upload_token=token,
                source=source,
                job_deadline_s=self._settings.job_deadline_s,
            ):
                return JobState.QUEUED
        except DatabaseUnavailableError as error:
            self._count_failure("database", "accept")
            if not error.outcome_unknown:
                return JobState.UPLOADING
        try:
            return await self._jobs.upload_state(job_id=job_id, upload_token=token)
        except DatabaseUnavailableError as error:
            self._count_failure("database", "upload_state")
            raise _unavailable("The database does not answer.") from error


def _unavailable(message: str) -> ServiceError:
    return ServiceError(ErrorCode.DEPENDENCY_UNAVAILABLE, message, retry_after_s=RETRY_AFTER_S)


def _lost() -> ServiceError:
    return ServiceError(
        ErrorCode.RESERVATION_LOST, "The reservation of this upload ended early.", retry_after_s=RETRY_AFTER_S
    )
