"""Running a bench: corpus, stack, sweep, report; and finding a run to go on with.

Invariant: a run folder is enough to resume or to report; nothing of a run is kept elsewhere but the cached corpus.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.load import load_cell
from analysis.metrics import SteadyMetrics, baseline_rate, drain_metrics, steady_metrics
from analysis.pulse import PulseMetrics, pulse_metrics
from contracts.cells import CellKind
from contracts.runs import ENVIRONMENT_FILE, MANIFEST_FILE
from loadtest.corpus import SIZE_CLASSES, Corpus, ensure_corpus
from loadtest.sweep import GRIDS, SEED_DEFAULT, Grid, Sweep, plan_cells, run_sweep, sizes_of, write_manifest
from stack.bench_target import StackTarget
from stack.bench_view import SweepView
from stack.calibration import calibrate
from stack.fingerprint import code_version, environment_facts
from stack.rabbit_fetch import cache_folder
from stack.servers import Servers

RUNS_FOLDER = Path("bench-runs")
LATEST = "latest"
_CORPUS_FOLDER = "corpus"
_LOGS_FOLDER = "logs"


class RunNotThereError(Exception):
    """There is no such run, or it cannot be continued; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to run and where."""

    runs: Path
    grid: Grid
    seed: int = SEED_DEFAULT


def new_run(options: BenchOptions, *, now: datetime) -> Path:
    """Make the folder of a new run, point `latest` at it and return it."""
    folder = options.runs / f"{now:%Y%m%d-%H%M%S}-{options.grid.name}"
    folder.mkdir(parents=True)
    _point_latest(options.runs, folder.name)
    return folder


def unfinished_run(options: BenchOptions) -> Path | None:
    """Return the latest run when it is of this plan, seed and code and lacks cells; else None."""
    try:
        folder = find_run(options.runs, LATEST)
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (RunNotThereError, OSError, ValueError):
        return None
    same = (manifest["plan_name"], manifest["seed"], manifest["code_version"])
    if same != (options.grid.name, options.seed, code_version()):
        return None
    return folder if missing_cells(folder, manifest) else None


def missing_cells(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Return how many planned cells are not there."""
    return sum(not (folder / "cells" / cell["cell_id"] / "cell.json").exists() for cell in manifest["cells"])


def find_run(runs: Path, name: str) -> Path:
    """Return the folder of a run by its name.

    Raises:
        RunNotThereError: there is none.
    """
    folder = (runs / name).resolve()
    if not folder.is_dir():
        raise RunNotThereError(f"there is no run {name} in {runs}")
    return folder


def options_of(folder: Path, *, runs: Path) -> BenchOptions:
    """Return the options with which a run was begun.

    Raises:
        RunNotThereError: it has no manifest, or its code was another: cells of two versions are never mixed.
    """
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise RunNotThereError(f"{folder.name} has no manifest: {exc}") from exc
    if manifest["code_version"] != code_version():
        raise RunNotThereError(f"{folder.name} was begun by other code ({manifest['code_version']}): begin a new run")
    return BenchOptions(runs=runs, grid=GRIDS[manifest["plan_name"]], seed=manifest["seed"])


def run_bench(folder: Path, options: BenchOptions, environment: Mapping[str, str], *, console: Console) -> None:
    """Run what is missing of a run.

    Raises:
        EnvironmentUnfitError: the stack does not start here.
        CellAbortedError: a cell did not come to its end; finished cells are kept.
    """
    specs = plan_cells(options.grid, seed=options.seed)
    cache = cache_folder(environment) / _CORPUS_FOLDER
    corpora = _corpora(cache, sizes_of(specs), seed=options.seed, console=console)
    sweep = Sweep(folder=folder, specs=specs, corpora=corpora, code_version=code_version(), capacity_of=_capacity_of)
    write_manifest(sweep, plan_name=options.grid.name, seed=options.seed, repeats_count=options.grid.repeats_count)
    facts = environment_facts(environment) | calibrate(corpora, console=console)
    _write_facts(folder, facts)
    console.print("bench: starting PostgreSQL, S3 and RabbitMQ", highlight=False)
    with (
        _stack_folder(folder) as data,
        StackTarget(Servers(data, environment), environment) as target,
        SweepView(console, target.unfinished_count) as view,
    ):
        facts |= target.gate_facts(console)
        _write_facts(folder, facts)
        run_sweep(sweep, target, view, note_of=note_of)


def _write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    (folder / ENVIRONMENT_FILE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")


@contextmanager
def _stack_folder(folder: Path) -> Iterator[Path]:
    """Lend a data folder for the servers; when the block fails, their logs are kept in the run's folder."""
    with tempfile.TemporaryDirectory(prefix="spillway-bench-", ignore_cleanup_errors=True) as data:
        try:
            yield Path(data)
        except BaseException:
            shutil.copytree(Path(data) / "log", folder / _LOGS_FOLDER, dirs_exist_ok=True)
            raise


def _corpora(cache: Path, sizes: list[str], *, seed: int, console: Console) -> dict[str, Corpus]:
    console.print(f"bench: making or checking the pictures ({', '.join(sizes)})", highlight=False)
    return {size: ensure_corpus(cache, SIZE_CLASSES[size], seed=seed) for size in sizes}


def _capacity_of(folder: Path) -> float:
    return drain_metrics(load_cell(folder)).jobs_per_s


def note_of(folder: Path) -> str:
    """Return a finished cell's main number in words."""
    cell = load_cell(folder)
    notes: dict[CellKind, Callable[[], str]] = {
        CellKind.DRAIN: lambda: f"{drain_metrics(cell).jobs_per_s:.2f} jobs/s",
        CellKind.STEADY: lambda: _steady_note(steady_metrics(cell)),
        CellKind.PULSE: lambda: _pulse_note(pulse_metrics(cell)),
        CellKind.BARE: lambda: f"{baseline_rate(cell)[0]:.2f} files/s",
        CellKind.DIRECT: lambda: f"{baseline_rate(cell)[0]:.2f} files/s",
    }
    return notes[cell.record.spec.kind]()


def _steady_note(found: SteadyMetrics) -> str:
    if found.unstable:
        return f"UNSTABLE: the backlog grew by {found.backlog_growth_per_s:.1f} jobs/s"
    return f"p95 time to ready {found.ttr_p95_s:.2f} s"


def _pulse_note(found: PulseMetrics) -> str:
    back = (
        f"recovered after {found.recovery_s:.0f} s" if math.isfinite(found.recovery_s) else "not recovered in the cell"
    )
    return f"queue lag up to {found.lag_peak_s:.1f} s, {back}"


def _point_latest(runs: Path, name: str) -> None:
    link = runs / LATEST
    fresh = runs / f".{LATEST}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)
