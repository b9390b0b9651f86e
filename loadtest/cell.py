"""One cell: prepare, load, wait until everything is final, archive. What it leaves is a folder of raw files.

Invariant: a cell begins with an empty system and a fresh worker, and ends drained or not at all: a cell that does not
get there raises, and its half-written folder is never taken for a result.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.cells import CellKind, CellRecord, CellSpec, GeneratorFacts
from contracts.runs import BASELINE, CELL_FILE, JOBS, SAMPLES
from loadtest.arrivals import Phase, Schedule, constant, poisson, poisson_count
from loadtest.clocks import read_clocks
from loadtest.corpus import Corpus
from loadtest.generator import drive
from loadtest.sampler import SamplerConfig, Sampling, sampling
from loadtest.target import Target

#: A backlog is filled at no more than this, uploads and bytes a second.
FILL_PER_S_MAX = 120.0
FILL_BYTES_PER_S_MAX = 14e6
#: Arrivals of a steady cell that are due earlier are warm-up.
WARM_UP_S = 5.0
#: What is left at the end of a load must be final within this time.
DRAIN_S_MAX = 180.0
#: The machine counts as quiet under this CPU share; waiting for that is bounded.
QUIET_CPU_SHARE = 0.15
QUIET_WAIT_S_MAX = 10.0
_QUIET_LOOK_S = 0.5
_POLL_S = 0.25
_PROBE_COUNT = 1000
_ROWS_PER_GROUP = 100_000

#: What a finished cell does not keep: its content is in the record, or names this machine.
_SCRATCH_FILES = ("sampler.json", "generator.json", "generator.log")

Tick = Callable[[], None]


class CellAbortedError(Exception):
    """A cell could not be brought to its end; the message says where it stood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """A cell that is to be run now."""

    spec: CellSpec
    cell_id: str
    order: int
    corpus: Corpus
    capacity_per_s: float  #: of the spec's setting and size; 0 where the kind needs none
    folder: Path  #: for its raw files; fresh and empty


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What the load part of a cell hands to its archive."""

    schedule: Schedule | None
    generator: GeneratorFacts | None
    zero_monotonic_s: float
    zero_wall_s: float
    work_began_s: float
    jobs_bound: int


def run_cell(job: CellJob, target: Target, *, on_tick: Tick) -> CellRecord:
    """Run one cell and write its files; `cell.json` comes last.

    Raises:
        CellAbortedError: the system could not be drained in time.
        GeneratorFailedError: the load could not be driven.
    """
    _empty_first(target, on_tick)
    target.stop_workers()
    wait_until_quiet()
    load_average = os.getloadavg()[0]
    cpu_before = psutil.cpu_times()
    since = target.database_now()
    offset_s = target.database_minus_host_s()
    loaded = _LOADS[job.spec.kind](job, target, on_tick)
    ended_s = time.monotonic() - loaded.zero_monotonic_s
    if job.spec.kind not in _LOOPS:
        write_jobs(target.export_jobs(since=since), job.folder / JOBS.file)
    record = CellRecord(
        cell_id=job.cell_id,
        spec=job.spec,
        order=job.order,
        capacity_per_s=job.capacity_per_s,
        jobs_bound=loaded.jobs_bound,
        rates_per_s={phase.name: phase.rate_per_s for phase in loaded.schedule.phases} if loaded.schedule else {},
        schedule_sha256=loaded.schedule.sha256 if loaded.schedule else "",
        corpus_sha256=job.corpus.sha256,
        zero_monotonic_s=loaded.zero_monotonic_s,
        zero_wall_s=loaded.zero_wall_s,
        database_minus_host_s=offset_s,
        work_began_s=loaded.work_began_s,
        ended_s=ended_s,
        drained=True,
        load_average_before=load_average,
        steal_share=_steal_share(cpu_before, psutil.cpu_times()),
        generator=loaded.generator,
    )
    for scratch in _SCRATCH_FILES:
        (job.folder / scratch).unlink(missing_ok=True)
    (job.folder / CELL_FILE).write_text(record.to_json(), encoding="utf-8")
    return record


def _load_drain(job: CellJob, target: Target, on_tick: Tick) -> _Loaded:
    """Fill a backlog with the workers away, then start them and wait for the last job."""
    spec = job.spec
    target.set_admission(policy=spec.policy, jobs_bound=0)
    schedule = drain_schedule(spec, job.corpus)
    facts = drive(schedule, aim=target.aim, corpus=job.corpus, folder=job.folder, on_tick=on_tick)
    wait_until_quiet()
    began_s = time.monotonic()
    target.start_workers(concurrency=spec.concurrency, prefetch=spec.prefetch)
    with _sampling(job, target):
        _wait_drained(target, on_tick)
    return _Loaded(
        schedule=schedule,
        generator=facts,
        zero_monotonic_s=facts.zero_monotonic_s,
        zero_wall_s=facts.zero_wall_s,
        work_began_s=began_s - facts.zero_monotonic_s,
        jobs_bound=0,
    )


def _load_steady(job: CellJob, target: Target, on_tick: Tick) -> _Loaded:
    target.set_admission(policy=job.spec.policy, jobs_bound=0)
    return _load_live(job, target, on_tick, schedule=steady_schedule(job.spec, job.corpus, job.capacity_per_s))


def _load_pulse(job: CellJob, target: Target, on_tick: Tick) -> _Loaded:
    spec = job.spec
    bound = round(spec.bound_s * job.capacity_per_s)
    target.set_admission(policy=spec.policy, jobs_bound=bound)
    schedule = pulse_schedule(spec, job.corpus, job.capacity_per_s)
    return _load_live(job, target, on_tick, schedule=schedule, jobs_bound=bound)


def _load_live(job: CellJob, target: Target, on_tick: Tick, *, schedule: Schedule, jobs_bound: int = 0) -> _Loaded:
    target.start_workers(concurrency=job.spec.concurrency, prefetch=job.spec.prefetch)
    with _sampling(job, target) as sampler:
        facts = drive(
            schedule,
            aim=target.aim,
            corpus=job.corpus,
            folder=job.folder,
            on_start=lambda pid: sampler.watch("generator", pid),
            on_tick=on_tick,
        )
        _wait_drained(target, on_tick)
    return _Loaded(
        schedule=schedule,
        generator=facts,
        zero_monotonic_s=facts.zero_monotonic_s,
        zero_wall_s=facts.zero_wall_s,
        work_began_s=0.0,
        jobs_bound=jobs_bound,
    )


def _load_loop(job: CellJob, target: Target, on_tick: Tick) -> _Loaded:
    clocks = read_clocks()
    count = job.spec.jobs_count
    files = [job.corpus.files[index % len(job.corpus.files)] for index in range(count)]
    on_tick()
    rows = target.run_loop(job.spec.kind, files, processes_count=job.spec.concurrency)
    rows = [
        {**row, "started_s": row["started_s"] - clocks.monotonic_s, "ended_s": row["ended_s"] - clocks.monotonic_s}
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(rows).select(BASELINE.names), job.folder / BASELINE.file)
    return _Loaded(
        schedule=None,
        generator=None,
        zero_monotonic_s=clocks.monotonic_s,
        zero_wall_s=clocks.wall_s,
        work_began_s=0.0,
        jobs_bound=0,
    )


_LOOPS = frozenset({CellKind.BARE, CellKind.DIRECT})
_LOADS: dict[CellKind, Callable[[CellJob, Target, Tick], _Loaded]] = {
    CellKind.DRAIN: _load_drain,
    CellKind.STEADY: _load_steady,
    CellKind.PULSE: _load_pulse,
    CellKind.BARE: _load_loop,
    CellKind.DIRECT: _load_loop,
}


def drain_schedule(spec: CellSpec, corpus: Corpus) -> Schedule:
    """Return the fill of a drain: evenly spaced, every file of the class equally often."""
    mean_bytes = sum(file.stat().st_size for file in corpus.files) / len(corpus.files)
    rate_per_s = min(FILL_PER_S_MAX, FILL_BYTES_PER_S_MAX / mean_bytes)
    return constant(spec.jobs_count, rate_per_s=rate_per_s, seed=spec.seed, images=len(corpus.files), name="fill")


def steady_schedule(spec: CellSpec, corpus: Corpus, capacity_per_s: float) -> Schedule:
    """Return Poisson arrivals at the spec's share of capacity: warm-up, then enough jobs and enough time."""
    phase, images = spec.phases[0], len(corpus.files)
    rate_per_s = phase.capacity_share * capacity_per_s
    measured = math.ceil(max(spec.jobs_count, phase.duration_s * rate_per_s))
    # A longer schedule of the same seed begins with the shorter one: this counts the warm-up's arrivals exactly.
    probe = poisson_count(2 * measured + _PROBE_COUNT, rate_per_s=rate_per_s, seed=spec.seed, images=images)
    early = int((probe.due_us < WARM_UP_S * 1e6).sum())
    return poisson_count(measured + early, rate_per_s=rate_per_s, seed=spec.seed, images=images, name=phase.name)


def pulse_schedule(spec: CellSpec, corpus: Corpus, capacity_per_s: float) -> Schedule:
    """Return Poisson arrivals through the spec's phases; equal for all policies with the same seed and capacity."""
    phases = [
        Phase(name=phase.name, duration_s=phase.duration_s, rate_per_s=phase.capacity_share * capacity_per_s)
        for phase in spec.phases
    ]
    return poisson(phases, seed=spec.seed, images=len(corpus.files))


def wait_until_quiet() -> None:
    """Return when the machine is quiet, or after a bounded wait."""
    deadline_s = time.monotonic() + QUIET_WAIT_S_MAX
    while psutil.cpu_percent(_QUIET_LOOK_S) / 100 > QUIET_CPU_SHARE and time.monotonic() < deadline_s:
        pass


def write_jobs(rows: list[dict[str, Any]], file: Path) -> None:
    """Write exported jobs in the format of contracts.runs.JOBS."""
    stamp = pa.timestamp("us", tz="UTC")
    kinds = {datetime: stamp}
    types = {name: stamp if name.endswith("_at") else pa.string() for name in JOBS.names}
    counts = ("attempts_spent", "deaths", "claim_token", "source_bytes", "source_width", "source_height")
    types |= dict.fromkeys(counts, pa.int64())
    plain = [
        {name: row[name] if type(row[name]) in {*kinds, int, type(None)} else str(row[name]) for name in JOBS.names}
        for row in rows
    ]
    schema = pa.schema([(name, types[name]) for name in JOBS.names])
    pq.write_table(pa.Table.from_pylist(plain, schema=schema), file, row_group_size=_ROWS_PER_GROUP)


def _sampling(job: CellJob, target: Target) -> AbstractContextManager[Sampling]:
    config = SamplerConfig(metrics_url=target.metrics_url, roots=target.roots(), file=str(job.folder / SAMPLES.file))
    return sampling(config, config_file=job.folder / "sampler.json")


def _empty_first(target: Target, on_tick: Tick) -> None:
    """Finish what an interrupted cell has left on servers that outlived it."""
    if target.unfinished_count():
        target.start_workers(concurrency=2, prefetch=2)
        _wait_drained(target, on_tick)


def _wait_drained(target: Target, on_tick: Tick) -> None:
    deadline_s = time.monotonic() + DRAIN_S_MAX
    while (left := target.unfinished_count()) > 0:
        if time.monotonic() > deadline_s:
            raise CellAbortedError(f"{left} jobs are unfinished {DRAIN_S_MAX:.0f} s after the load")
        on_tick()
        time.sleep(_POLL_S)


def _steal_share(before: Any, after: Any) -> float:
    """Return the share of all CPU time that the hypervisor took between two readings; 0 where it is not told."""
    total = sum(after) - sum(before)
    return (getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)) / total if total > 0 else 0.0
