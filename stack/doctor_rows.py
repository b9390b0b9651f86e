"""What the doctor asks the rows, and the guarded statements by which it changes one.

Invariant: every change names what was seen, and changes nothing when that is no longer so.
"""

import json
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

from app.core.postgres import Database, load_queries
from contracts.jobs import JobState

#: Rows read at once.
ROWS_MAX = 500
FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)

#: In these nothing more is written for a job; an expired or cancelled one is swept.
_SWEPT = frozenset({JobState.CANCELLED, JobState.EXPIRED})
_FINAL = _SWEPT | {JobState.READY, JobState.FAILED}


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a job's row says of its objects."""

    job_id: UUID
    image_id: UUID
    state: JobState
    held_bytes: int
    sweep_due: bool
    results_gone: bool

    @property
    def swept(self) -> bool:
        """No variant of the job is to be in the store, and no sweep is to come."""
        return self.results_gone or (self.state in _SWEPT and not self.sweep_due)

    @property
    def source_gone(self) -> bool:
        """The staged file was deleted, and nothing can ask for it any more."""
        return self.state in _FINAL and self.held_bytes == 0 and not self.sweep_due


@dataclass(frozen=True, slots=True)
class ExpectedSource:
    """A job whose staged file must be there."""

    job_id: UUID
    state: JobState
    version: int
    pipeline_version: int
    held_bytes: int
    since: datetime


@dataclass(frozen=True, slots=True)
class ExpectedResults:
    """The job that an image's pointer names, and the keys of its variants."""

    job_id: UUID
    image_id: UUID
    version: int
    variant_keys: tuple[str, ...]
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Numbers of the gate, or by how much they differ from the sums over the rows."""

    jobs_held: int
    staging_bytes: int
    failed_source_bytes: int


BOOK_NAMES = ("jobs_held", "staging_bytes", "failed_source_bytes")


class DoctorRows:
    """The doctor's statements on one database."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries(str(Path(__file__).with_name("doctor.sql")))

    async def jobs(self, job_ids: Collection[UUID]) -> dict[UUID, JobFacts]:
        """Return those of these jobs that have a row."""
        rows = await self._db.many(self._sql.jobs_of_objects, job_ids=list(job_ids))
        return {row["id"]: JobFacts(row["id"], row["image_id"], JobState(row["state"]), *row[3:]) for row in rows}

    async def images_needed(self, image_ids: Collection[UUID]) -> dict[UUID, bool]:
        """Return for each of these images with a row whether what is published of it is needed, or will be swept."""
        rows = await self._db.many(self._sql.images_of_objects, image_ids=list(image_ids))
        return {row["image_id"]: row["needed"] for row in rows}

    async def sources(self, *, job_ids: Collection[UUID] | None = None) -> AsyncIterator[list[ExpectedSource]]:
        """Yield the jobs whose staged file must be there, or those of `job_ids` of which it is still so, in pages."""
        after = FIRST_ID
        while True:
            rows = await self._db.many(
                self._sql.sources_expected,
                after=after,
                job_ids=None if job_ids is None else list(job_ids),
                rows_max=ROWS_MAX,
            )
            if not rows:
                return
            yield [ExpectedSource(row["id"], JobState(row["state"]), *row[2:]) for row in rows]
            after = rows[-1]["id"]

    async def results(
        self, *, after: UUID = FIRST_ID, upto: UUID = LAST_ID, image_ids: Collection[UUID] | None = None
    ) -> AsyncIterator[list[ExpectedResults]]:
        """Yield what the pointers of a range of images name, or of those among `image_ids`, in pages."""
        while True:
            rows = await self._db.many(
                self._sql.results_expected,
                after=after,
                upto=upto,
                image_ids=None if image_ids is None else list(image_ids),
                rows_max=ROWS_MAX,
            )
            if not rows:
                return
            yield [
                ExpectedResults(row["id"], row["image_id"], row["version"], _keys_in(row["variants"]), row["since"])
                for row in rows
            ]
            after = rows[-1]["image_id"]

    async def janitors(self, *, seen_s: float) -> int:
        """Return how many janitors are alive: seen within so many seconds."""
        return int(await self._db.value(self._sql.janitors_alive, seen_s=seen_s))

    async def books(self) -> tuple[Books, Books] | None:
        """Return the books and the sums over the rows, of one moment; None when there are no books."""
        row = await self._db.one(self._sql.books_and_sums)
        if row is None:
            return None
        books = Books(**{name: row[name] for name in BOOK_NAMES})
        return books, Books(**{name: row[f"{name}_sum"] for name in BOOK_NAMES})

    async def shares(self) -> list[tuple[str, int, int]]:
        """Return owners whose share differs: name, share, count over the rows."""
        rows = await self._db.many(self._sql.shares_that_differ, rows_max=ROWS_MAX)
        return [(row["owner"], row["jobs_held"], row["jobs_held_sum"]) for row in rows]

    async def needless_announcements(self, *, age_s: float) -> list[tuple[int, UUID, str, datetime]]:
        """Return announcements of jobs that do not wait: id, job, its state, since when."""
        rows = await self._db.many(self._sql.needless_announcements, age_s=age_s, rows_max=ROWS_MAX)
        return [(row["id"], row["job_id"], row["state"], row["since"]) for row in rows]

    async def never_announced(self, *, age_s: float) -> list[tuple[UUID, int, datetime]]:
        """Return jobs that are due and that nobody will announce: id, version, since when."""
        rows = await self._db.many(self._sql.never_announced, age_s=age_s, rows_max=ROWS_MAX)
        return [(row["id"], row["version"], row["since"]) for row in rows]

    async def waiting_in_the_broker(self, *, quiet_s: float) -> tuple[int, datetime | None]:
        """Return how many jobs were published so long ago and wait, and since when the first one does."""
        row = await self._db.one(self._sql.waiting_in_the_broker, quiet_s=quiet_s)
        return (0, None) if row is None else (row["jobs"], row["since"])

    async def mark_for_sweep(self, *, job_ids: Collection[UUID], image_ids: Collection[UUID]) -> int:
        """Have the objects of cancelled and expired jobs looked at once more; returns how many jobs."""
        rows = await self._db.many(self._sql.mark_for_sweep, job_ids=list(job_ids), image_ids=list(image_ids))
        return len(rows)

    async def mark_source_gone(self, job_id: UUID, *, version: int) -> bool:
        """Note that a failed job cannot be replayed; False when it is not the one that was seen."""
        return bool(await self._db.value(self._sql.mark_source_gone, job_id=job_id, version=version))

    async def mend_books(self, drift: Books) -> bool:
        """Add `drift` to the books, which makes them the sums; False when that is not so, or somebody was faster."""
        return bool(
            await self._db.value(
                self._sql.mend_books,
                jobs_held=drift.jobs_held,
                staging_bytes=drift.staging_bytes,
                failed_source_bytes=drift.failed_source_bytes,
            )
        )

    async def write_gate_anew(self) -> None:
        """Write the gate's row with the sums over the rows, if it is missing."""
        await self._db.value(self._sql.write_gate_anew)

    async def mend_share(self, owner: str, *, drift_jobs: int) -> bool:
        """Add `drift_jobs` to an owner's share, which makes it the count; False as with `mend_books`.

        An owner without a share has one afterwards, for the next try.
        """
        mended = await self._db.value(self._sql.mend_share, owner=owner, jobs_held=drift_jobs)
        if not mended:
            await self._db.value(self._sql.open_share, owner=owner)
        return bool(mended)

    async def delete_announcement(self, announcement_id: int) -> bool:
        """Delete an announcement whose job does not wait; False when it does, or it is gone."""
        return bool(await self._db.value(self._sql.delete_needless_announcement, announcement_id=announcement_id))


def _keys_in(variants: str) -> tuple[str, ...]:
    return tuple(sorted(variant["key"] for variant in json.loads(variants)))
