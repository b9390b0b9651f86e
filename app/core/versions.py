"""The versions of an image: jobs parked for a worker of theirs, new results for old images, and the end of old results.

Invariant: until a newer result is ready nothing that anybody sees of an image changes, and the pointer to what stands
for it only rises: whichever of two jobs ends last, the one of the higher version stands.
"""

import uuid
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from app.core.postgres import Database, load_queries

#: Parked jobs are counted up to here; a count that reaches it is "at least".
PARKED_COUNT_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedJob:
    """A job that waits, queued, for a worker of its pipeline version; `served`: one is alive by now."""

    job_id: UUID
    image_id: UUID
    owner: str
    pipeline_version: int
    accepted_at: datetime
    parked_at: datetime
    deadline_at: datetime
    served: bool


class ReprocessOutcome(StrEnum):
    """Answers to the wish for an image's next version."""

    QUEUED = "queued"
    IN_WORK = "in_work"  #: a job of this pipeline version is on its way already
    NOT_FOUND = "not_found"
    NOT_READY = "not_ready"  #: nothing stands for the image, so there is no published original
    OWNER_LIMIT = "owner_limit"
    BACKLOG_FULL = "backlog_full"


#: Answers that another moment may change, since there was no place.
NO_PLACE = frozenset({ReprocessOutcome.OWNER_LIMIT, ReprocessOutcome.BACKLOG_FULL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessTerms:
    """On which terms a new version takes its place; None does not bind."""

    pipeline_version: int
    jobs_max: int | None
    owner_jobs_max: int | None
    job_deadline_s: float
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingFilter:
    """Which images, by what stands for them now; None does not filter. Made before `made_before` (database clock)."""

    owner: str | None = None
    version_below: int | None = None
    made_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class StandingPage:
    """The images of one page that fit, and the id after which the next page starts, None after the last."""

    image_ids: list[UUID]
    next_after: UUID | None


@dataclass(frozen=True, slots=True)
class Superseded:
    """A job whose own result nobody can reach any more."""

    job_id: UUID
    image_id: UUID


class Versions:
    """Statements on versions, each bounded by its caller's `rows_max`."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries("versions.sql")

    async def parked(self, *, seen_s: float, rows_max: int) -> list[ParkedJob]:
        """Return parked jobs, the longest parked first; a worker seen within `seen_s` counts as alive."""
        rows = await self._db.many(self._sql.list_parked, seen_s=seen_s, rows_max=rows_max)
        return [ParkedJob(**row) for row in rows]

    async def count_parked(self) -> int:
        """Return how many jobs are parked, `PARKED_COUNT_MAX` for that many or more."""
        return int(await self._db.value(self._sql.count_parked, rows_max=PARKED_COUNT_MAX))

    async def is_served(self, pipeline_version: int, *, seen_s: float) -> bool:
        """Return whether a worker seen within `seen_s` serves a version of the pipeline."""
        sql = self._sql.is_version_served
        return bool(await self._db.value(sql, pipeline_version=pipeline_version, seen_s=seen_s))

    async def announce_parked(self, *, seen_s: float, rows_max: int) -> list[UUID]:
        """Announce the parked jobs whose version a worker seen within `seen_s` serves; they are parked no more."""
        rows = await self._db.many(self._sql.announce_parked, seen_s=seen_s, rows_max=rows_max)
        return [row["job_id"] for row in rows]

    async def reprocess(self, image_id: UUID, *, terms: ReprocessTerms) -> tuple[ReprocessOutcome, UUID]:
        """Queue an image's next version, read from its published original; returns the answer and the new job's id."""
        job_id = uuid.uuid4()
        answer = await self._db.value(self._sql.reprocess, image_id=image_id, job_id=job_id, **asdict(terms))
        return ReprocessOutcome(answer), job_id

    async def standing(self, wanted: StandingFilter, *, after: UUID | None, rows_max: int) -> StandingPage:
        """Return the images that fit among the next `rows_max` after an id, in the order of ids."""
        rows = await self._db.many(self._sql.standing_page, **asdict(wanted), after_id=after, rows_max=rows_max)
        fitting = [row["image_id"] for row in rows if row["fits"]]
        return StandingPage(fitting, rows[-1]["image_id"] if len(rows) == rows_max else None)

    async def outlook(self, image_id: UUID, *, pipeline_version: int) -> ReprocessOutcome:
        """Return what `reprocess` would answer if there were a place; changes nothing."""
        answer = await self._db.value(self._sql.reprocess_outlook, image_id=image_id, pipeline_version=pipeline_version)
        return ReprocessOutcome(answer)

    async def claim_superseded(self, *, keep_s: float, rows_max: int) -> list[Superseded]:
        """Return the jobs whose own objects are to go: left by the pointer `keep_s` ago, or passed over.

        Their rows name what stands for the image from here on.
        """
        rows = await self._db.many(self._sql.claim_superseded, keep_s=keep_s, rows_max=rows_max)
        return [Superseded(*row) for row in rows]

    async def note_results_gone(self, job_ids: list[UUID]) -> int:
        """Note that the own objects of these jobs are deleted; returns how many."""
        return len(await self._db.many(self._sql.note_results_gone, job_ids=job_ids))
