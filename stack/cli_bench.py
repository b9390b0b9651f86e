"""`spillway bench`: plan, run, resume, check, report, noop.

Exit codes: 0 done, 1 an objective is missed, 2 wrong use or invalid cells, 3 the environment is unfit. `run` and
`resume` end with 0 once the report is written: what it says is judged by `check`.
"""

import json
import os
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from analysis.checks import Verdict
from analysis.load import RunUnreadableError
from analysis.publish import Published, publish
from analysis.summary import BARE_RATIO_TARGET, DIRECT_RATIO_TARGET
from contracts.runs import ColumnsDifferError
from loadtest.cell import CellAbortedError
from loadtest.generator import GeneratorFailedError
from loadtest.sweep import GRIDS, QUICK, SEED_DEFAULT, Grid, estimate_s, plan_cells
from stack.bench import (
    LATEST,
    RUNS_FOLDER,
    BenchOptions,
    RunNotThereError,
    find_run,
    new_run,
    options_of,
    run_bench,
    unfinished_run,
)
from stack.cli_roles import checked_settings
from stack.noop import NoopFailedError
from stack.noop_view import run_noop

app = typer.Typer()
bench = typer.Typer(no_args_is_help=True, help="Measure the whole line under load and write a report.")
app.add_typer(bench, name="bench")

EXIT_NOT_SO = 1
EXIT_INVALID = 2

QuickOption = Annotated[
    bool, typer.Option("--quick", help="The quick plan (the default): one repeat, about ten minutes.")
]
PlanOption = Annotated[str, typer.Option("--plan", help=f"One of: {', '.join(GRIDS)}.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Decides arrivals, pictures and order.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder of the runs.")]
RunArgument = Annotated[str, typer.Argument(help="Name of the run.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Begin anew even when the latest run is unfinished.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The rates as JSON on standard output.")]
IntoOption = Annotated[Path | None, typer.Option("--into", help="Report file to renew; beside the run without it.")]


@bench.command()
def plan(*, quick: QuickOption = False, plan_name: PlanOption = QUICK.name, seed: SeedOption = SEED_DEFAULT) -> None:
    """Print the cells of a plan in their order, and how long they take."""
    specs = plan_cells(_grid(plan_name, quick=quick), seed=seed)
    for number, spec in enumerate(specs, 1):
        typer.echo(f"{number:4}  {spec.title:<28}  about {estimate_s(spec):3.0f} s")
    typer.echo(f"{len(specs)} cells, about {sum(map(estimate_s, specs)) / 60:.1f} min", err=True)


@bench.command()
def run(
    *,
    quick: QuickOption = False,
    plan_name: PlanOption = QUICK.name,
    seed: SeedOption = SEED_DEFAULT,
    runs: RunsOption = RUNS_FOLDER,
    fresh: FreshOption = False,
) -> None:
    """Run a plan and write its report; an unfinished latest run of the same plan, seed and code is continued."""
    options = BenchOptions(runs=runs, grid=_grid(plan_name, quick=quick), seed=seed)
    found = None if fresh else unfinished_run(options)
    if found is not None:
        typer.echo(f"bench: going on with {found.name}", err=True)
    _go(found or new_run(options, now=datetime.now(UTC)), options)  # noqa: TID251 - the name of the run's folder


@bench.command()
def resume(name: RunArgument = LATEST, *, runs: RunsOption = RUNS_FOLDER) -> None:
    """Run what is missing of a run and write its report."""
    try:
        folder = find_run(runs, name)
        options = options_of(folder, runs=runs)
    except RunNotThereError as error:
        _fail(str(error), code=EXIT_INVALID)
    _go(folder, options)


@bench.command()
def check(name: RunArgument = LATEST, *, runs: RunsOption = RUNS_FOLDER) -> None:
    """Judge a run: exit code 2 with invalid cells, 1 with a missed objective."""
    published = _publish(runs, name, None)
    failed = [check for check in published.summary.checks if check.verdict is Verdict.FAIL]
    for failure in failed:
        typer.echo(f"FAIL  {failure.cell_title}: {failure.name}: {failure.found} (gate: {failure.gate})")
    if failed:
        raise typer.Exit(EXIT_INVALID)
    summary = published.summary
    objectives = (
        ("bare", summary.ratio_bare, BARE_RATIO_TARGET),
        ("direct", summary.ratio_direct, DIRECT_RATIO_TARGET),
    )
    for kind, ratio, target in objectives:
        typer.echo(f"product / {kind} loop: {ratio:.3f} (target {target:.2f})")
    if any(ratio < target for _, ratio, target in objectives):
        raise typer.Exit(EXIT_NOT_SO)


@bench.command()
def report(name: RunArgument = LATEST, *, runs: RunsOption = RUNS_FOLDER, into: IntoOption = None) -> None:
    """Rebuild a run's summary, pictures and report from its raw data."""
    published = _publish(runs, name, into)
    typer.echo(f"bench: {published.report_file}", err=True)


@bench.command()
def noop(*, as_json: JsonOption = False) -> None:
    """Print jobs a second with the pixels switched off and everything else on, and where the time goes (2 minutes)."""
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        rows = run_noop(_environment(), console=console)
    except KeyboardInterrupt:
        _fail("interrupted", code=EXIT_NOT_SO)
    except NoopFailedError as error:
        _fail(f"the rate does not count: {error}", code=EXIT_INVALID)
    if as_json:
        typer.echo(json.dumps(rows))


def _grid(plan_name: str, *, quick: bool) -> Grid:
    name = QUICK.name if quick else plan_name
    if name not in GRIDS:
        _fail(f"there is no plan {name}: one of {', '.join(GRIDS)}", code=EXIT_INVALID)
    return GRIDS[name]


def _go(folder: Path, options: BenchOptions) -> None:
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run_bench(folder, options, _environment(), console=console)
    except KeyboardInterrupt:
        _fail(f"interrupted: `spillway bench resume {folder.name}` goes on", code=EXIT_NOT_SO)
    except (CellAbortedError, GeneratorFailedError) as error:
        _fail(f"{error}\nfinished cells are kept: `spillway bench resume {folder.name}` goes on", code=EXIT_INVALID)
    published = _publish(options.runs, folder.name, None)
    invalid = len(published.summary.invalid_ids)
    if invalid:
        console.print(f"bench: {invalid} cells are invalid, see the report's second part", highlight=False)
    text = published.report_file.read_text(encoding="utf-8")
    typer.echo(text.split("<!-- generated:answer -->")[1].split("<!-- end:answer -->")[0].strip())
    shown = options.runs / LATEST / published.report_file.name
    console.print(f"bench: the report with its plots is {shown}", highlight=False, soft_wrap=True)


def _publish(runs: Path, name: str, into: Path | None) -> Published:
    try:
        return publish(find_run(runs, name), report_file=into)
    except (RunNotThereError, RunUnreadableError, ColumnsDifferError) as error:
        _fail(str(error), code=EXIT_INVALID)


def _environment() -> Mapping[str, str]:
    checked_settings()  # before any server is started for roles that would refuse them
    return os.environ  # noqa: TID251 - the composition root of the bench


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(text: str, *, code: int) -> NoReturn:
    typer.echo(f"spillway: {text}", err=True)
    raise typer.Exit(code)
