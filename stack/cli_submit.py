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

from app.client import Ending, Submission, submit_files

app = typer.Typer()

TOKEN_VARIABLE = "SPILLWAY_TOKEN"  # noqa: S105 - the name of the variable
URL_DEFAULT = "http://127.0.0.1:8080"


@app.command()
def submit(
    files: Annotated[list[Path], typer.Argument(help="Image files.", exists=True, dir_okay=False, readable=True)],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Follow each job to its end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
    url: Annotated[str, typer.Option("--url", help="Where Spillway answers.")] = URL_DEFAULT,
) -> None:
    """Upload files; exit code 1 when one was refused or failed. The token is taken from SPILLWAY_TOKEN."""
    token = os.environ.get(TOKEN_VARIABLE, "")  # noqa: TID251 - the composition root of this command
    if not token:
        raise typer.BadParameter(f"set {TOKEN_VARIABLE} to a token of `spillway token create`")
    console = Console(stderr=True)
    # What is said about a file before its end: a refusal is tried again, and with --wait an accept is followed.
    passing = {Ending.REFUSED, Ending.ACCEPTED} if wait else {Ending.REFUSED}
    with _progress(console) as progress:
        bar = progress.add_task("files", total=len(files))

        def show(path: Path, outcome: str) -> None:
            over = outcome not in passing
            progress.update(bar, advance=1 if over else 0, description=f"{path.name}: {outcome}")

        done = asyncio.run(submit_files(files, url=url, token=token, wait=wait, on_progress=show))
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
    table = Table("file", "outcome", "job", "why", box=None, pad_edge=False)
    for submission in done:
        why = submission.code or ""
        table.add_row(submission.path.name, submission.ending.value, submission.job_id or "", why)
    return table


def _as_dict(submission: Submission) -> dict[str, Any]:
    return {
        "file": str(submission.path),
        "outcome": submission.ending.value,
        "job_id": submission.job_id,
        "code": submission.code,
        "tries": submission.tries,
        "job": dict(submission.job),
    }
