"""One upload's life, without HTTP: bytes stream to staging, the reservation is kept alive, then it becomes a job.

Invariant: an upload ends accepted, or with its reservation dropped and its multipart upload aborted; only when the
outcome of a statement is unknown is nothing touched, and the row decides.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterable, Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

from app.accepting import Accepting, CountFailure, header_of, reservation_lost, source_of, unavailable
from app.core.crashpoints import Crasher
from app.core.jobstore import JobStore, Reservation, Source
from app.core.objects import ObjectMissingError, ObjectStore, StoreUnavailableError
from app.core.postgres import DatabaseUnavailableError
from app.core.settings import Settings
from app.core.sniff import Header
from app.core.telemetry import logger
from app.staging import StagingWriter, StoreCalls
from contracts.errors import ErrorCode, ServiceError
from contracts.keys import staging_key
from contracts.limits import SNIFF_BYTES

#: How long a process that stops waits for the clean-up after its last uploads.
CLOSE_S_MAX = 2.0
#: An upload's lease is renewed this often within its length.
RENEWALS_PER_LEASE = 3

log = logger()


@dataclass(slots=True)
class Hand:
    """An upload of this process: its reservation, and the time-out that ends it early when that is lost."""

    reservation: Reservation
    lost: bool = False
    scope: asyncio.Timeout | None = None

    @contextmanager
    def ended_by(self, scope: asyncio.Timeout) -> Iterator[None]:
        """Let `lose` end the block, and nothing after it: a time-out that was left refuses a new time."""
        self.scope = scope
        try:
            yield
        finally:
            self.scope = None

    def lose(self) -> None:
        """End the upload: its reservation is no longer ours."""
        self.lost = True
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(asyncio.get_running_loop().time())


class Uploads:
    """The uploads that this process has in hand."""

    def __init__(
        self, settings: Settings, *, jobs: JobStore, leases: JobStore, store: ObjectStore, count_failure: CountFailure
    ) -> None:
        """Take what uploads need; `leases` has connections that no request can be waiting for."""
        self._settings = settings
        self._limits = settings.image_limits()
        self._accepting = Accepting(settings, jobs=jobs, store=store, count_failure=count_failure)
        self._crasher = Crasher(settings.crash_point)
        self._jobs = jobs
        self._leases = leases
        self._store = store
        self._count_failure = count_failure
        # Two connections stay free for aborts, which must not wait behind what they undo.
        self._calls = StoreCalls(calls_max=max(1, settings.s3_connections_max - 2), silence_s_max=settings.s3_timeout_s)
        self._hands: dict[UUID, Hand] = {}
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

    async def receive(
        self,
        reservation: Reservation,
        chunks: AsyncIterable[memoryview],
        *,
        attachment_id: UUID | None = None,
        sha256: str | None = None,
    ) -> Source:
        """Store an admitted upload and make it a queued job; returns only after both are durable.

        With an `attachment_id` it becomes that attachment in the same statement. With a `sha256` (lower-case
        hexadecimal) the file must have it.

        Raises:
            ServiceError: with the code of what was wrong with the file, the client's pace, a server or the
                reservation. Whatever `chunks` raises comes through, after the clean-up.
        """
        with self._in_hand(reservation) as hand:
            self._crasher.reach("api.reserved")
            source = await self._stage_or_undo(hand, chunks, sha256)
            self._crasher.reach("api.staged")
            await self._accepting.accept(reservation, source, attachment_id=attachment_id)
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
    def _in_hand(self, reservation: Reservation) -> Iterator[Hand]:
        hand = self._hands[reservation.job_id] = Hand(reservation)
        self._none_in_hand.clear()
        try:
            yield hand
        finally:
            del self._hands[reservation.job_id]
            if not self._hands:
                self._none_in_hand.set()

    async def _stage_or_undo(self, hand: Hand, chunks: AsyncIterable[memoryview], sha256: str | None) -> Source:
        writer = StagingWriter(self._store, self._calls, staging_key(hand.reservation.job_id))
        try:
            async with asyncio.timeout(self._settings.upload_deadline_s) as scope:
                with hand.ended_by(scope):
                    return await self._stage(writer, chunks, sha256)
        except BaseException as error:  # a cancelled upload leaves no more behind than a refused one
            await self._undo(hand.reservation, writer)
            if not isinstance(error, StoreUnavailableError | ObjectMissingError | TimeoutError):
                raise
            raise self._why_not_staged(hand, writer, error) from error

    def _why_not_staged(self, hand: Hand, writer: StagingWriter, error: Exception) -> ServiceError:
        # The janitor alone gives up what is not its own, after it has dropped the reservation.
        if hand.lost or isinstance(error, ObjectMissingError):
            return reservation_lost()
        if isinstance(error, TimeoutError) and not writer.busy:
            return ServiceError(ErrorCode.UPLOAD_TOO_SLOW, "The upload did not end within its time.")
        self._count_failure("store", "stage")
        return unavailable("The store for uploads does not answer.")

    async def _stage(self, writer: StagingWriter, chunks: AsyncIterable[memoryview], sha256: str | None) -> Source:
        digest, head, source_bytes = hashlib.sha256(), bytearray(), 0
        header: Header | None = None
        async for view in chunks:
            source_bytes += len(view)
            if source_bytes > self._limits.source_bytes_max:
                raise ServiceError(ErrorCode.TOO_MANY_BYTES, f"At most {self._limits.source_bytes_max} bytes.")
            if header is None:
                head += view[: SNIFF_BYTES - len(head)]
                header = header_of(head, self._limits) if len(head) >= SNIFF_BYTES else None
            digest.update(view)
            await writer.write(view)
        if not source_bytes:
            raise ServiceError(ErrorCode.EMPTY_FILE, "The file has no bytes.")
        if sha256 is not None and digest.hexdigest() != sha256:
            raise ServiceError(ErrorCode.DIGEST_MISMATCH, "The file is not the one that was announced.")
        header = header or header_of(head, self._limits)
        await writer.finish()
        return source_of(header, source_bytes=source_bytes, sha256=digest.hexdigest())

    async def _undo(self, reservation: Reservation, writer: StagingWriter | None) -> None:
        undoing = asyncio.ensure_future(self._abort_and_drop(reservation, writer))
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)
        await asyncio.shield(undoing)

    async def _abort_and_drop(self, reservation: Reservation, writer: StagingWriter | None) -> None:
        try:
            if writer is not None:
                await self._quietly("store", "abort", writer.abort())
        finally:
            await self._quietly("database", "drop_upload", self._drop(reservation))

    async def _drop(self, reservation: Reservation) -> None:
        if await self._jobs.drop_upload(job_id=reservation.job_id, upload_token=reservation.upload_token):
            logger().info("job.dropped", job_id=str(reservation.job_id))

    async def _quietly(self, server: str, name: str, call: Awaitable[object]) -> None:
        # What fails here is repaired by the janitor when the lease has run out.
        try:
            await call
        except (StoreUnavailableError, DatabaseUnavailableError, TimeoutError):
            self._count_failure(server, name)
