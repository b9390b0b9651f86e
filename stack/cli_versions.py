"""`spillway jobs parked|reprocess`: jobs that wait for a worker of their version, and new results for old images.

Invariant: no image is touched but by the one guarded statement that makes its next version, and none without its
entry in the audit.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.table import Table
from rich.text import Text

from app.core.clock import monotonic_s
from app.core.registry import COUNT_ROWS_MAX, Registry
from app.core.settings import Settings
from app.core.versions import ParkedJob, StandingFilter, Versions
from contracts.messages import PIPELINE_VERSION
from stack.bulk import Ending, Waiting, stopped_by_signals
from stack.bulk_view import bar_on, rest_of, tell_counts, tell_ending
from stack.cli_jobs import EXIT_NOT_SO, WAIT_S_DEFAULT, app, jobs_app, register_of
from stack.cli_options import VERSION_MAX, grouped, moment_of
from stack.cli_tokens import DataOption, JsonOption, lent_database, settings_of
from stack.jobs_view import console_of_errors, moment
from stack.reprocessing import ON_ITS_WAY, Reprocessing, Run, Stores

__all__ = ["app"]

LIST_ROWS = 50

LimitOption = Annotated[
    int, typer.Option("--limit", min=1, max=COUNT_ROWS_MAX, help="At most so many, longest parked first.")
]
ImagesArgument = Annotated[list[UUID] | None, typer.Argument(help="Ids of images; or use the options that filter.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How images are reprocessed; `wait_s` for each place."""

    everything: bool = False
    pipeline_version: int = PIPELINE_VERSION
    images_max: int = COUNT_ROWS_MAX
    dry_run: bool = False
    wait_s: float = WAIT_S_DEFAULT


_filtered = grouped(
    "wanted",
    StandingFilter,
    {
        "owner": Annotated[str | None, typer.Option("--owner", help="Only images of this owner.")],
        "version_below": Annotated[
            int | None,
            typer.Option(
                "--version-below", min=1, max=VERSION_MAX, help="Only results of pipeline versions below this one."
            ),
        ],
        "made_before": Annotated[
            datetime | None,
            typer.Option("--made-before", parser=moment_of, metavar="TIME", help="Only results made before then."),
        ],
    },
)
_reprocessing = grouped(
    "how",
    How,
    {
        "everything": Annotated[bool, typer.Option("--all", help="All images with a result, when nothing filters.")],
        "pipeline_version": Annotated[
            int,
            typer.Option(
                "--pipeline-version", min=1, max=VERSION_MAX, help="Version of the pipeline that is to work on them."
            ),
        ],
        "images_max": Annotated[
            int, typer.Option("--limit", min=1, max=COUNT_ROWS_MAX, help="At most so many images.")
        ],
        "dry_run": Annotated[bool, typer.Option("--dry-run", help="Say what would be, and change nothing.")],
        "wait_s": Annotated[
            float, typer.Option("--wait-s", min=0, help="Seconds to wait for each place, while there is none.")
        ],
    },
)


@jobs_app.command()
def parked(*, limit: LimitOption = LIST_ROWS, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List jobs that wait for a worker of their pipeline version, the longest parked first."""
    found, count = asyncio.run(_parked(settings_of(data), rows_max=limit))
    if as_json:
        typer.echo(json.dumps({"count": count, "jobs": [_as_dict(job) for job in found]}))
        return
    console = console_of_errors()
    if found:
        console.print(_parked_table(found), highlight=False)
    console.print(f"{len(found)} of {count} parked jobs", highlight=False)


@jobs_app.command()
@_filtered
@_reprocessing
def reprocess(
    image_ids: ImagesArgument = None,
    *,
    wanted: StandingFilter,
    how: How,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make new results for images from their originals, on what uploads leave free; Ctrl-C stops between two images.

    Each image shows what it shows now until its new result is ready. Exit code 1 unless every image that was meant has
    one on its way. What a stopped run prints does the rest.
    """
    if bool(image_ids) + how.everything + (wanted != StandingFilter()) != 1:
        raise typer.BadParameter("name images, or filter them, or say --all")
    run = asyncio.run(_reprocess(settings_of(data), image_ids or [], wanted=wanted, how=how))
    if as_json:
        typer.echo(json.dumps(_run_as_dict(run)))
    else:
        _tell(run, named=image_ids or [])
    raise typer.Exit(0 if run.all_on_their_way else EXIT_NOT_SO)


async def _parked(settings: Settings, *, rows_max: int) -> tuple[list[ParkedJob], int]:
    async with lent_database(settings) as database:
        register, versions = register_of(settings, database), Versions(database)
        return await versions.parked(seen_s=register.seen_s, rows_max=rows_max), await versions.count_parked()


async def _reprocess(settings: Settings, image_ids: list[UUID], *, wanted: StandingFilter, how: How) -> Run:
    async with lent_database(settings) as database:
        stores = Stores(
            versions=Versions(database), registry=Registry(database), register=register_of(settings, database)
        )
        reprocessing = Reprocessing(settings, stores, clock=monotonic_s)
        stop = asyncio.Event()
        waiting = Waiting(wait_s=how.wait_s, stop=stop, clock=monotonic_s, rng=random.SystemRandom())
        run = await reprocessing.start(
            dry_run=how.dry_run, pipeline_version=how.pipeline_version, made_before=wanted.made_before
        )
        if not run.served:
            _warn_unserved(how.pipeline_version)
        images = _each(image_ids) if image_ids else reprocessing.fitting(wanted, images_max=how.images_max, run=run)
        with bar_on(console_of_errors()) as progress, stopped_by_signals(stop):
            bar = progress.add_task("images", total=len(image_ids) or None)
            await reprocessing.go(run, images, waiting=waiting, on_image=lambda: progress.advance(bar))
        return run


def _warn_unserved(pipeline_version: int) -> None:
    text = f"warning: no live worker serves pipeline version {pipeline_version}: new jobs wait, parked, until one does"
    console_of_errors().print(text, highlight=False)


async def _each(image_ids: Iterable[UUID]) -> AsyncIterator[UUID]:
    for image_id in image_ids:
        yield image_id


def _tell(run: Run, *, named: Sequence[UUID]) -> None:
    console = console_of_errors()
    tell_counts(console, run.counts, dry_run=run.dry_run)
    if not run.done and run.ending is Ending.DONE:
        console.print("nothing to reprocess", highlight=False)
    for one in run.done:
        if one.outcome not in ON_ITS_WAY:
            console.print(f"{one.image_id}  {one.outcome.value}", highlight=False)
    done = {one.image_id for one in run.done}
    tell_ending(console, run.ending, rest=rest_of(named, done, moment=f"--made-before {run.made_before.isoformat()}"))


def _run_as_dict(run: Run) -> dict[str, Any]:
    return {
        "dry_run": run.dry_run,
        "pipeline_version": run.pipeline_version,
        "made_before": run.made_before.isoformat(),
        "ending": run.ending.value,
        "counts": run.counts,
        "outcomes": [
            {
                "image_id": str(one.image_id),
                "outcome": one.outcome.value,
                "job_id": None if one.job_id is None else str(one.job_id),
            }
            for one in run.done
        ],
    }


def _as_dict(job: ParkedJob) -> dict[str, Any]:
    return {
        "job_id": str(job.job_id),
        "image_id": str(job.image_id),
        "owner": job.owner,
        "pipeline_version": job.pipeline_version,
        "accepted_at": job.accepted_at.isoformat(),
        "parked_at": job.parked_at.isoformat(),
        "deadline_at": job.deadline_at.isoformat(),
        "served": job.served,
    }


def _parked_table(jobs: list[ParkedJob]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("job", "parked at", "fails at", "owner"):
        table.add_column(name, no_wrap=True)
    table.add_column("version", justify="right", no_wrap=True)
    table.add_column("worker", no_wrap=True)
    for job in jobs:
        table.add_row(
            str(job.job_id),
            moment(job.parked_at),
            moment(job.deadline_at),
            Text(job.owner),
            str(job.pipeline_version),
            "there" if job.served else "none",
        )
    return table
