"""The janitor role: puts right what crashes leave behind. Any number may run: every sweep is guarded and bounded."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from app.core import telemetry
from app.core.backlog import Backlog, Census
from app.core.clock import Monotonic
from app.core.crashpoints import Crasher, CrashPoint
from app.core.objects import ObjectStore, StoreUnavailableError
from app.core.postgres import DatabaseUnavailableError
from app.core.processes import ProcessRegister, ProcessReport
from app.core.rabbit import BrokerSession, BrokerSettings, BrokerUnavailableError, pause_before_reconnect
from app.core.role import first_of, wait_or_stop
from contracts.jobs import JobState
from contracts.keys import inbox_key, staging_key
from worker.dead_letters import take_dead_letters
from worker.patience import GAP_SHARE, Patience

log = telemetry.logger()

RESCUED = telemetry.counter("janitor_rescued", "Jobs whose lease ran out, by where they went.", "state")
DROPPED = telemetry.counter("janitor_dropped_uploads", "Reservations whose lease ran out.")
ANNOUNCED = telemetry.counter("janitor_announced_again", "Published jobs whose message was taken for lost.")
CLEARED = telemetry.counter("janitor_cleared_staging", "Staging objects deleted.")

JOBS = telemetry.gauge("jobs", "Unfinished jobs.", "state")
PLACES = telemetry.gauge("places_held", "Admitted and unfinished jobs, by the admission books.")
STAGING = telemetry.gauge("staging_bytes", "Bytes in staging, by the admission books.")
OLDEST_UNSTARTED = telemetry.gauge("oldest_unstarted_seconds", "Age of the oldest accepted job not yet started.")
OLDEST_UNPUBLISHED = telemetry.gauge("oldest_unpublished_seconds", "Age of the oldest due announcement.")
OLDEST_SNAPSHOT = telemetry.gauge("oldest_snapshot_seconds", "Age of the oldest snapshot held in the database.")
CAPACITY = telemetry.gauge("capacity_jobs_per_second", "Measured capacity of the live workers.")

#: What a rescue is called in the log, by the state it led to; the names are those of contracts.jobs.TRANSITIONS.
RESCUE_EVENTS = {
    JobState.QUEUED: "job.rescued",
    JobState.FAILED: "job.worker_lost",
    JobState.CANCELLED: "job.cancelled",
}

#: One thing that a sweep does; it may be repeated after a failure, and by any number of janitors at once.
Step = Callable[[], Awaitable[None]]

#: A snapshot held longer than this is told in the log: no dead row can go while it lasts.
OLD_SNAPSHOT_S = 300.0

#: How often the bucket is made sure of.
BUCKET_PERIOD_S = 5.0

#: Messages are taken for lost after this many sweeps in a row that found too few.
SHORT_SWEEPS = 2
#: At most this many jobs are announced again, and dead letters taken in, per sweep.
ANNOUNCE_ROWS_MAX = 100
DEAD_LETTERS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorSettings:
    """How often and how much is swept, and where the broker is."""

    interval_s: float
    job_lease_s: float
    upload_lease_s: float
    broker: BrokerSettings
    crash_point: CrashPoint | None = None


class Janitor:
    """One janitor process."""

    def __init__(
        self,
        settings: JanitorSettings,
        *,
        backlog: Backlog,
        register: ProcessRegister,
        objects: ObjectStore,
        housekeeping: tuple[Step, ...],
        clock: Monotonic,
    ) -> None:
        self._settings = settings
        self._backlog = backlog
        self._register = register
        self._objects = objects
        self._housekeeping = housekeeping
        self._crasher = Crasher(settings.crash_point)
        self._session: BrokerSession | None = None
        self._short_sweeps = 0
        self._database_answers = False
        self._job_patience = Patience(lease_s=settings.job_lease_s, clock=clock)
        self._upload_patience = Patience(lease_s=settings.upload_lease_s, clock=clock)

    def report(self) -> ProcessReport:
        """Return what this janitor says of itself to the register."""
        return ProcessReport(broker_ok=self._session is not None)

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until told to stop; a broker that is away holds back only what needs it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_session(stop))
            group.create_task(self._keep_bucket(stop))
            group.create_task(self._watch_database(stop))
            while not await wait_or_stop(stop, self._settings.interval_s):
                await self._sweep(stop)

    async def refresh_gauges(self) -> None:
        """Set the gauges from the database, for a scrape; keeps the old values when it does not answer."""
        with contextlib.suppress(DatabaseUnavailableError):
            seen = await self._backlog.gauges()
            for state, jobs in (
                (JobState.UPLOADING, seen.uploading),
                (JobState.QUEUED, seen.queued),
                (JobState.PROCESSING, seen.processing),
                (JobState.CANCELLING, seen.cancelling),
            ):
                JOBS.labels(state.value).set(jobs)
            PLACES.set(seen.jobs_held)
            STAGING.set(seen.staging_bytes)
            CAPACITY.set(seen.jobs_per_s)
            OLDEST_UNSTARTED.set(seen.unstarted_s)
            OLDEST_UNPUBLISHED.set(seen.unpublished_s)
            OLDEST_SNAPSHOT.set(seen.snapshot_s)
            if seen.snapshot_s > OLD_SNAPSHOT_S:
                log.warning("database.old_snapshot", age_s=round(seen.snapshot_s))

    async def _watch_database(self, stop: asyncio.Event) -> None:
        """Ask the database all the time, on which patience is based: a sweep that waits for the store is no silence."""
        leases_s = (self._settings.job_lease_s, self._settings.upload_lease_s)
        pause_s = min(self._settings.interval_s, min(leases_s) * GAP_SHARE / 2)
        while True:
            try:
                await self._register.estimate_capacity()
            except DatabaseUnavailableError:
                self._database_answers = False
                self._job_patience.failed()
                self._upload_patience.failed()
            else:
                self._database_answers = True
                self._job_patience.answered()
                self._upload_patience.answered()
            if await wait_or_stop(stop, pause_s):
                return

    async def _sweep(self, stop: asyncio.Event) -> None:
        """Take every step once. One that fails holds back none of the others, however often it fails."""
        steps: tuple[Step, ...] = (
            self._forget_dead,
            self._rescue,
            self._drop_stale_uploads,
            self._fail_overdue,
            self._clear_staging,
            self._delete_dropped,
            *self._housekeeping,
            self._find_lost_messages,
            self._take_dead_letters,
        )
        for step in steps:
            if stop.is_set():
                return
            try:
                await step()
            except DatabaseUnavailableError as error:
                log.warning("janitor.database_away", step=step.__name__, reason=str(error))
                if not self._database_answers:
                    return  # nothing else would be answered either
            except StoreUnavailableError:
                log.warning("janitor.store_away")
            except BrokerUnavailableError:
                log.warning("janitor.broker_away")
            except Exception:  # outermost guard of one step: leases must be judged whatever else is wrong
                log.exception("janitor.step_broke", step=step.__name__)

    async def _forget_dead(self) -> None:
        await self._register.forget_dead()

    async def _rescue(self) -> None:
        if not self._job_patience.may_judge():
            return
        for rescued in await self._backlog.rescue():
            RESCUED.labels(rescued.state.value).inc()
            event = RESCUE_EVENTS[rescued.state]
            log.warning(event, job_id=str(rescued.job_id), deaths=rescued.deaths)

    async def _drop_stale_uploads(self) -> None:
        if not self._upload_patience.may_judge():
            return
        for job_id in await self._backlog.drop_stale_uploads():
            DROPPED.inc()
            log.info("job.dropped", job_id=str(job_id))

    async def _fail_overdue(self) -> None:
        for job_id in await self._backlog.fail_overdue():
            log.warning("job.overdue", job_id=str(job_id))

    async def _clear_staging(self) -> None:
        """Delete staging objects that nobody needs, then give their bytes back: in this order a crash repeats it."""
        found = await self._backlog.staging_to_clear()
        if not found:
            return
        for job_id, state in found:
            if state is JobState.DROPPED:
                await self._objects.abort_multiparts_of(staging_key(job_id))
        await self._delete_staging([job_id for job_id, _ in found])
        self._crasher.reach("janitor.deleted")
        await self._backlog.give_bytes_back([job_id for job_id, _ in found])

    async def _delete_dropped(self) -> None:
        """Sweep dropped reservations once more, a lease later: a late writer of theirs has had its time."""
        job_ids = await self._backlog.dropped_to_delete(lease_s=self._settings.upload_lease_s)
        if not job_ids:
            return
        for job_id in job_ids:
            await self._objects.abort_multiparts_of(staging_key(job_id))
        await self._delete_staging(job_ids)
        await self._backlog.delete_dropped(job_ids)

    async def _delete_staging(self, job_ids: list[UUID]) -> None:
        await self._objects.delete([key(job_id) for job_id in job_ids for key in (staging_key, inbox_key)])
        CLEARED.inc(len(job_ids))

    async def _find_lost_messages(self) -> None:
        """Announce again what was published, waits, and is not in the broker (or was overtaken for a whole lease)."""
        if self._session is None:
            return
        lease_s = self._settings.job_lease_s
        census = await self._backlog.census(seen_s=self._register.seen_s, lease_s=lease_s)
        ready = await self._session.ready_messages()
        self._short_sweeps = self._short_sweeps + 1 if _is_short(census, ready=ready) else 0
        if self._short_sweeps < SHORT_SWEEPS and not census.overtaken:
            return
        for job_id in await self._backlog.announce_again(quiet_s=lease_s / 2, rows_max=ANNOUNCE_ROWS_MAX):
            ANNOUNCED.inc()
            log.warning("job.announced_again", job_id=str(job_id))

    async def _take_dead_letters(self) -> None:
        # While the database is away each would only come in hand and go back, which brokers count.
        if self._session is not None and self._database_answers:
            await take_dead_letters(self._session, backlog=self._backlog, letters_max=DEAD_LETTERS_MAX)

    async def _keep_bucket(self, stop: asyncio.Event) -> None:
        """Create the bucket once the store answers, and again when a store has lost it."""
        while not stop.is_set():
            with contextlib.suppress(StoreUnavailableError):
                await self._objects.ensure_bucket()
            await wait_or_stop(stop, BUCKET_PERIOD_S)

    async def _keep_session(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(BrokerUnavailableError):
                async with BrokerSession.open(self._settings.broker) as session:
                    self._session = session
                    try:
                        await first_of(stop, session.closed)
                    finally:
                        self._session = None
            await pause_before_reconnect(stop)


def _is_short(census: Census, *, ready: int) -> bool:
    return census.waiting > 0 and ready + census.unacked < census.in_delivery
