"""`spillway chaos`: a bounded, seeded run of faults while load runs, and the verdict on its history.

Exit codes: 0 everything promised was kept, 1 something was not, 2 wrong use, 3 the environment is unfit.
"""

import json
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from stack.chaos import ChaosOptions, run_chaos, summary
from stack.chaos_plan import SECONDS_MIN
from stack.chaos_show import ChaosShow

app = typer.Typer()

SEED_DEFAULT = 1
SECONDS_DEFAULT, SECONDS_MAX = 120, 3600
RUNS_FOLDER = Path("chaos-runs")
EXIT_NOT_SO = 1
#: Broken promises that are shown one by one; the report has all of them.
SHOWN_COUNT = 20


@app.command()
def chaos(
    *,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides faults, arrivals and pictures.")] = SEED_DEFAULT,
    seconds: Annotated[
        int, typer.Option("--seconds", min=SECONDS_MIN, max=SECONDS_MAX, help="How long load and faults last.")
    ] = SECONDS_DEFAULT,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of the reports.")] = RUNS_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object as the last line.")] = False,
) -> None:
    """Kill, freeze and cut a stack of its own while it works, and judge what came of it; exit code 1 when not held."""
    console = Console(stderr=True)
    options = ChaosOptions(seed=seed, seconds=seconds, runs=runs)
    signal.signal(signal.SIGTERM, _interrupt)
    environment = dict(os.environ)  # noqa: TID251 - the composition root: from here on it is passed
    try:
        with ChaosShow(console, seconds=seconds) as show:
            verdict = run_chaos(options, environment, show=show)
    except KeyboardInterrupt:
        console.print("chaos: interrupted, everything it had started is ended", highlight=False)
        raise typer.Exit(EXIT_NOT_SO) from None
    for violation in verdict.violations[:SHOWN_COUNT]:
        console.print(f"chaos: {violation.invariant}: {violation.detail}", highlight=False, soft_wrap=True)
    found = summary(options, verdict)
    console.print(
        f"chaos: {'everything held' if verdict.holds else f'{len(verdict.violations)} broken promises'}: "
        f"{verdict.accepted} accepted, {verdict.lost} lost, {verdict.duplicated_effects} duplicated effects, "
        f"{verdict.failed_valid} failed valid images, {verdict.faults} faults; {found['report']}",
        highlight=False,
        soft_wrap=True,
    )
    if as_json:
        typer.echo(json.dumps(found))
    raise typer.Exit(0 if verdict.holds else EXIT_NOT_SO)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
