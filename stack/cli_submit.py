"""`spillway submit`: upload files to a running Spillway and, when asked, wait for their results.

Invariant: the token comes from the environment only, so that it stands in no process list and no shell history.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.client import submit_files
from app.submission import Progress as Step
from app.submission import Submission, clashing_names

app = typer.Typer()

TOKEN_VARIABLE = "SPILLWAY_TOKEN"  # noqa: S105 - the name of the variable
URL_DEFAULT = "http://127.0.0.1:8080"


@app.command()
def submit(
    files: Annotated[list[Path], typer.Argument(help="Image files.", exists=True, dir_okay=False, readable=True)],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Follow each job to its end.")] = False,
    save: Annotated[Path | None, typer.Option("--save", help="Wait, and save verified results here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
    url: Annotated[str, typer.Option("--url", help="Where Spillway answers.")] = URL_DEFAULT,
) -> None:
    """Upload files; exit code 1 when one was refused or failed. The token is taken from SPILLWAY_TOKEN."""
    token = os.environ.get(TOKEN_VARIABLE, "")  # noqa: TID251 - the composition root of this command
    if not token:
        raise typer.BadParameter(f"set {TOKEN_VARIABLE} to a token of `spillway token create`")
    if save is not None and (clashing := clashing_names(files)):
        raise typer.BadParameter(f"results of several files would be saved as {', '.join(sorted(clashing))}")
    console = Console(stderr=True)
    with _progress(console) as progress:
        bar = progress.add_task("files", total=len(files))

        def show(step: Step) -> None:
            progress.update(bar, advance=int(step.over), description=f"{step.path.name}: {step.text}")

        submitting = submit_files(
            files, url=url, token=token, wait=wait or save is not None, on_progress=show, save_dir=save
        )
        done = asyncio.run(submitting)
    if as_json:
        typer.echo(json.dumps([_as_dict(submission) for submission in done]))
    else:
        console.print(_table(done))
    raise typer.Exit(0 if all(submission.ok for submission in done) else 1)


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _table(done: list[Submission]) -> Table:
    table = Table("file", "outcome", "job", "why", "saved", box=None, pad_edge=False)
    for submission in done:
        why = submission.code or submission.message or ""
        saved = "\n".join(str(path) for path in submission.saved)
        table.add_row(submission.path.name, submission.ending.value, submission.job_id or "", why, saved)
    return table


def _as_dict(submission: Submission) -> dict[str, Any]:
    return {
        "file": str(submission.path),
        "outcome": submission.ending.value,
        "job_id": submission.job_id,
        "code": submission.code,
        "key": submission.key,
        "replayed": submission.replayed,
        "saved": [str(path) for path in submission.saved],
        "tries": submission.tries,
        "job": dict(submission.job),
    }
