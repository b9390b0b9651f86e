"""`spillway jobs`: jobs of every owner as an operator sees them, and what may be done about those that failed.

Invariant: nothing here changes a job but by the guarded statements that the roles use too, and none without its entry
in the audit. Works on a stack's database, or on the one that SPILLWAY_DATABASE_URL names.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any
from uuid import UUID

import typer

from app.api.admin_schemas import AuditShown, DeadLetterShown, RegisteredShown
from app.core.clock import monotonic_s
from app.core.jobstore import JobStore, ReplayOutcome
from app.core.postgres import Database
from app.core.processes import ProcessRegister
from app.core.registry import (
    COMMAND_LINE,
    COUNT_ROWS_MAX,
    DEAD_LETTER_ROWS_MAX,
    AuditEntry,
    DeadLetter,
    FailedFilter,
    RegisteredJob,
    Registry,
)
from app.core.settings import Settings
from contracts.jobs import JobState
from stack.bulk import Ending, Waiting, stopped_by_signals
from stack.bulk_view import bar_on, rest_of, tell_counts, tell_ending
from stack.cli_options import filtered, grouped
from stack.cli_tokens import DataOption, JsonOption, lent_database, settings_of
from stack.jobs_view import audit_table, console_of_errors, job_table, jobs_table, letters_table
from stack.replaying import Replaying, Run, Stores

app = typer.Typer()
jobs_app = typer.Typer(no_args_is_help=True, help="Look at jobs of every owner, and do again what failed.")
app.add_typer(jobs_app, name="jobs")

EXIT_NOT_SO = 1
WAIT_S_DEFAULT = 60.0
LIST_ROWS = 50

_PAGE_ROWS = 1000

LimitOption = Annotated[int, typer.Option("--limit", min=1, max=COUNT_ROWS_MAX, help="At most so many, newest first.")]
LettersOption = Annotated[int, typer.Option("--limit", min=1, max=DEAD_LETTER_ROWS_MAX, help="At most so many.")]
JobArgument = Annotated[UUID, typer.Argument(help="Id of the job.")]
JobsArgument = Annotated[list[UUID], typer.Argument(help="Ids of jobs.")]
SomeJobsArgument = Annotated[list[UUID] | None, typer.Argument(help="Ids of jobs; or use the options that filter.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How failed jobs are replayed; `wait_s` for each place."""

    everything: bool = False
    jobs_max: int = COUNT_ROWS_MAX
    dry_run: bool = False
    wait_s: float = WAIT_S_DEFAULT


_replaying = grouped(
    "how",
    How,
    {
        "everything": Annotated[bool, typer.Option("--all", help="All failed jobs, when nothing filters them.")],
        "jobs_max": Annotated[
            int, typer.Option("--limit", min=1, max=COUNT_ROWS_MAX, help="At most so many, oldest failure first.")
        ],
        "dry_run": Annotated[bool, typer.Option("--dry-run", help="Say what would be, and change nothing.")],
        "wait_s": Annotated[
            float, typer.Option("--wait-s", min=0, help="Seconds to wait for each place, while there is none.")
        ],
    },
)


@jobs_app.command()
@filtered
def failed(
    *, wanted: FailedFilter, limit: LimitOption = LIST_ROWS, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """List failed jobs, newest failure first."""
    found, count = asyncio.run(_failed(settings_of(data), wanted, jobs_max=limit))
    if as_json:
        shown = [RegisteredShown.of(job).model_dump(mode="json", exclude_none=True) for job in found]
        typer.echo(json.dumps({"count": count, "jobs": shown}))
        return
    console = console_of_errors()
    if found:
        console.print(jobs_table(found), highlight=False)
    more = " or more" if count == COUNT_ROWS_MAX else ""
    console.print(f"{len(found)} of {count}{more} failed jobs", highlight=False)


@jobs_app.command()
def show(job_id: JobArgument, *, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show a job and what was done to it by hand; exit code 1 when there is none."""
    job, audit = asyncio.run(_shown(settings_of(data), job_id))
    if as_json:
        facts = None if job is None else RegisteredShown.of(job).model_dump(mode="json", exclude_none=True)
        entries = [AuditShown.of(entry).model_dump(mode="json", exclude_none=True) for entry in audit]
        typer.echo(json.dumps({"job": facts, "audit": entries}))
    else:
        console = console_of_errors()
        console.print(f"there is no job {job_id}" if job is None else job_table(job), highlight=False)
        if audit:
            console.print()
            console.print(audit_table(audit), highlight=False)
    raise typer.Exit(EXIT_NOT_SO if job is None else 0)


@jobs_app.command()
@filtered
@_replaying
def replay(
    job_ids: SomeJobsArgument = None,
    *,
    wanted: FailedFilter,
    how: How,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue failed jobs anew under their ids, each when there is a place; Ctrl-C stops between two jobs.

    Exit code 1 unless every job that was meant is queued. What a stopped run prints does the rest.
    """
    if bool(job_ids) + how.everything + (wanted != FailedFilter()) != 1:
        raise typer.BadParameter("name jobs, or filter them, or say --all")
    run = asyncio.run(_replay(settings_of(data), job_ids or [], wanted=wanted, how=how))
    if as_json:
        typer.echo(json.dumps(_run_as_dict(run)))
    else:
        _tell(run, named=job_ids or [])
    raise typer.Exit(0 if run.all_queued else EXIT_NOT_SO)


@jobs_app.command()
def cancel(job_ids: JobsArgument, *, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Cancel jobs of any owner; exit code 1 when one of them is not there or has ended."""
    states = asyncio.run(_cancel(settings_of(data), job_ids))
    if as_json:
        typer.echo(json.dumps([{"job_id": str(job_id), "status": state} for job_id, state in states.items()]))
    else:
        for job_id, state in states.items():
            typer.echo(f"{job_id}  {state or 'nothing to cancel'}", err=True)
    raise typer.Exit(0 if all(states.values()) else EXIT_NOT_SO)


@jobs_app.command(name="dead-letters")
def dead_letters(*, limit: LettersOption = LIST_ROWS, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List messages that the broker gave up on, last seen first."""
    letters = asyncio.run(_letters(settings_of(data), rows_max=limit))
    if as_json:
        shown = [DeadLetterShown.of(letter).model_dump(mode="json", exclude_none=True) for letter in letters]
        typer.echo(json.dumps(shown))
        return
    console = console_of_errors()
    console.print(letters_table(letters) if letters else "no dead letters", highlight=False)


async def _failed(settings: Settings, wanted: FailedFilter, *, jobs_max: int) -> tuple[list[RegisteredJob], int]:
    """Return the newest failed jobs that fit, and how many fit in all."""
    async with lent_database(settings) as database:
        registry, found = Registry(database), list[RegisteredJob]()
        while len(found) < jobs_max:
            rows_max = min(_PAGE_ROWS, jobs_max - len(found))
            before = found[-1].cursor if found else None
            page = await registry.failed(wanted, before=before, rows_max=rows_max)
            found += page
            if len(page) < rows_max:
                break
        return found, await registry.count_failed(wanted)


async def _shown(settings: Settings, job_id: UUID) -> tuple[RegisteredJob | None, list[AuditEntry]]:
    async with lent_database(settings) as database:
        registry = Registry(database)
        return await registry.find(job_id), await registry.audit_of(job_id)


async def _cancel(settings: Settings, job_ids: list[UUID]) -> dict[UUID, JobState | None]:
    async with lent_database(settings) as database:
        registry = Registry(database)
        return {job_id: await registry.cancel(job_id, who=COMMAND_LINE) for job_id in job_ids}


async def _letters(settings: Settings, *, rows_max: int) -> list[DeadLetter]:
    async with lent_database(settings) as database:
        return await Registry(database).dead_letters(rows_max=rows_max)


def register_of(settings: Settings, database: Database) -> ProcessRegister:
    """Return a register to read the snapshot from that the API's admission goes by."""
    return ProcessRegister(database, role="api", report_interval_s=settings.process_seen_s)


async def _replay(settings: Settings, job_ids: list[UUID], *, wanted: FailedFilter, how: How) -> Run:
    async with lent_database(settings) as database:
        register = register_of(settings, database)
        stores = Stores(registry=Registry(database), jobs=JobStore(database), register=register)
        replaying = Replaying(settings, stores, clock=monotonic_s)
        stop = asyncio.Event()
        waiting = Waiting(wait_s=how.wait_s, stop=stop, clock=monotonic_s, rng=random.SystemRandom())
        run = await replaying.start(dry_run=how.dry_run, until=wanted.until)
        total = len(job_ids) or min(how.jobs_max, await stores.registry.count_failed(replace(wanted, until=run.until)))
        with bar_on(console_of_errors()) as progress, stopped_by_signals(stop):
            bar = progress.add_task("jobs", total=total)
            fitting = replaying.fitting(wanted, jobs_max=how.jobs_max, run=run)
            jobs = replaying.named(job_ids, run=run) if job_ids else fitting
            await replaying.go(run, jobs, waiting=waiting, on_replay=lambda: progress.advance(bar))
        return run


def _tell(run: Run, *, named: Sequence[UUID]) -> None:
    console = console_of_errors()
    tell_counts(console, run.counts, dry_run=run.dry_run)
    if not run.outcomes and not run.unknown and run.ending is Ending.DONE:
        console.print("nothing to replay", highlight=False)
    for job_id, outcome in run.outcomes:
        if outcome is not ReplayOutcome.QUEUED:
            console.print(f"{job_id}  {outcome.value}", highlight=False)
    for job_id in run.unknown:
        console.print(f"{job_id}  there is no such job", highlight=False)
    done = {job_id for job_id, _ in run.outcomes}
    tell_ending(console, run.ending, rest=rest_of(named, done, moment=f"--until {run.until.isoformat()}"))


def _run_as_dict(run: Run) -> dict[str, Any]:
    return {
        "dry_run": run.dry_run,
        "until": run.until.isoformat(),
        "ending": run.ending.value,
        "counts": run.counts,
        "outcomes": [{"job_id": str(job_id), "outcome": outcome.value} for job_id, outcome in run.outcomes],
        "unknown": [str(job_id) for job_id in run.unknown],
    }
