"""`spillway submit`: upload files to a running Spillway and, when asked, wait for their results.

Invariant: the token comes from the environment only, so that it stands in no process list and no shell history; what
can be refused before anything is sent is refused then.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import SpinnerColumn
from rich.table import Table

from app.client import submit_files
from app.submission import Progress as Step
from app.submission import Submission, checked_url, clashing_names, sendable_token
from stack.bulk_view import bar_on
from stack.cli_settings import TOKEN_VARIABLE, URL_VARIABLE, own_environment
from stack.errors import EnvironmentUnfitError
from stack.state import StateFile

app = typer.Typer()

URL_DEFAULT = "http://127.0.0.1:8080"
DATA_DEFAULT = Path("data")

FilesArgument = Annotated[list[Path], typer.Argument(help="Image files.", exists=True, dir_okay=False, readable=True)]
SaveOption = Annotated[
    Path | None, typer.Option("--save", file_okay=False, help="Wait, and save verified results here.")
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"Where Spillway answers; without it {URL_VARIABLE}, the running stack, {URL_DEFAULT}."),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", file_okay=False, help=f"Folder of the running stack; ./{DATA_DEFAULT}.")
]


@app.command()
def submit(
    files: FilesArgument,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Follow each job to its end.")] = False,
    save: SaveOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Upload files; exit code 1 when one was refused or failed. The token is taken from SPILLWAY_TOKEN."""
    token = _token(own_environment())
    where = target_url(url, data, own_environment())
    if save is not None:
        _check_folder(save, files)
    console = Console(stderr=True)
    console.print(f"to {where}", highlight=False, markup=False, soft_wrap=True)
    with bar_on(console, SpinnerColumn()) as progress:
        bar = progress.add_task("files", total=len(files))

        def show(step: Step) -> None:
            progress.update(bar, advance=int(step.over), description=f"{step.path.name}: {step.text}")

        submitting = submit_files(
            files, url=where, token=token, wait=wait or save is not None, on_progress=show, save_dir=save
        )
        try:
            done = asyncio.run(submitting)
        except OSError as error:
            raise EnvironmentUnfitError(f"a file cannot be read, or a result not saved: {error}") from error
    if as_json:
        typer.echo(json.dumps([_as_dict(submission) for submission in done]))
    else:
        console.print(_table(done))
    raise typer.Exit(0 if all(submission.ok for submission in done) else 1)


def _token(environment: Mapping[str, str]) -> str:
    token = environment.get(TOKEN_VARIABLE, "")
    if not token:
        raise typer.BadParameter(f"set {TOKEN_VARIABLE} to a token of `spillway token create`")
    if not sendable_token(token):
        raise typer.BadParameter(f"{TOKEN_VARIABLE} is no token: one has no spaces and only ASCII characters")
    return token


def target_url(url: str | None, data: Path | None, environment: Mapping[str, str]) -> str:
    """Return the address to use: what is named wins, then the environment, then the stack of the present directory.

    Raises:
        typer.BadParameter: nothing can be sent to it.
        EnvironmentUnfitError: no stack runs in the folder that is named.
    """
    given = url or (running_url(data) if data else environment.get(URL_VARIABLE) or _url_here()) or URL_DEFAULT
    try:
        return checked_url(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def running_url(folder: Path) -> str:
    """Return where the stack of a folder answers.

    Raises:
        EnvironmentUnfitError: none runs.
    """
    state = StateFile(folder.absolute()).read()
    if state is None or state.launcher is None or not state.launcher.alive or not state.url:
        raise EnvironmentUnfitError(f"No stack runs in {folder}: `spillway up` first, or say --url.")
    return state.url


def _url_here() -> str | None:
    try:
        return running_url(DATA_DEFAULT)
    except (EnvironmentUnfitError, OSError):
        return None


def _check_folder(folder: Path, files: list[Path]) -> None:
    """Make the folder of the results and see that it can be written, before anything is uploaded."""
    if clashing := clashing_names(files):
        raise typer.BadParameter(f"results of several files would be saved as {', '.join(sorted(clashing))}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise typer.BadParameter(f"results cannot be saved in {folder}: {error.strerror}") from None


def _table(done: list[Submission]) -> Table:
    table = Table("file", "outcome", "job", "why", "saved", box=None, pad_edge=False)
    for submission in done:
        why = ": ".join(part for part in (submission.code, submission.message) if part)
        saved = "\n".join(str(path) for path in submission.saved)
        table.add_row(submission.path.name, submission.ending.value, submission.job_id or "", why, saved)
    return table


def _as_dict(submission: Submission) -> dict[str, Any]:
    return {
        "file": str(submission.path),
        "outcome": submission.ending.value,
        "job_id": submission.job_id,
        "code": submission.code,
        "message": submission.message,
        "key": submission.key,
        "replayed": submission.replayed,
        "saved": [str(path) for path in submission.saved],
        "tries": submission.tries,
        "job": dict(submission.job),
    }
