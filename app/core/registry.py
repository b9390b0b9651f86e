"""The registry: failed jobs of every owner, what was done to jobs by hand, and what the broker gave up on.

Invariant: reading changes nothing, and no change by hand goes without its entry in the audit.
"""

from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

from app.core.jobstore import ReplayOutcome
from app.core.jobviews import Cursor
from app.core.postgres import Database, Record, load_queries
from contracts.errors import FailureCode
from contracts.jobs import JobState

#: Failed jobs are counted up to here; a count that reaches it is "at least".
COUNT_ROWS_MAX = 100_000
#: Entries of one job's audit that are shown, newest first.
AUDIT_ROWS_SHOWN_MAX = 100
#: Different dead letters that are kept, those last seen longest ago go first.
DEAD_LETTER_ROWS_MAX = 1000
#: Audit entries that are kept, whatever their age; the oldest go first.
AUDIT_ROWS_MAX = 100_000

#: Answers to a replay that another try may change: places come free.
NO_PLACE = frozenset({ReplayOutcome.OWNER_LIMIT, ReplayOutcome.BACKLOG_FULL, ReplayOutcome.STAGING_FULL})

#: Who is written down for what was done on the command line, where there is no token.
COMMAND_LINE = "command line"


class DeadReason(StrEnum):
    """Why a message is a dead letter: it cannot be read, or what the broker says of one that can."""

    UNREADABLE = "unreadable"
    REJECTED = "rejected"
    DELIVERY_LIMIT = "delivery_limit"
    EXPIRED = "expired"
    LENGTH_LIMIT = "maxlen"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFilter:
    """Which failed jobs; None does not filter. They failed at `since` or later, and before `until`."""

    owner: str | None = None
    code: FailureCode | None = None
    since: datetime | None = None
    until: datetime | None = None
    pipeline_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredJob:
    """One job of any owner; `has_source`: what it was made from is there and stays, so it could start anew."""

    job_id: UUID
    image_id: UUID
    owner: str
    state: JobState
    error_code: FailureCode | None
    pipeline_version: int
    accepted_at: datetime
    finished_at: datetime | None
    attempts_spent: int
    deaths: int
    claim_token: int
    source_bytes: int
    source_format: str
    has_source: bool

    @property
    def outlook(self) -> ReplayOutcome:
        """What a replay would answer if there is a place for it."""
        if self.state is not JobState.FAILED:
            return ReplayOutcome.NOT_FAILED
        return ReplayOutcome.QUEUED if self.has_source else ReplayOutcome.SOURCE_MISSING

    @property
    def replayed(self) -> Self:
        """The job as its replay has made it, whatever has become of it since."""
        anew: dict[str, Any] = {"state": JobState.QUEUED, "error_code": None, "finished_at": None}
        return replace(self, **anew, attempts_spent=0, deaths=0)

    @property
    def cursor(self) -> Cursor:
        """The place of a failed job in the registry's order."""
        return Cursor(self.finished_at or self.accepted_at, self.job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """What somebody did to a job by hand (`who`: a token's id or the command line), and what it was before."""

    at: datetime
    who: str
    action: str
    state_before: JobState
    error_code_before: FailureCode | None
    attempts_before: int
    deaths_before: int
    finished_before: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """What the broker gave up on, without its bytes; `job_id` where it could be read."""

    body_sha256: str
    reason: DeadReason
    body_bytes: int
    job_id: UUID | None
    seen_count: int
    first_seen_at: datetime
    last_seen_at: datetime


class Registry:
    """Reads of failed jobs and dead letters, and what is done to jobs by hand beside the replay of `JobStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries("registry.sql")

    async def failed(self, wanted: FailedFilter, *, before: Cursor | None, rows_max: int) -> list[RegisteredJob]:
        """Return one page of failed jobs, newest failure first."""
        rows = await self._db.many(
            self._sql.failed_jobs,
            **asdict(wanted),
            before_at=None if before is None else before.at,
            before_id=None if before is None else before.id,
            rows_max=rows_max,
        )
        return [_job_of(row) for row in rows]

    async def failed_in_turn(self, wanted: FailedFilter, *, after: Cursor | None, rows_max: int) -> list[RegisteredJob]:
        """Return one page of failed jobs, oldest failure first: the order of replays."""
        rows = await self._db.many(
            self._sql.failed_jobs_in_turn,
            **asdict(wanted),
            after_at=None if after is None else after.at,
            after_id=None if after is None else after.id,
            rows_max=rows_max,
        )
        return [_job_of(row) for row in rows]

    async def count_failed(self, wanted: FailedFilter) -> int:
        """Return how many failed jobs fit, `COUNT_ROWS_MAX` for that many or more."""
        return int(await self._db.value(self._sql.count_failed_jobs, **asdict(wanted), rows_max=COUNT_ROWS_MAX))

    async def find(self, job_id: UUID) -> RegisteredJob | None:
        """Return a job of any owner and in any state but a reservation."""
        row = await self._db.one(self._sql.find_registered, job_id=job_id)
        return None if row is None else _job_of(row)

    async def now(self) -> datetime:
        """Return the moment by the database's clock, which stamps failures."""
        moment: datetime = await self._db.value(self._sql.database_now)
        return moment

    async def cancel(self, job_id: UUID, *, who: str) -> JobState | None:
        """Cancel a queued job of any owner or ask a processing one to stop; None when there is nothing to cancel."""
        state = await self._db.value(self._sql.cancel_by_hand, job_id=job_id, who=who)
        return None if state is None else JobState(state)

    async def audit_of(self, job_id: UUID) -> list[AuditEntry]:
        """Return what was done to a job by hand, newest first, also after its row is gone."""
        rows = await self._db.many(self._sql.audit_of_job, job_id=job_id, rows_max=AUDIT_ROWS_SHOWN_MAX)
        return [_entry_of(row) for row in rows]

    async def dead_letters(self, *, rows_max: int) -> list[DeadLetter]:
        """Return what the broker gave up on, last seen first."""
        rows = await self._db.many(self._sql.list_dead_letters, rows_max=rows_max)
        return [DeadLetter(**{**row, "reason": DeadReason(row["reason"])}) for row in rows]


def _job_of(row: Record) -> RegisteredJob:
    # By name: a view of a later release may have more columns than this one knows.
    values: dict[str, Any] = {field.name: row[field.name] for field in fields(RegisteredJob)}
    values["state"] = JobState(row["state"])
    values["error_code"] = _code_of(row["error_code"])
    return RegisteredJob(**values)


def _entry_of(row: Record) -> AuditEntry:
    known = {"state_before": JobState(row["state_before"]), "error_code_before": _code_of(row["error_code_before"])}
    return AuditEntry(**{**row, **known})


def _code_of(text: str | None) -> FailureCode | None:
    return None if text is None else FailureCode(text)
