"""The only writer of job state: one method per named statement, each guarded by the old state and a token.

Zero rows changed is an answer (`None` or False), never an error. Every method raises `DatabaseUnavailableError`
when the database does not answer; its `outcome_unknown` says whether the row must be asked again.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.core.postgres import Database, Record, load_queries
from contracts.errors import FailureCode
from contracts.images import ImageFormat, TransformParams, VariantName
from contracts.jobs import JobState
from contracts.messages import PIPELINE_VERSION


class AdmitOutcome(StrEnum):
    """Answers of the gate."""

    ADMITTED = "admitted"
    BACKLOG_FULL = "backlog_full"
    STAGING_FULL = "staging_full"


class ReplayOutcome(StrEnum):
    """Answers to a replay."""

    QUEUED = "queued"
    NOT_FAILED = "not_failed"
    SOURCE_MISSING = "source_missing"
    BACKLOG_FULL = "backlog_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What `admit` enforces; None does not bind."""

    jobs_max: int | None
    staging_bytes_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A place and bytes asked for before the body: ids and token are made by the caller."""

    job_id: UUID
    image_id: UUID
    owner: str
    upload_token: UUID
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is known of the uploaded file; width and height (pixels) are None when the first bytes do not tell."""

    source_bytes: int
    sha256: str
    format: ImageFormat
    width: int | None
    height: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One worker's hold on one job: every write carries `claim_token`."""

    job_id: UUID
    image_id: UUID
    owner: str
    claim_token: int
    attempts_spent: int
    deaths: int
    source_bytes: int
    source_sha256: str
    source_format: ImageFormat
    params: TransformParams


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVariant:
    """One stored result: where it is and what must be there."""

    name: VariantName
    key: str
    sha256: str
    size_bytes: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What an owner may see of a job."""

    job_id: UUID
    image_id: UUID
    state: JobState
    accepted_at: datetime
    finished_at: datetime | None
    error_code: FailureCode | None
    variants: tuple[StoredVariant, ...]
    source: Source


class JobStore:
    """Transitions and reads of jobs."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries("jobs.sql")

    async def admit(
        self, reservation: Reservation, *, bounds: Bounds, lease_s: float, deadline_s: float
    ) -> AdmitOutcome:
        """Take a place and `held_bytes`, all or nothing; the lease must be renewed until the accept."""
        answer = await self._db.value(
            self._sql.admit, **asdict(reservation), **asdict(bounds), lease_s=lease_s, deadline_s=deadline_s
        )
        return AdmitOutcome(answer)

    async def accept(self, *, job_id: UUID, upload_token: UUID, source: Source, job_deadline_s: float) -> bool:
        """Make the reservation a queued job with its announcement; False when the reservation is gone."""
        accepted = await self._db.value(
            self._sql.accept,
            job_id=job_id,
            upload_token=upload_token,
            **asdict(source),
            pipeline_version=PIPELINE_VERSION,
            job_deadline_s=job_deadline_s,
        )
        return bool(accepted)

    async def renew_uploads(self, held: dict[UUID, UUID], *, lease_s: float) -> set[UUID]:
        """Extend the leases of the uploads in hand (job id → token); returns the ids that are still ours."""
        rows = await self._db.many(
            self._sql.renew_uploads,
            job_ids=list(held.keys()),
            upload_tokens=list(held.values()),
            lease_s=lease_s,
        )
        return {row["id"] for row in rows}

    async def drop_upload(self, *, job_id: UUID, upload_token: UUID) -> bool:
        """End a reservation without a job; the janitor deletes its object and gives its bytes back."""
        return bool(await self._db.value(self._sql.drop_upload, job_id=job_id, upload_token=upload_token))

    async def upload_state(self, *, job_id: UUID, upload_token: UUID) -> JobState | None:
        """Return what became of a reservation, for a caller that lost an answer."""
        state = await self._db.value(self._sql.upload_state, job_id=job_id, upload_token=upload_token)
        return None if state is None else JobState(state)

    async def claim(self, job_id: UUID, *, worker_id: UUID, lease_s: float, params: TransformParams) -> Claim | None:
        """Take a queued, due job; None when there is nothing to do (the row decides when it runs again)."""
        row = await self._db.one(
            self._sql.claim,
            job_id=job_id,
            worker_id=worker_id,
            lease_s=lease_s,
            transform_params=json.dumps(asdict(params)),
        )
        return None if row is None else _claim_of(row)

    async def extend_leases(self, held: dict[UUID, int], *, lease_s: float) -> dict[UUID, JobState]:
        """Extend the leases of the jobs in hand (job id → claim token); returns those still held, with their state."""
        rows = await self._db.many(
            self._sql.extend_leases,
            job_ids=list(held.keys()),
            claim_tokens=list(held.values()),
            lease_s=lease_s,
        )
        return {row["id"]: JobState(row["state"]) for row in rows}

    async def complete(self, job_id: UUID, *, claim_token: int, variants: tuple[StoredVariant, ...]) -> JobState | None:
        """End the job `ready` (or `cancelled`, when that was asked); None when the claim was lost: nothing changed."""
        state = await self._db.value(
            self._sql.complete,
            job_id=job_id,
            claim_token=claim_token,
            variants=json.dumps([asdict(variant) for variant in variants]),
        )
        return None if state is None else JobState(state)

    async def fail(self, job_id: UUID, *, claim_token: int, code: FailureCode) -> JobState | None:
        """End the job `failed` with a code; None when the claim was lost."""
        state = await self._db.value(self._sql.fail, job_id=job_id, claim_token=claim_token, code=code.value)
        return None if state is None else JobState(state)

    async def retry(
        self, job_id: UUID, *, claim_token: int, delay_s: float, attempt_spent: bool, attempts_max: int
    ) -> JobState | None:
        """Send the job back to the queue, due after `delay_s`; ends it `failed` when attempts or time are spent."""
        state = await self._db.value(
            self._sql.retry,
            job_id=job_id,
            claim_token=claim_token,
            delay_s=delay_s,
            attempt_spent=attempt_spent,
            attempts_max=attempts_max,
        )
        return None if state is None else JobState(state)

    async def hand_back_unheld(self, *, worker_id: UUID, held_ids: list[UUID]) -> list[UUID]:
        """Requeue what this worker claimed without getting the answer; no attempt and no death is counted."""
        rows = await self._db.many(self._sql.hand_back_unheld, worker_id=worker_id, held_ids=held_ids)
        return [row["job_id"] for row in rows]

    async def cancel(self, job_id: UUID, *, owner: str) -> JobState | None:
        """Cancel a queued job or ask a processing one to stop; None when there is nothing to cancel."""
        state = await self._db.value(self._sql.cancel, job_id=job_id, owner=owner)
        return None if state is None else JobState(state)

    async def replay(self, job_id: UUID, *, bounds: Bounds, job_deadline_s: float) -> ReplayOutcome:
        """Queue a failed job anew under its id, when its source is there and a place is free."""
        answer = await self._db.value(
            self._sql.replay, job_id=job_id, jobs_max=bounds.jobs_max, job_deadline_s=job_deadline_s
        )
        return ReplayOutcome(answer)

    async def expire(self, job_id: UUID) -> bool:
        """End a final job's retention; its objects are swept afterwards."""
        return bool(await self._db.value(self._sql.expire, job_id=job_id))

    async def find_job(self, job_id: UUID, *, owner: str) -> JobView | None:
        """Return an owner's job; foreign, unknown and not yet accepted ones look the same."""
        row = await self._db.one(self._sql.find_job, job_id=job_id, owner=owner)
        return None if row is None else _view_of(row)

    async def export_jobs(self, *, since: datetime, rows_max: int) -> list[dict[str, Any]]:
        """Return every stamp of the jobs admitted since a moment (database clock), for measurements."""
        rows = await self._db.many(self._sql.export_jobs, since=since, rows_max=rows_max)
        return [dict(row) for row in rows]


def _claim_of(row: Record) -> Claim:
    return Claim(
        job_id=row["id"],
        image_id=row["image_id"],
        owner=row["owner"],
        claim_token=row["claim_token"],
        attempts_spent=row["attempts_spent"],
        deaths=row["deaths"],
        source_bytes=row["source_bytes"],
        source_sha256=row["source_sha256"],
        source_format=ImageFormat(row["source_format"]),
        params=TransformParams(**json.loads(row["transform_params"])),
    )


def _view_of(row: Record) -> JobView:
    return JobView(
        job_id=row["id"],
        image_id=row["image_id"],
        state=JobState(row["state"]),
        accepted_at=row["accepted_at"],
        finished_at=row["finished_at"],
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
    )
