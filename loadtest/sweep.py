"""A sweep: the cells of a plan, their order, and running them so that an interruption costs one cell at most.

Invariant: a cell's folder appears under its id in one rename, whole; an id that is there is never run again.
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from contracts.cells import CellKind, CellRecord, CellSpec, LoadPhase
from contracts.runs import CELL_FILE, CELLS_FOLDER, MANIFEST_FILE, RUN_FORMAT_VERSION
from loadtest.cell import WARM_UP_S, CellJob, run_cell
from loadtest.corpus import SIZE_CLASSES, Corpus
from loadtest.target import Target

SEED_DEFAULT = 20_260
STEADY_SHARE = 0.8

#: For the estimate alone, before anything is measured: jobs a second and core, and a cell's fixed cost.
_GUESS_PER_CORE_S = {"0.3MP": 14.0, "2MP": 4.8, "12MP": 0.9}
_CORES_GUESS = 2
_OVERHEAD_S = {
    CellKind.DRAIN: 6.0,
    CellKind.STEADY: 8.0,
    CellKind.PULSE: 11.0,
    CellKind.BARE: 4.0,
    CellKind.DIRECT: 7.0,
}
_FILL_PER_S = 50.0

PULSE_PHASES = (
    LoadPhase(name="base", duration_s=8.0, capacity_share=0.5),
    LoadPhase(name="pulse", duration_s=15.0, capacity_share=2.0),
    LoadPhase(name="recovery", duration_s=50.0, capacity_share=0.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What a plan varies."""

    name: str
    settings: tuple[tuple[int, int], ...]  #: concurrency and prefetch
    sizes: tuple[str, ...]
    jobs_count: Mapping[str, int]  #: by size: jobs of a drain
    steady_jobs_count: int  #: least measured arrivals of a steady cell
    steady_s_min: float  #: ... and how long they last at least
    pulse_settings: tuple[tuple[int, int], ...]
    pulse_size: str
    baseline_size: str
    baseline_count: int
    repeats_count: int
    bound_s: float = 10.0


QUICK = Grid(
    name="quick",
    settings=((1, 1), (2, 2), (2, 8)),
    sizes=("0.3MP", "2MP"),
    jobs_count={"0.3MP": 200, "2MP": 100},
    steady_jobs_count=200,
    steady_s_min=10.0,
    pulse_settings=((2, 2),),
    pulse_size="2MP",
    baseline_size="2MP",
    baseline_count=200,
    repeats_count=1,
)

FULL = Grid(
    name="full",
    settings=((1, 1), (2, 2), (2, 8), (4, 4), (4, 16)),
    sizes=("0.3MP", "2MP", "12MP"),
    jobs_count={"0.3MP": 600, "2MP": 200, "12MP": 60},
    steady_jobs_count=400,
    steady_s_min=60.0,
    pulse_settings=((2, 2),),
    pulse_size="2MP",
    baseline_size="2MP",
    baseline_count=200,
    repeats_count=5,
)

SMOKE = Grid(
    name="smoke",
    settings=((2, 2),),
    sizes=("0.3MP",),
    jobs_count={"0.3MP": 40},
    steady_jobs_count=20,
    steady_s_min=3.0,
    pulse_settings=(),
    pulse_size="0.3MP",
    baseline_size="0.3MP",
    baseline_count=20,
    repeats_count=1,
)

GRIDS: dict[str, Grid] = {grid.name: grid for grid in (QUICK, FULL, SMOKE)}


def plan_cells(grid: Grid, *, seed: int) -> tuple[CellSpec, ...]:
    """Return the plan's cells in the order in which they are to run.

    Each repeat is a block: first the capacities (the loops next to the drain they are compared with), then the live
    cells that need them; both parts are shuffled by the seed.
    """
    rng = random.Random(seed)  # noqa: S311 - an order to repeat, not a secret
    cells: list[CellSpec] = []
    for repeat in range(grid.repeats_count):
        drains = [
            _drain(grid, setting, size, repeat=repeat, seed=seed) for size in grid.sizes for setting in grid.settings
        ]
        live = [
            _steady(grid, setting, size, repeat=repeat, seed=seed) for size in grid.sizes for setting in grid.settings
        ]
        live += [
            _pulse(grid, setting, policy, repeat=repeat, seed=seed)
            for setting in grid.pulse_settings
            for policy in ("none", "count")
        ]
        rng.shuffle(drains)
        rng.shuffle(live)
        cells += _with_loops(grid, drains, repeat=repeat, seed=seed) + live
    return tuple(cells)


def _with_loops(grid: Grid, drains: list[CellSpec], *, repeat: int, seed: int) -> list[CellSpec]:
    """Put the loops right before and after the drain that is compared with them: the host drifts."""
    bare, direct = (_loop(grid, kind, repeat=repeat, seed=seed) for kind in (CellKind.BARE, CellKind.DIRECT))
    placed: list[CellSpec] = []
    for drain in drains:
        is_twin = drain.size == grid.baseline_size and (drain.concurrency, drain.prefetch) == _twin_setting(grid)
        placed += [bare, drain, direct] if is_twin else [drain]
    return placed


def _cell(kind: CellKind, *, size: str, setting: tuple[int, int], repeat: int, seed: int) -> CellSpec:
    concurrency, prefetch = setting
    return CellSpec(
        kind=kind,
        size=size,
        concurrency=concurrency,
        prefetch=prefetch,
        policy="none",
        jobs_count=0,
        phases=(),
        bound_s=0.0,
        seed=seed + repeat,
        repeat=repeat,
    )


def _twin_setting(grid: Grid) -> tuple[int, int]:
    """Return the setting that the loops are compared with: as many jobs at once, and the next one at hand as well."""
    return max(setting for setting in grid.settings if setting[0] == _CORES_GUESS)


def _drain(grid: Grid, setting: tuple[int, int], size: str, *, repeat: int, seed: int) -> CellSpec:
    twin = size == grid.baseline_size and setting == _twin_setting(grid)
    count = max(grid.baseline_count, grid.jobs_count[size]) if twin else grid.jobs_count[size]
    spec = _cell(CellKind.DRAIN, size=size, setting=setting, repeat=repeat, seed=seed)
    return replace(spec, jobs_count=count)


def _steady(grid: Grid, setting: tuple[int, int], size: str, *, repeat: int, seed: int) -> CellSpec:
    spec = _cell(CellKind.STEADY, size=size, setting=setting, repeat=repeat, seed=seed)
    phases = (LoadPhase(name="steady", duration_s=grid.steady_s_min, capacity_share=STEADY_SHARE),)
    return replace(spec, jobs_count=grid.steady_jobs_count, phases=phases)


def _pulse(grid: Grid, setting: tuple[int, int], policy: str, *, repeat: int, seed: int) -> CellSpec:
    spec = _cell(CellKind.PULSE, size=grid.pulse_size, setting=setting, repeat=repeat, seed=seed)
    bound_s = grid.bound_s if policy == "count" else 0.0
    return replace(spec, policy=policy, phases=PULSE_PHASES, bound_s=bound_s)


def _loop(grid: Grid, kind: CellKind, *, repeat: int, seed: int) -> CellSpec:
    spec = _cell(kind, size=grid.baseline_size, setting=(_CORES_GUESS, 0), repeat=repeat, seed=seed)
    return replace(spec, policy="", jobs_count=grid.baseline_count)


def estimate_s(spec: CellSpec) -> float:
    """Return roughly how long a cell takes, seconds: for the estimate before the start and the bar."""
    cores = min(spec.concurrency, _CORES_GUESS)
    rate_per_s = _GUESS_PER_CORE_S[spec.size] * cores
    if spec.kind is CellKind.DRAIN:
        work_s = spec.jobs_count / rate_per_s + spec.jobs_count / _FILL_PER_S
    elif spec.kind is CellKind.STEADY:
        work_s = max(spec.jobs_count / (STEADY_SHARE * rate_per_s), spec.phases[0].duration_s) + WARM_UP_S
    elif spec.kind is CellKind.PULSE:
        work_s = sum(phase.duration_s for phase in spec.phases)
    else:
        work_s = spec.jobs_count / rate_per_s
    return work_s + _OVERHEAD_S[spec.kind]


class View(Protocol):
    """Shows a sweep's progress."""

    def begin(self, specs: Sequence[CellSpec], *, finished_count: int) -> None:
        """Say what is to come."""
        ...

    def cell_begins(self, spec: CellSpec) -> None:
        """Say which cell runs now."""
        ...

    def tick(self) -> None:
        """Show that it goes on; called a few times a second."""
        ...

    def cell_ends(self, spec: CellSpec, *, note: str) -> None:
        """Say that a cell is done, with its main number."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep that is to be run, or continued, in a folder."""

    folder: Path
    specs: tuple[CellSpec, ...]
    corpora: Mapping[str, Corpus]  #: by size class
    code_version: str
    capacity_of: Callable[[Path], float]  #: a finished drain's folder → jobs a second

    def cell_id(self, spec: CellSpec) -> str:
        """Return the id of a cell under this sweep's code and corpus."""
        return spec.cell_id(code_version=self.code_version, corpus_sha256=self.corpora[spec.size].sha256)

    def cell_folder(self, spec: CellSpec) -> Path:
        """Return where the cell's files are, or will be."""
        return self.folder / CELLS_FOLDER / self.cell_id(spec)

    def is_finished(self, spec: CellSpec) -> bool:
        """Tell whether the cell is there, whole."""
        return (self.cell_folder(spec) / CELL_FILE).exists()


def write_manifest(sweep: Sweep, *, plan_name: str, seed: int, repeats_count: int) -> None:
    """Write what the run consists of; the same sweep gives the same file."""
    manifest = {
        "format_version": RUN_FORMAT_VERSION,
        "plan_name": plan_name,
        "seed": seed,
        "repeats_count": repeats_count,
        "code_version": sweep.code_version,
        "corpora": {name: corpus.sha256 for name, corpus in sorted(sweep.corpora.items())},
        "cells": [{"cell_id": sweep.cell_id(spec), "spec": asdict(spec)} for spec in sweep.specs],
    }
    text = json.dumps(manifest, indent=1, sort_keys=True)
    (sweep.folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


def run_sweep(sweep: Sweep, target: Target, view: View, *, note_of: Callable[[Path], str]) -> None:
    """Run every cell that is not finished yet, in order; `note_of` words a finished cell's main number.

    Raises:
        CellAbortedError: a cell did not come to its end; finished ones are kept.
    """
    (sweep.folder / CELLS_FOLDER).mkdir(parents=True, exist_ok=True)
    view.begin(sweep.specs, finished_count=sum(map(sweep.is_finished, sweep.specs)))
    for order, spec in enumerate(sweep.specs):
        if sweep.is_finished(spec):
            view.cell_ends(spec, note="kept from before")
            continue
        view.cell_begins(spec)
        _run_into_place(sweep, spec, target, view, order=order)
        view.cell_ends(spec, note=note_of(sweep.cell_folder(spec)))


def _run_into_place(sweep: Sweep, spec: CellSpec, target: Target, view: View, *, order: int) -> CellRecord:
    final = sweep.cell_folder(spec)
    partial = final.with_name(f".partial-{final.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    job = CellJob(
        spec=spec,
        cell_id=final.name,
        order=order,
        corpus=sweep.corpora[spec.size],
        capacity_per_s=_capacity(sweep, spec),
        folder=partial,
    )
    record = run_cell(job, target, on_tick=view.tick)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    return record


def _capacity(sweep: Sweep, spec: CellSpec) -> float:
    """Return the capacity of the spec's setting and size, from the drain of the same repeat; 0 where none is needed."""
    if spec.kind not in {CellKind.STEADY, CellKind.PULSE}:
        return 0.0
    for drain in sweep.specs:
        same = (drain.size, drain.setting, drain.repeat) == (spec.size, spec.setting, spec.repeat)
        if drain.kind is CellKind.DRAIN and same:
            return sweep.capacity_of(sweep.cell_folder(drain))
    raise ValueError(f"{spec.title} has no drain to take its capacity from")


def sizes_of(specs: Sequence[CellSpec]) -> list[str]:
    """Return the size classes that a plan needs, smallest first."""
    return sorted({spec.size for spec in specs}, key=lambda name: SIZE_CLASSES[name].megapixels)
