"""What an owner may see of jobs: reads only, none of which changes, restarts or prolongs anything."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.core.jobstore import Source, StoredVariant
from app.core.postgres import Database, Record, load_queries
from contracts.errors import FailureCode
from contracts.images import ImageFormat, VariantName
from contracts.jobs import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as its owner sees it. `version` rises with every change that can be seen.

    One that is ready shows the results that stand for its image now, its own or newer ones. `kept_from` is the moment
    from which a final job's time of keeping runs: the end of the image's first job, for a result. `message_created_at`
    is set when a message names it: it then lives as long as that message.
    """

    job_id: UUID
    image_id: UUID
    state: JobState
    version: int
    accepted_at: datetime
    finished_at: datetime | None
    kept_from: datetime | None
    error_code: FailureCode | None
    variants: tuple[StoredVariant, ...]
    source: Source
    message_created_at: datetime | None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last entry of a page: the next one starts after it."""

    at: datetime
    id: UUID


class JobViews:
    """Reads of jobs."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries("jobs.sql")

    async def find_job(self, job_id: UUID, *, owner: str) -> JobView | None:
        """Return an owner's job; foreign, unknown and not yet accepted ones look the same."""
        row = await self._db.one(self._sql.find_job, job_id=job_id, owner=owner)
        return None if row is None else view_of(row)

    async def find_image(self, image_id: UUID, *, owner: str) -> JobView | None:
        """Return the job that stands for an owner's image: its newest ready one, or else its newest."""
        row = await self._db.one(self._sql.find_image, image_id=image_id, owner=owner)
        return None if row is None else view_of(row)

    async def jobs_of_image(self, image_id: UUID, *, owner: str) -> list[UUID]:
        """Return the ids of all jobs of an owner's image."""
        rows = await self._db.many(self._sql.jobs_of_image, image_id=image_id, owner=owner)
        return [row["id"] for row in rows]

    async def list_jobs(
        self, *, owner: str, states: list[JobState] | None, before: Cursor | None, rows_max: int
    ) -> list[JobView]:
        """Return one page of an owner's jobs, newest first; `states` None means all."""
        rows = await self._db.many(
            self._sql.list_jobs,
            owner=owner,
            states=states,
            before_at=None if before is None else before.at,
            before_id=None if before is None else before.id,
            rows_max=rows_max,
        )
        return [view_of(row) for row in rows]

    async def changed(self, known: Sequence[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
        """Return which of these jobs, each with the version that is known of it, have another one or are gone."""
        rows = await self._db.many(
            self._sql.changed_jobs,
            job_ids=[job_id for job_id, _ in known],
            versions=[version for _, version in known],
        )
        return [(row["id"], row["version"]) for row in rows]


def view_of(row: Record) -> JobView:
    """Read a row that has the columns of a job view."""
    return JobView(
        job_id=row["id"],
        image_id=row["image_id"],
        state=JobState(row["state"]),
        version=row["version"],
        accepted_at=row["accepted_at"],
        finished_at=row["finished_at"],
        kept_from=row["kept_from"],
        error_code=None if row["error_code"] is None else FailureCode(row["error_code"]),
        variants=tuple(
            StoredVariant(**{**item, "name": VariantName(item["name"])}) for item in json.loads(row["variants"] or "[]")
        ),
        source=Source(
            source_bytes=row["source_bytes"],
            sha256=row["source_sha256"],
            format=ImageFormat(row["source_format"]),
            width=row["source_width"],
            height=row["source_height"],
        ),
        message_created_at=row["message_created_at"],
    )
