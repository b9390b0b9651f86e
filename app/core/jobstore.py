"""The only writer of job state: one method per named statement, each guarded by the old state and a token.

Zero rows changed is an answer (`None` or False), never an error. Every method raises `DatabaseUnavailableError`
when the database does not answer; its `outcome_unknown` says whether the row must be asked again.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
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
    KEY_TAKEN = "key_taken"
    OWNER_LIMIT = "owner_limit"
    BACKLOG_FULL = "backlog_full"
    STAGING_FULL = "staging_full"


class EraseOutcome(StrEnum):
    """Answers to an erase."""

    STOPPING = "stopping"  #: a worker still holds a job of the image: ask again
    ERASED = "erased"  #: every job is expired, the objects may be deleted


class ReplayOutcome(StrEnum):
    """Answers to a replay."""

    QUEUED = "queued"
    NOT_FAILED = "not_failed"
    SOURCE_MISSING = "source_missing"
    OWNER_LIMIT = "owner_limit"
    BACKLOG_FULL = "backlog_full"
    STAGING_FULL = "staging_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What `admit` enforces; None does not bind."""

    jobs_max: int | None
    staging_bytes_max: int | None
    owner_jobs_max: int | None = None


class Operation(StrEnum):
    """What an upload makes; keys of different operations never meet."""

    IMAGE = "image"
    ATTACHMENT = "attachment"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadKey:
    """An Idempotency-Key to be claimed together with the place, for `lifetime_s` seconds from now."""

    operation: Operation
    key: str
    lifetime_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a client says of a file that it will send straight to the store."""

    source_bytes: int
    sha256: str  #: lower-case hexadecimal
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A place and bytes asked for before the body: ids and token are made by the caller."""

    job_id: UUID
    image_id: UUID
    owner: str
    upload_token: UUID
    held_bytes: int
    key: UploadKey | None = None
    declared: Declared | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """The job that a key stands for; `fingerprint` is None while its upload is on its way."""

    job_id: UUID
    image_id: UUID
    attachment_id: UUID | None
    state: JobState
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place taken before the bytes, `left_s` seconds before its deadline."""

    job_id: UUID
    image_id: UUID
    upload_token: UUID
    declared: Declared
    left_s: float


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
    pipeline_version: int
    reads_original: bool  #: its source is the image's published original, not a file in staging

    @property
    def hand_backs(self) -> int:
        """How many earlier claims spent no attempt and were no death; those before a replay all count."""
        return self.claim_token - 1 - self.attempts_spent - self.deaths


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVariant:
    """One stored result: where it is and what must be there."""

    name: VariantName
    key: str
    sha256: str
    size_bytes: int
    width: int
    height: int


class JobStore:
    """Transitions and reads of jobs."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries("jobs.sql")

    async def admit(
        self, reservation: Reservation, *, bounds: Bounds, lease_s: float, deadline_s: float
    ) -> AdmitOutcome:
        """Take key, share, place and `held_bytes`, all or nothing; the lease must be renewed until the accept."""
        key, declared = reservation.key, reservation.declared
        answer = await self._db.value(
            self._sql.admit,
            job_id=reservation.job_id,
            image_id=reservation.image_id,
            owner=reservation.owner,
            upload_token=reservation.upload_token,
            held_bytes=reservation.held_bytes,
            **asdict(bounds),
            lease_s=lease_s,
            deadline_s=deadline_s,
            operation=None if key is None else key.operation.value,
            key=None if key is None else key.key,
            key_s=None if key is None else key.lifetime_s,
            declared_bytes=None if declared is None else declared.source_bytes,
            declared_sha256=None if declared is None else declared.sha256,
            declared_media_type=None if declared is None else declared.media_type,
        )
        return AdmitOutcome(answer)

    async def accept(
        self,
        *,
        job_id: UUID,
        upload_token: UUID,
        source: Source,
        job_deadline_s: float,
        attachment_id: UUID | None = None,
    ) -> bool:
        """Make the reservation a queued job with its announcement; False when the reservation is gone.

        In the same statement its key is completed and, when an id is given, it becomes an attachment.
        """
        accepted = await self._db.value(
            self._sql.accept,
            job_id=job_id,
            upload_token=upload_token,
            **asdict(source),
            pipeline_version=PIPELINE_VERSION,
            job_deadline_s=job_deadline_s,
            attachment_id=attachment_id,
        )
        return bool(accepted)

    async def find_key(self, *, owner: str, operation: Operation, key: str) -> KnownKey | None:
        """Return what a key stands for, or None when it is free."""
        row = await self._db.one(self._sql.find_key, owner=owner, operation=operation.value, key=key)
        if row is None:
            return None
        return KnownKey(**{**row, "state": JobState(row["state"])})

    async def find_place(self, job_id: UUID, *, owner: str) -> Place | None:
        """Return an owner's open place that was taken before the bytes."""
        row = await self._db.one(self._sql.find_place, job_id=job_id, owner=owner)
        if row is None:
            return None
        declared = Declared(
            source_bytes=row["declared_bytes"], sha256=row["declared_sha256"], media_type=row["declared_media_type"]
        )
        return Place(
            job_id=row["id"],
            image_id=row["image_id"],
            upload_token=row["upload_token"],
            declared=declared,
            left_s=row["left_s"],
        )

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

    async def claim(
        self,
        job_id: UUID,
        *,
        worker_id: UUID,
        lease_s: float,
        params: TransformParams,
        pipeline_versions: Sequence[int] = (PIPELINE_VERSION,),
        alone: bool = True,
    ) -> Claim | None:
        """Take a queued, due job of a version that is served; None when there is nothing to do.

        The row decides when it runs again, or `park` does when its version is another one. Whoever holds other claims
        of the same process beside it is not `alone`, and does not get a job that a worker has died of.
        """
        row = await self._db.one(
            self._sql.claim,
            job_id=job_id,
            worker_id=worker_id,
            lease_s=lease_s,
            transform_params=json.dumps(_fields_of(params)),
            pipeline_versions=list(pipeline_versions),
            alone=alone,
        )
        return None if row is None else _claim_of(row)

    async def is_suspect(self, job_id: UUID, *, pipeline_versions: Sequence[int]) -> bool:
        """Return whether a worker has died of a job that could be claimed."""
        versions = list(pipeline_versions)
        return bool(await self._db.value(self._sql.is_suspect, job_id=job_id, pipeline_versions=versions))

    async def park(self, job_id: UUID, *, pipeline_versions: Sequence[int]) -> int | None:
        """Park a queued job of none of these versions until a worker serves it; returns its version, or None."""
        version = await self._db.value(self._sql.park, job_id=job_id, pipeline_versions=list(pipeline_versions))
        return None if version is None else int(version)

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
            variants=json.dumps([_fields_of(variant) for variant in variants]),
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

    async def replay(self, job_id: UUID, *, bounds: Bounds, job_deadline_s: float, who: str) -> ReplayOutcome:
        """Queue a failed job anew under its id, when its source is there and a place is free; `who` asked for it."""
        answer = await self._db.value(
            self._sql.replay, job_id=job_id, **asdict(bounds), job_deadline_s=job_deadline_s, who=who
        )
        return ReplayOutcome(answer)

    async def erase_image(self, image_id: UUID, *, owner: str) -> EraseOutcome | None:
        """Cancel and expire every job of an owner's image; None when there is no such image."""
        answer = await self._db.value(self._sql.erase_image, image_id=image_id, owner=owner)
        return None if answer is None else EraseOutcome(answer)

    async def export_jobs(self, *, since: datetime, rows_max: int) -> list[dict[str, Any]]:
        """Return every stamp of the jobs admitted since a moment (database clock), for measurements."""
        rows = await self._db.many(self._sql.export_jobs, since=since, rows_max=rows_max)
        return [dict(row) for row in rows]


def _fields_of(value: StoredVariant | TransformParams) -> dict[str, object]:
    # `asdict` copies deeply, which costs a tenth of a worker's time in a job without pixels.
    return {field.name: getattr(value, field.name) for field in fields(value)}


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
        pipeline_version=row["pipeline_version"],
        reads_original=row["reads_original"],
    )
