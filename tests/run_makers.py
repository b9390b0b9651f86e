"""Synthetic runs for the tests of the analysis: a seeded queue simulation written in the raw format of a real run."""

import heapq
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.cells import CellKind, CellRecord, CellSpec, GeneratorFacts, LoadPhase
from contracts.runs import (
    CELL_FILE,
    ENVIRONMENT_FILE,
    JOBS,
    MACHINE,
    MANIFEST_FILE,
    REQUESTS,
    RUN_FORMAT_VERSION,
    Metric,
)
from loadtest.arrivals import Phase, Schedule, constant, poisson, poisson_count
from loadtest.generator import write_schedule

ZERO_WALL_S = 1_700_000_000.0
ZERO_MONOTONIC_S = 5_000.0
DATABASE_MINUS_HOST_S = 0.25
WIDTH, HEIGHT = 1632, 1224

PULSE_PHASES = (
    LoadPhase(name="base", duration_s=10.0, capacity_share=0.6),
    LoadPhase(name="pulse", duration_s=20.0, capacity_share=2.0),
    LoadPhase(name="recovery", duration_s=65.0, capacity_share=0.6),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The simulated system: `slots` workers that take `service_s` a job on average, and a bound on jobs in system."""

    slots: int = 2
    service_s: float = 0.2
    bound_jobs: int = 0
    accept_s: float = 0.02

    @property
    def capacity_per_s(self) -> float:
        return self.slots / self.service_s


def spec(kind: CellKind, *, concurrency: int = 2, size: str = "2MP", policy: str = "none") -> CellSpec:
    is_loop = kind in {CellKind.BARE, CellKind.DIRECT}
    phases = PULSE_PHASES if kind is CellKind.PULSE else ()
    return CellSpec(
        kind=kind,
        size=size,
        concurrency=concurrency,
        prefetch=0 if is_loop else concurrency,
        policy="" if is_loop else policy,
        jobs_count=0 if kind is CellKind.PULSE else 200,
        phases=phases,
        bound_s=10.0 if policy == "count" else 0.0,
        seed=7,
        repeat=0,
    )


def simulate(due_s: np.ndarray, server: Server, *, seed: int, begin_s: float = 0.0) -> pd.DataFrame:
    """Return one row an arrival: outcome and its times, from a first-come-first-served queue with a bound."""
    generator = np.random.Generator(np.random.PCG64(seed))
    free = [begin_s] * server.slots
    leaving: list[float] = []
    rows = []
    for due in due_s:
        while leaving and leaving[0] <= due:
            heapq.heappop(leaving)
        if server.bound_jobs and len(leaving) >= server.bound_jobs:
            rows.append((due, False, np.nan, np.nan, np.nan, np.nan))
            continue
        accepted = due + server.accept_s
        claimed = max(accepted + 0.005, heapq.heappop(free))
        finished = claimed + server.service_s * float(generator.uniform(0.8, 1.2))
        heapq.heappush(free, finished)
        heapq.heappush(leaving, finished)
        rows.append((due, True, due + 0.001, accepted, claimed, finished))
    columns = ["due_s", "is_accepted", "admitted_s", "accepted_s", "claimed_s", "finished_s"]
    return pd.DataFrame(rows, columns=columns)


def write_cell(root: Path, cell: CellSpec, server: Server, *, order: int = 0, lag_s: float = 0.0005) -> CellRecord:
    """Write one finished cell of `cell` as the bench would, and return its record."""
    schedule = _schedule(cell, server)
    begin_s = float(schedule.duration_s) + 2.0 if cell.kind is CellKind.DRAIN else 0.0
    truth = simulate(schedule.due_us / 1e6, server, seed=cell.seed, begin_s=begin_s)
    record = _record(cell, server, schedule=schedule, truth=truth, order=order, begin_s=begin_s)
    folder = root / "cells" / record.cell_id
    folder.mkdir(parents=True)
    if cell.kind in {CellKind.BARE, CellKind.DIRECT}:
        _write_baseline(folder, server, cell)
    else:
        write_schedule(schedule, folder / "schedule.parquet")
        names = [schedule.phases[index].name for index in schedule.phase_index]
        _write_requests(folder, truth, phases=names, lag_s=lag_s)
        _write_jobs(folder, truth)
        _write_samples(folder, truth, end_s=record.ended_s, server=server)
    (folder / CELL_FILE).write_text(record.to_json())
    return record


def write_run(root: Path, cells: list[tuple[CellSpec, Server]]) -> None:
    """Write a whole run of simulated cells into `root`."""
    records = [write_cell(root, cell, server, order=order) for order, (cell, server) in enumerate(cells)]
    manifest = {
        "format_version": RUN_FORMAT_VERSION,
        "plan_name": "quick",
        "repeats_count": 1,
        "code_version": "synthetic",
        "seed": 7,
        "cells": [{"cell_id": record.cell_id, "spec": asdict(record.spec)} for record in records],
    }
    (root / MANIFEST_FILE).write_text(json.dumps(manifest))
    environment = {"cpu_model": "simulated", "cpu_count": 2, "python": "3.11", "kernel": "none"}
    (root / ENVIRONMENT_FILE).write_text(json.dumps(environment))


def whole_run(root: Path) -> None:
    """Write a run with every kind of cell, shaped like the quick plan."""
    cells: list[tuple[CellSpec, Server]] = []
    for size, service_s in (("0.3MP", 0.06), ("2MP", 0.2)):
        for concurrency in (1, 2, 4):
            server = Server(slots=min(concurrency, 2), service_s=service_s)
            cells.append((spec(CellKind.DRAIN, concurrency=concurrency, size=size), server))
            cells.append((spec(CellKind.STEADY, concurrency=concurrency, size=size), server))
    cells.append((spec(CellKind.BARE), Server(service_s=0.185)))
    cells.append((spec(CellKind.DIRECT), Server(service_s=0.198)))
    cells.append((spec(CellKind.PULSE), Server()))
    cells.append((spec(CellKind.PULSE, policy="count"), Server(bound_jobs=100)))
    write_run(root, cells)


def _schedule(cell: CellSpec, server: Server) -> Schedule:
    if cell.kind is CellKind.PULSE:
        phases = [
            Phase(name=p.name, duration_s=p.duration_s, rate_per_s=p.capacity_share * server.capacity_per_s)
            for p in cell.phases
        ]
        return poisson(phases, seed=cell.seed, images=64)
    if cell.kind is CellKind.STEADY:
        return poisson_count(300, rate_per_s=0.8 * server.capacity_per_s, seed=cell.seed, images=64)
    return constant(cell.jobs_count, rate_per_s=50.0, seed=cell.seed, images=64)


def _record(
    cell: CellSpec, server: Server, *, schedule: Schedule, truth: pd.DataFrame, order: int, begin_s: float
) -> CellRecord:
    ended_s = float(truth["finished_s"].max())
    is_loop = cell.kind in {CellKind.BARE, CellKind.DIRECT}
    facts = GeneratorFacts(
        priority="fifo",
        zero_monotonic_s=ZERO_MONOTONIC_S,
        zero_wall_s=ZERO_WALL_S,
        planned_count=len(schedule),
        sent_count=len(schedule),
        in_flight_max=3,
        elapsed_s=schedule.duration_s,
        cpu_s=schedule.duration_s * 0.1,
    )
    return CellRecord(
        cell_id=cell.cell_id(code_version="synthetic", corpus_sha256="0"),
        spec=cell,
        order=order,
        capacity_per_s=server.capacity_per_s,
        jobs_bound=server.bound_jobs,
        rates_per_s={phase.name: phase.rate_per_s for phase in schedule.phases},
        schedule_sha256="" if is_loop else schedule.sha256,
        corpus_sha256="0",
        zero_monotonic_s=ZERO_MONOTONIC_S,
        zero_wall_s=ZERO_WALL_S,
        database_minus_host_s=DATABASE_MINUS_HOST_S,
        work_began_s=begin_s,
        ended_s=ended_s,
        drained=True,
        load_average_before=0.2,
        steal_share=0.0,
        generator=None if is_loop else facts,
    )


def _write_requests(folder: Path, truth: pd.DataFrame, *, phases: list[str], lag_s: float) -> None:
    accepted = truth["is_accepted"]
    frame = pd.DataFrame(
        {
            "arrival": np.arange(len(truth)),
            "phase": phases,
            "due_s": truth["due_s"],
            "started_s": truth["due_s"] + lag_s,
            "ended_s": truth["accepted_s"].where(accepted, truth["due_s"] + 0.004) + 0.002,
            "status": np.where(accepted, 202, 503),
            "outcome": np.where(accepted, "accepted", "refused"),
            "code": [None if ok else "backlog_full" for ok in accepted],
            "job_id": [f"job-{index}" if ok else None for index, ok in enumerate(accepted)],
            "retry_after_s": np.where(accepted, 3.0, 7.0),
            "body_bytes": 285_000,
        }
    )
    pq.write_table(pa.Table.from_pandas(frame[list(REQUESTS.names)], preserve_index=False), folder / REQUESTS.file)


def _write_jobs(folder: Path, truth: pd.DataFrame) -> None:
    taken = truth[truth["is_accepted"]]

    def stamp(seconds: pd.Series) -> pd.Series:
        return pd.to_datetime(seconds + ZERO_WALL_S + DATABASE_MINUS_HOST_S, unit="s", utc=True)

    frame = pd.DataFrame(
        {
            "job_id": [f"job-{index}" for index in taken.index],
            "owner": "bench",
            "state": "ready",
            "error_code": pd.Series([None] * len(taken), dtype=object, index=taken.index),
            "admitted_at": stamp(taken["admitted_s"]),
            "accepted_at": stamp(taken["accepted_s"]),
            "published_at": stamp(taken["accepted_s"] + 0.003),
            "first_claimed_at": stamp(taken["claimed_s"]),
            "finished_at": stamp(taken["finished_s"]),
            "released_at": stamp(taken["finished_s"]),
            "attempts_spent": 1,
            "deaths": 0,
            "claim_token": 1,
            "source_bytes": 285_000,
            "source_width": WIDTH,
            "source_height": HEIGHT,
        }
    )
    pq.write_table(pa.Table.from_pandas(frame[list(JOBS.names)], preserve_index=False), folder / JOBS.file)


def _write_samples(folder: Path, truth: pd.DataFrame, *, end_s: float, server: Server) -> None:
    taken = truth[truth["is_accepted"]]
    rows: list[tuple[float, str, str, float]] = []
    for at_s in np.arange(0.0, end_s, 0.2):
        held = ((taken["admitted_s"] <= at_s) & (taken["finished_s"] > at_s)).sum()
        waiting = taken[(taken["accepted_s"] <= at_s) & (taken["claimed_s"] > at_s)]
        oldest = at_s - waiting["accepted_s"].min() if len(waiting) else 0.0
        instant = ZERO_MONOTONIC_S + float(at_s)
        rows.append((instant, Metric.PLACES_HELD_JOBS, "", float(held)))
        rows.append((instant, Metric.OLDEST_UNSTARTED_S, "", float(oldest)))
        cores = 0.9 * server.slots + 0.15
        rows.append((instant, Metric.CPU_S, MACHINE, float(at_s) * cores))
        for role, mib in (("worker", 120.0 + 60 * server.slots), ("api", 95.0)):
            rows.append((instant, Metric.RSS_BYTES, role, mib * 2**20))
            rows.append((instant, Metric.RSS_PEAK_BYTES, role, mib * 2**19))
            rows.append((instant, Metric.PSS_BYTES, role, mib * 0.8 * 2**20))
            rows.append((instant, Metric.CPU_S, role, float(at_s) * (0.9 * server.slots if role == "worker" else 0.1)))
    frame = pd.DataFrame(rows, columns=["at_s", "metric", "role", "value"])
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / "samples.parquet")


def _write_baseline(folder: Path, server: Server, cell: CellSpec) -> None:
    truth = simulate(np.zeros(cell.jobs_count), server, seed=3)
    frame = pd.DataFrame(
        {
            "process": np.arange(len(truth)) % server.slots,
            "item": np.arange(len(truth)),
            "started_s": truth["claimed_s"],
            "ended_s": truth["finished_s"],
            "cpu_s": truth["finished_s"] - truth["claimed_s"],
            "source_bytes": 285_000,
        }
    )
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / "baseline.parquet")
