"""The routes of the registry: failed jobs of every owner, their replay, and what the broker gave up on.

Invariant: every one of them asks for a token with the scope `admin`, and what it changes is noted with that token's id.
"""

from typing import Annotated, Literal

from fastapi import Depends, Query, Request, Response

from app.api.admin_schemas import (
    OWNER_CHARS_MAX,
    OWNER_PATTERN,
    VERSION_MAX,
    AuditShown,
    DeadLetters,
    DeadLetterShown,
    FailedPage,
    InspectedShown,
    RegisteredShown,
    ReplayedShown,
    ReplaysShown,
    ReplaysWanted,
    moment_of,
)
from app.api.answers import json_response
from app.api.cursors import cursor_of, cursor_text
from app.api.ids import not_found, path_id
from app.api.json_body import json_pace, read_json
from app.api.services import Services
from app.core.jobstore import AdmitOutcome, ReplayOutcome
from app.core.registry import DEAD_LETTER_ROWS_MAX, NO_PLACE, FailedFilter, RegisteredJob
from app.core.telemetry import logger
from app.core.tokens import Scope
from contracts.errors import ErrorCode, FailureCode, ServiceError

#: Entries of a page when the client does not say.
PAGE_ROWS = 20
#: No `limit` asks for more than any setting allows; the setting itself cuts the page short.
ROWS_MAX = 1000

_NO_STORE = {"Cache-Control": "no-store"}
_REFUSALS = {
    ErrorCode.NOT_FAILED: "Only a failed job can be replayed.",
    ErrorCode.SOURCE_MISSING: "What the job was made from is gone.",
    ErrorCode.BACKLOG_FULL: "There is no place for the job: all are taken.",
    ErrorCode.STAGING_FULL: "There is no room for the job's file among those that wait.",
    ErrorCode.OWNER_LIMIT: "The job's owner has as much unfinished work as one may have.",
}

OwnerQuery = Annotated[
    str | None,
    Query(min_length=1, max_length=OWNER_CHARS_MAX, pattern=OWNER_PATTERN, description="Only jobs of this owner."),
]
CodeQuery = Annotated[FailureCode | None, Query(description="Only jobs that failed with this code.")]
SinceQuery = Annotated[str | None, Query(max_length=100, description="Only jobs that failed at this moment or later.")]
UntilQuery = Annotated[str | None, Query(max_length=100, description="Only jobs that failed before this moment.")]
VersionQuery = Annotated[
    int | None, Query(ge=1, le=VERSION_MAX, description="Only jobs made for this version of the pipeline.")
]
LimitQuery = Annotated[int, Query(alias="limit", ge=1, le=ROWS_MAX, description="Most entries of the page.")]
CursorQuery = Annotated[str | None, Query(description="`next_cursor` of the page before.")]
DryRunQuery = Annotated[Literal["true", "false"], Query(description="`true`: say what would be, and change nothing.")]


def wanted_jobs(
    *,
    owner: OwnerQuery = None,
    code: CodeQuery = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    pipeline_version: VersionQuery = None,
) -> FailedFilter:
    """Return which failed jobs a query asks for.

    Raises:
        ServiceError: `invalid_field`.
    """
    return FailedFilter(
        owner=owner,
        code=code,
        since=moment_of(since),
        until=moment_of(until),
        pipeline_version=pipeline_version,
    )


WantedJobs = Annotated[FailedFilter, Depends(wanted_jobs)]


class AdminRoutes:
    """The handlers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._registry = services.registry
        self._pace = json_pace(services.settings)

    async def page(
        self, request: Request, wanted: WantedJobs, rows_max: LimitQuery = PAGE_ROWS, cursor: CursorQuery = None
    ) -> Response:
        """Show one page of failed jobs."""
        await self._who(request)
        rows = min(rows_max, self._services.settings.page_rows_max)
        # One more than asked for tells whether there is another page.
        found = await self._registry.failed(wanted, before=cursor_of(cursor), rows_max=rows + 1)
        jobs = found[:rows]
        shown = FailedPage(
            jobs=[RegisteredShown.of(job) for job in jobs],
            next_cursor=cursor_text(jobs[-1].cursor) if len(found) > rows else None,
        )
        return json_response(shown.model_dump_json(exclude_none=True), status=200, headers=_NO_STORE)

    async def inspect(self, job_id: str, request: Request) -> Response:
        """Show a job of any owner, and what was done to it by hand."""
        await self._who(request)
        job = await self._found(job_id)
        audit = [AuditShown.of(entry) for entry in await self._registry.audit_of(job.job_id)]
        shown = InspectedShown(**RegisteredShown.of(job).model_dump(), audit=audit)
        return json_response(shown.model_dump_json(exclude_none=True), status=200, headers=_NO_STORE)

    async def replay(self, job_id: str, request: Request, dry_run: DryRunQuery = "false") -> Response:
        """Queue a failed job anew under its id, when its file and a place are there."""
        who = await self._who(request)
        job = await self._found(job_id)
        if dry_run == "true":
            self._check(job.outlook, job)
            return _job_response(job, status=200)
        self._check(await self._replay(job, who=who), job)
        return _job_response(job.replayed, status=202)

    async def replay_many(self, request: Request) -> Response:
        """Queue failed jobs anew, oldest failure first, until the limit is reached or places run out."""
        who = await self._who(request)
        asked = await read_json(request, ReplaysWanted, pace=self._pace)
        rows = min(asked.limit, self._services.settings.page_rows_max)
        done, stopped_by, last = list[ReplayedShown](), None, cursor_of(asked.cursor)
        jobs = await self._registry.failed_in_turn(asked.filter(), after=last, rows_max=rows)
        for job in jobs:
            outcome = job.outlook if asked.dry_run else await self._replay(job, who=who)
            if outcome in NO_PLACE:
                stopped_by = outcome.value
                break
            done.append(ReplayedShown(job_id=str(job.job_id), outcome=outcome.value))
            last = job.cursor
        more = stopped_by is not None or len(jobs) == rows
        shown = ReplaysShown(
            dry_run=asked.dry_run,
            outcomes=done,
            stopped_by=stopped_by,
            next_cursor=cursor_text(last) if more and last is not None else None,
        )
        return json_response(shown.model_dump_json(exclude_none=True), status=200, headers=_NO_STORE)

    async def dead_letters(self, request: Request, rows_max: LimitQuery = PAGE_ROWS) -> Response:
        """Show what the broker gave up on, last seen first; no more of it is kept than one page can show."""
        await self._who(request)
        letters = await self._registry.dead_letters(rows_max=min(rows_max, DEAD_LETTER_ROWS_MAX))
        shown = DeadLetters(dead_letters=[DeadLetterShown.of(letter) for letter in letters])
        return json_response(shown.model_dump_json(exclude_none=True), status=200, headers=_NO_STORE)

    async def _who(self, request: Request) -> str:
        identity = await self._services.authenticator.require(request.headers.raw, Scope.ADMIN)
        return f"token {identity.token_id}"

    async def _found(self, job_id: str) -> RegisteredJob:
        job = await self._registry.find(path_id(job_id))
        if job is None:
            raise not_found()
        return job

    async def _replay(self, job: RegisteredJob, *, who: str) -> ReplayOutcome:
        """Ask for the replay within the bounds that uploads have now."""
        admission, settings = self._services.admission, self._services.settings
        if admission.snapshot is None:
            raise admission.outage()
        outcome = await self._services.jobs.replay(
            job.job_id, bounds=admission.bounds, job_deadline_s=settings.job_deadline_s, who=who
        )
        if outcome is ReplayOutcome.QUEUED:
            logger().info("job.replayed", job_id=str(job.job_id), who=who)
        return outcome

    def _check(self, outcome: ReplayOutcome, job: RegisteredJob) -> None:
        """Raise the refusal that an outcome is.

        Raises:
            ServiceError: `not_failed`, `source_missing`, `owner_limit`, `backlog_full` or `staging_full`.
        """
        if outcome is ReplayOutcome.QUEUED:
            return
        code, wait_s = ErrorCode(outcome.value), None
        if outcome in NO_PLACE:
            # Noted as an upload's: until the next snapshot nobody need ask again what was just answered.
            admission = self._services.admission
            admission.note_try()
            noted = admission.note_outcome(AdmitOutcome(outcome.value), owner=job.owner, held_bytes=job.source_bytes)
            wait_s = None if noted is None else noted.retry_after_s
        raise ServiceError(code, _REFUSALS[code], retry_after_s=wait_s)


def _job_response(job: RegisteredJob, *, status: int) -> Response:
    shown = RegisteredShown.of(job)
    return json_response(shown.model_dump_json(exclude_none=True), status=status, headers=_NO_STORE)
