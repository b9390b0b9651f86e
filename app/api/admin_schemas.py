"""The JSON of the registry, as those see and send it who look after the service.

Invariant: no bytes, no names of files, no addresses of results: who may do things again need not see what they are of.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.core.jobstore import ReplayOutcome
from app.core.registry import AuditEntry, DeadLetter, FailedFilter, RegisteredJob
from contracts.errors import ErrorCode, FailureCode, ServiceError

OWNER_CHARS_MAX = 200
#: The database's texts hold no NUL.
OWNER_PATTERN = r"^[^\u0000]+$"
VERSION_MAX = 2**31 - 1
#: Jobs that one request replays when it does not say, and at most; the page's setting cuts it short.
REPLAY_JOBS = 20
REPLAY_JOBS_MAX = 1000

OwnerText = Annotated[str, Field(min_length=1, max_length=OWNER_CHARS_MAX, pattern=OWNER_PATTERN)]
CodeText = Annotated[str, Field(json_schema_extra={"enum": [code.value for code in FailureCode]})]
JobsCount = Annotated[int, Field(ge=1, le=REPLAY_JOBS_MAX)]
MomentText = Annotated[str, Field(max_length=100, json_schema_extra={"format": "date-time"})]


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class RegisteredShown(_Shown):
    """A job of any owner; `bytes` and `format` are its file's; `replayable`: it failed, and its file is still there."""

    job_id: str
    image_id: str
    owner: str
    status: str
    error_code: str | None = None
    replayable: bool
    pipeline_version: int
    created_at: datetime
    finished_at: datetime | None = None
    attempts: int
    deaths: int
    claims: int
    bytes: int
    format: str

    @classmethod
    def of(cls, job: RegisteredJob) -> Self:
        """Return what is shown of a job."""
        return cls(
            job_id=str(job.job_id),
            image_id=str(job.image_id),
            owner=job.owner,
            status=job.state.value,
            error_code=None if job.error_code is None else job.error_code.value,
            replayable=job.outlook is ReplayOutcome.QUEUED,
            pipeline_version=job.pipeline_version,
            created_at=job.accepted_at,
            finished_at=job.finished_at,
            attempts=job.attempts_spent,
            deaths=job.deaths,
            claims=job.claim_token,
            bytes=job.source_bytes,
            format=job.source_format,
        )


class AuditShown(_Shown):
    """What somebody did to a job by hand: `who` is a token's id or the command line; the rest is what it was before."""

    at: datetime
    who: str
    action: str
    status_before: str
    error_code_before: str | None = None
    attempts_before: int
    deaths_before: int
    finished_before: datetime | None = None

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """Return what is shown of an entry."""
        return cls(
            at=entry.at,
            who=entry.who,
            action=entry.action,
            status_before=entry.state_before.value,
            error_code_before=None if entry.error_code_before is None else entry.error_code_before.value,
            attempts_before=entry.attempts_before,
            deaths_before=entry.deaths_before,
            finished_before=entry.finished_before,
        )


class InspectedShown(RegisteredShown):
    """A job with what was done to it by hand, newest first."""

    audit: list[AuditShown]


class FailedPage(_Shown):
    """One page of failed jobs, newest failure first; `next_cursor` is missing on the last one."""

    jobs: list[RegisteredShown]
    next_cursor: str | None = None


class ReplayedShown(_Shown):
    """What became of one job's replay: `queued`, `not_failed` or `source_missing`."""

    job_id: str
    outcome: str


class ReplaysShown(_Shown):
    """What became of some jobs' replay, in turn; `stopped_by` says that places ran out, and which.

    `next_cursor` goes on where this ended; it is missing when nothing is left.
    """

    dry_run: bool
    outcomes: list[ReplayedShown]
    stopped_by: str | None = None
    next_cursor: str | None = None


class DeadLetterShown(_Shown):
    """A message that the broker gave up on, without its bytes."""

    sha256: str
    bytes: int
    reason: str
    job_id: str | None = None
    seen: int
    first_seen_at: datetime
    last_seen_at: datetime

    @classmethod
    def of(cls, letter: DeadLetter) -> Self:
        """Return what is shown of a dead letter."""
        return cls(
            sha256=letter.body_sha256,
            bytes=letter.body_bytes,
            reason=letter.reason.value,
            job_id=None if letter.job_id is None else str(letter.job_id),
            seen=letter.seen_count,
            first_seen_at=letter.first_seen_at,
            last_seen_at=letter.last_seen_at,
        )


class DeadLetters(_Shown):
    """Dead letters, last seen first."""

    dead_letters: list[DeadLetterShown]


class ReplaysWanted(BaseModel):
    """Which failed jobs to replay, oldest failure first; a dry run changes nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    owner: OwnerText | None = None
    code: CodeText | None = None
    since: MomentText | None = None
    until: MomentText | None = None
    pipeline_version: int | None = Field(default=None, ge=1, le=VERSION_MAX)
    limit: JobsCount = REPLAY_JOBS
    cursor: str | None = None
    dry_run: bool = False

    @field_validator("owner", "code", "since", "until", "pipeline_version", "cursor", mode="before")
    @classmethod
    def _is_there(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("leave it out instead")
        return value

    @field_validator("pipeline_version", "limit", mode="before")
    @classmethod
    def _is_whole(cls, value: Any) -> Any:
        # In JSON a whole number may be written with a point.
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def filter(self) -> FailedFilter:
        """Return which jobs.

        Raises:
            ServiceError: `invalid_field`.
        """
        return FailedFilter(
            owner=self.owner,
            code=code_of(self.code),
            since=moment_of(self.since),
            until=moment_of(self.until),
            pipeline_version=self.pipeline_version,
        )


def code_of(text: str | None) -> FailureCode | None:
    """Return a failure code as it is written.

    Raises:
        ServiceError: `invalid_field`.
    """
    try:
        return None if text is None else FailureCode(text)
    except ValueError as error:
        raise ServiceError(ErrorCode.INVALID_FIELD, "The code is not one that jobs fail with.") from error


def moment_of(text: str | None) -> datetime | None:
    """Return a moment as it is written: ISO 8601 with its distance from UTC.

    Raises:
        ServiceError: `invalid_field`.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _no_moment() from error
    raise _no_moment()


def _no_moment() -> ServiceError:
    return ServiceError(ErrorCode.INVALID_FIELD, "Write a moment like 2026-01-31T12:00:00Z.")
