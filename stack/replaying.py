"""Replays of failed jobs from the command line: one after the other, oldest failure first, within admission's bounds.

Invariant: what fails again while a run goes on is not replayed by it, since its `until` is a moment before it began.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from app.admission import bounds_of
from app.core.clock import Monotonic
from app.core.jobstore import Bounds, JobStore, ReplayOutcome
from app.core.jobviews import Cursor
from app.core.processes import ProcessRegister
from app.core.registry import COMMAND_LINE, NO_PLACE, FailedFilter, RegisteredJob, Registry
from app.core.settings import Settings
from stack.bulk import Ending, Waiting, take_each

PAGE_ROWS = 100

OnReplay = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What a replay works with."""

    registry: Registry
    jobs: JobStore
    register: ProcessRegister


@dataclass(slots=True)
class Run:
    """What one run has done so far; `until` is what a repeat needs to do only the rest."""

    dry_run: bool
    until: datetime
    outcomes: list[tuple[UUID, ReplayOutcome]] = field(default_factory=list)
    unknown: list[UUID] = field(default_factory=list)
    ending: Ending = Ending.DONE

    @property
    def counts(self) -> dict[str, int]:
        """Jobs by what their replay answered."""
        return dict(Counter(outcome.value for _, outcome in self.outcomes))

    @property
    def all_queued(self) -> bool:
        """Whether every job that was meant was queued (or, in a dry run, would be)."""
        queued = all(outcome is ReplayOutcome.QUEUED for _, outcome in self.outcomes)
        return queued and not self.unknown and self.ending is Ending.DONE


class Replaying:
    """Replays within the bounds that the API's uploads have, by the same settings and the same policy."""

    def __init__(self, settings: Settings, stores: Stores, *, clock: Monotonic) -> None:
        self._settings = settings
        self._stores = stores
        self._clock = clock
        self._bounds: Bounds | None = None
        self._bounds_at_s = 0.0

    async def start(self, *, dry_run: bool, until: datetime | None) -> Run:
        """Return an empty run whose `until` is the moment given, or now by the database's clock."""
        now = await self._stores.registry.now()
        return Run(dry_run=dry_run, until=now if until is None else min(until, now))

    async def go(self, run: Run, jobs: AsyncIterator[RegisteredJob], *, waiting: Waiting, on_replay: OnReplay) -> None:
        """Replay these jobs, waiting for places; the run tells what came of it."""

        async def take(job: RegisteredJob) -> bool:
            outcome = job.outlook if run.dry_run else await self._replay(job)
            if outcome in NO_PLACE:
                return False
            run.outcomes.append((job.job_id, outcome))
            on_replay()
            return True

        run.ending = await take_each(jobs, take, waiting=waiting)

    async def fitting(self, wanted: FailedFilter, *, jobs_max: int, run: Run) -> AsyncIterator[RegisteredJob]:
        """Yield failed jobs that fit, oldest failure first."""
        wanted, after, left = replace(wanted, until=run.until), None, jobs_max
        while left > 0:
            rows_max = min(PAGE_ROWS, left)
            page = await self._stores.registry.failed_in_turn(wanted, after=after, rows_max=rows_max)
            for job in page:
                yield job
            if len(page) < rows_max:
                return
            after, left = _last(page), left - len(page)

    async def named(self, job_ids: list[UUID], *, run: Run) -> AsyncIterator[RegisteredJob]:
        """Yield the jobs of these ids; those that nothing is known of are noted."""
        for job_id in job_ids:
            job = await self._stores.registry.find(job_id)
            if job is None:
                run.unknown.append(job_id)
            else:
                yield job

    async def _replay(self, job: RegisteredJob) -> ReplayOutcome:
        return await self._stores.jobs.replay(
            job.job_id,
            bounds=await self._present_bounds(),
            job_deadline_s=self._settings.job_deadline_s,
            who=COMMAND_LINE,
        )

    async def _present_bounds(self) -> Bounds:
        """Return the bounds by a snapshot no older than the API's own may be."""
        now_s = self._clock()
        if self._bounds is None or now_s - self._bounds_at_s > self._settings.admission_snapshot_s:
            snapshot = await self._stores.register.snapshot()
            self._bounds = bounds_of(self._settings.admission_policy, snapshot=snapshot, settings=self._settings)
            self._bounds_at_s = now_s
        return self._bounds


def _last(page: list[RegisteredJob]) -> Cursor:
    return page[-1].cursor
