"""New results for old images from the command line: one image after the other, on what uploads leave free.

Invariant: it takes a place only while few jobs are unfinished, so that an upload finds one and waits behind few.
With one queue for all this is what low priority means: new results fill idle time and nothing else.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from app.admission import bounds_of
from app.core.clock import Monotonic
from app.core.jobstore import Bounds
from app.core.processes import ProcessRegister
from app.core.registry import COMMAND_LINE, Registry
from app.core.settings import Settings
from app.core.versions import NO_PLACE, ReprocessOutcome, ReprocessTerms, StandingFilter, Versions
from stack.bulk import Ending, Waiting, take_each

PAGE_ROWS = 500

#: A new result is begun only while fewer jobs than this for each worker slot are unfinished, of whatever kind.
JOBS_PER_SLOT = 2
#: ... and only while more places than this are free for uploads.
FREE_PLACES = 16

#: Answers after which nothing is left to do for an image.
ON_ITS_WAY = frozenset({ReprocessOutcome.QUEUED, ReprocessOutcome.IN_WORK})

OnImage = Callable[[], None]


def jobs_max_of(bounds: Bounds, *, slots: int) -> int:
    """Return how many jobs may be unfinished, with this one, for a new result to take a place."""
    by_slots = JOBS_PER_SLOT * max(1, slots)
    return by_slots if bounds.jobs_max is None else max(1, min(by_slots, bounds.jobs_max - FREE_PLACES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What reprocessing works with."""

    versions: Versions
    registry: Registry
    register: ProcessRegister


@dataclass(frozen=True, slots=True)
class Reprocessed:
    """What became of one image's wish; `job_id` of the job that was made, None when none was."""

    image_id: UUID
    outcome: ReprocessOutcome
    job_id: UUID | None


@dataclass(slots=True)
class Run:
    """What one run has done so far; `made_before` is what a repeat needs to do only the rest."""

    dry_run: bool
    pipeline_version: int
    made_before: datetime
    served: bool  #: a live worker serves the version; without one the new jobs wait, parked
    done: list[Reprocessed] = field(default_factory=list)
    ending: Ending = Ending.DONE

    @property
    def counts(self) -> dict[str, int]:
        """Images by what was answered."""
        return dict(Counter(one.outcome.value for one in self.done))

    @property
    def all_on_their_way(self) -> bool:
        """Whether every image that was meant has (or in a dry run would have) a new result on its way."""
        return self.ending is Ending.DONE and all(one.outcome in ON_ITS_WAY for one in self.done)


class Reprocessing:
    """Makes new results on low priority, within admission's bounds."""

    def __init__(self, settings: Settings, stores: Stores, *, clock: Monotonic) -> None:
        self._settings = settings
        self._stores = stores
        self._clock = clock
        self._jobs_max = 1
        self._owner_jobs_max: int | None = None
        self._looked_at_s: float | None = None

    async def start(self, *, dry_run: bool, pipeline_version: int, made_before: datetime | None) -> Run:
        """Return an empty run about results made before the moment given, or before now by the database's clock."""
        now = await self._stores.registry.now()
        moment = now if made_before is None else min(made_before, now)
        versions, seen_s = self._stores.versions, self._stores.register.seen_s
        served = await versions.is_served(pipeline_version, seen_s=seen_s)
        return Run(dry_run=dry_run, pipeline_version=pipeline_version, made_before=moment, served=served)

    async def go(self, run: Run, images: AsyncIterator[UUID], *, waiting: Waiting, on_image: OnImage) -> None:
        """Ask for a new result for each image, waiting for places; the run tells what came of it."""

        async def take(image_id: UUID) -> bool:
            outcome, job_id = await self._ask(image_id, run)
            if outcome in NO_PLACE:
                return False
            made = job_id if outcome is ReprocessOutcome.QUEUED else None
            run.done.append(Reprocessed(image_id, outcome, made))
            on_image()
            return True

        run.ending = await take_each(images, take, waiting=waiting)

    async def fitting(self, wanted: StandingFilter, *, images_max: int, run: Run) -> AsyncIterator[UUID]:
        """Yield the images that fit, by id: a repeat with the run's moment does not meet what was renewed since."""
        wanted, after, left = replace(wanted, made_before=run.made_before), None, images_max
        while left > 0:
            page = await self._stores.versions.standing(wanted, after=after, rows_max=PAGE_ROWS)
            for image_id in page.image_ids[:left]:
                yield image_id
            after, left = page.next_after, left - len(page.image_ids)
            if after is None:
                return

    async def _ask(self, image_id: UUID, run: Run) -> tuple[ReprocessOutcome, UUID | None]:
        if run.dry_run:
            versions = self._stores.versions
            return await versions.outlook(image_id, pipeline_version=run.pipeline_version), None
        await self._look()
        terms = ReprocessTerms(
            pipeline_version=run.pipeline_version,
            jobs_max=self._jobs_max,
            owner_jobs_max=self._owner_jobs_max,
            job_deadline_s=self._settings.job_deadline_s,
            who=COMMAND_LINE,
        )
        return await self._stores.versions.reprocess(image_id, terms=terms)

    async def _look(self) -> None:
        """Take the bounds from a snapshot no older than the API's own may be."""
        now_s = self._clock()
        if self._looked_at_s is not None and now_s - self._looked_at_s <= self._settings.admission_snapshot_s:
            return
        snapshot = await self._stores.register.snapshot()
        bounds = bounds_of(self._settings.admission_policy, snapshot=snapshot, settings=self._settings)
        self._jobs_max = jobs_max_of(bounds, slots=snapshot.slots)
        self._owner_jobs_max, self._looked_at_s = bounds.owner_jobs_max, now_s
