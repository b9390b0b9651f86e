"""Validity checks of a cell: does the data hold together, and was the generator good enough? Pure.

Invariant: a cell with a failed check is invalid: it stays in the raw data and the appendix, and no claim stands on it.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
import pandas as pd

from analysis.load import Cell
from analysis.metrics import cpu_by_role, in_system, steady_metrics, steady_window
from analysis.times import jobs_in_seconds, samples_in_seconds
from contracts.cells import CellKind
from contracts.runs import MACHINE, Metric, Outcome

#: Generator lag (real start minus due time), seconds: the 99th percentile with real-time priority and without, and
#: the largest.
LAG_P99_S_FIFO = 0.010
LAG_P99_S_OTHER = 0.025
LAG_S_MAX = 0.100
#: The generator's share of one core.
GENERATOR_CPU_SHARE_MAX = 0.60
#: Relative difference of jobs in system: sampled gauge against the jobs' own stamps at the same instants.
LITTLE_WARN = 0.05
LITTLE_FAIL = 0.10
#: ... and never judged finer than this many jobs, the grain of a gauge read every 0.2 s.
LITTLE_JOBS_FLOOR = 0.25
#: Share of all CPU time that the hypervisor may take.
STEAL_SHARE_MAX = 0.01
#: Cores that may work for something else than the bench while a cell runs.
FOREIGN_CORES_MAX = 0.15
#: Least offered load of a pulse, as a share of capacity, for it to be an overload.
OVERLOAD_SHARE_MIN = 1.5


#: The check whose exception is the flag NOISY.
QUIET = "host quiet"


class Verdict(StrEnum):
    """Result of one check."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of one cell; `gate` says what was asked for, `found` what was there."""

    cell_id: str
    cell_title: str
    name: str
    verdict: Verdict
    found: str
    gate: str


def check_cell(cell: Cell) -> list[Check]:
    """Return all checks that apply to the cell's kind."""
    kind = cell.record.spec.kind
    if kind in {CellKind.BARE, CellKind.DIRECT}:
        return [_baseline_complete(cell), _quiet(cell)]
    found = [_sent(cell), _answers(cell), _kept(cell), _once(cell), _intervals(cell), _quiet(cell)]
    found += [_lag(cell), _generator_cpu(cell)] if kind is not CellKind.DRAIN else []
    if kind is CellKind.STEADY:
        found += [_little(cell), _stable(cell), _no_refusals(cell)]
    if kind is CellKind.PULSE:
        found += [_little(cell), _overloaded(cell)]
    return found


def _check(cell: Cell, name: str, *, verdict: Verdict, found: str, gate: str) -> Check:
    record = cell.record
    return Check(
        cell_id=record.cell_id, cell_title=record.spec.title, name=name, verdict=verdict, found=found, gate=gate
    )


def _exact(cell: Cell, name: str, *, holds: bool, found: str, gate: str) -> Check:
    return _check(cell, name, verdict=Verdict.PASS if holds else Verdict.FAIL, found=found, gate=gate)


def _sent(cell: Cell) -> Check:
    planned, sent = len(cell.schedule), len(cell.requests)
    same = set(cell.schedule["arrival"]) == set(cell.requests["arrival"])
    return _exact(
        cell, "planned = sent", holds=same and planned == sent, found=f"{planned} = {sent}", gate="every arrival once"
    )


def _answers(cell: Cell) -> Check:
    counts = cell.requests["outcome"].value_counts()
    wrong = int(sum(counts.get(name, 0) for name in (Outcome.REJECTED, Outcome.ERROR, Outcome.TIMEOUT)))
    found = ", ".join(f"{counts[name]} {name}" for name in counts.index) or "none"
    codes = sorted(set(cell.requests.loc[~cell.requests["outcome"].isin(["accepted", "refused"]), "code"]))
    text = f"{found} {codes or ''}".strip()
    return _exact(cell, "answers are 202 or a refusal", holds=wrong == 0, found=text, gate="no error, no timeout")


def _kept(cell: Cell) -> Check:
    accepted = set(cell.requests.loc[cell.requests["outcome"] == Outcome.ACCEPTED, "job_id"])
    jobs = cell.jobs.dropna(subset=["accepted_at"])
    final = jobs["state"].isin(["ready", "failed"])
    known = set(jobs["job_id"])
    failed = int((jobs["state"] == "failed").sum())
    lost = len(accepted - known) + int((~final).sum())
    ready = int((jobs["state"] == "ready").sum())
    found = f"{len(accepted)} accepted, {ready} ready, {failed} failed, {lost} lost"
    holds = lost == 0 and failed == 0 and known == accepted
    return _exact(cell, "accepted = kept", holds=holds, found=found, gate="accepted = ready + failed, none failed")


def _once(cell: Cell) -> Check:
    again = int((cell.jobs["claim_token"] > 1).sum())
    doubled = int(cell.jobs["job_id"].duplicated().sum())
    verdict = Verdict.FAIL if doubled else Verdict.WARN if again else Verdict.PASS
    found = f"{again} claimed more than once, {doubled} rows twice"
    return _check(cell, "each job once", verdict=verdict, found=found, gate="no second claim on a calm machine")


def _intervals(cell: Cell) -> Check:
    jobs = jobs_in_seconds(cell)
    order = ["admitted_s", "accepted_s", "claimed_s", "finished_s"]
    negative = sum(int((jobs[later] - jobs[earlier] < 0).sum()) for earlier, later in pairwise(order))
    return _exact(cell, "stamps in order", holds=negative == 0, found=f"{negative} negative intervals", gate="none")


def _quiet(cell: Cell) -> Check:
    steal, others = cell.record.steal_share, foreign_cores(cell)
    noisy = steal > STEAL_SHARE_MAX or others > FOREIGN_CORES_MAX
    return _check(
        cell,
        QUIET,
        verdict=Verdict.WARN if noisy else Verdict.PASS,
        found=f"steal {steal:.1%}, others {others:.2f} cores",
        gate=f"steal ≤ {STEAL_SHARE_MAX:.0%}, others ≤ {FOREIGN_CORES_MAX} cores (else NOISY)",
    )


def foreign_cores(cell: Cell) -> float:
    """Return how many cores, on average, worked for anything that is not part of the bench; NaN where not sampled.

    A loop is not sampled: for the bare one, which is nothing but computing, it is what its processes did not get.
    """
    if cell.record.spec.kind is CellKind.BARE:
        wall_s = (cell.baseline["ended_s"] - cell.baseline["started_s"]).sum()
        return float(1 - cell.baseline["cpu_s"].sum() / wall_s) * cell.record.spec.concurrency if wall_s else math.nan
    cores = cpu_by_role(cell, begin_s=-math.inf, end_s=math.inf)
    return cores.pop(MACHINE) - sum(cores.values()) if MACHINE in cores else math.nan


def _lag(cell: Cell) -> Check:
    p99_s, max_s = lag_of(cell.requests)
    fifo = cell.record.generator is not None and cell.record.generator.priority == "fifo"
    p99_s_max = LAG_P99_S_FIFO if fifo else LAG_P99_S_OTHER
    holds = p99_s <= p99_s_max and max_s <= LAG_S_MAX
    found = f"p99 {p99_s * 1000:.1f} ms, max {max_s * 1000:.1f} ms"
    gate = f"p99 ≤ {p99_s_max * 1000:.0f} ms, max ≤ {LAG_S_MAX * 1000:.0f} ms (else GENERATOR_LIMITED)"
    return _exact(cell, "generator lag", holds=holds, found=found, gate=gate)


def lag_of(requests: pd.DataFrame) -> tuple[float, float]:
    """Return the 99th percentile and the largest of the generator's lag, seconds."""
    lag_s = (requests["started_s"] - requests["due_s"]).to_numpy(dtype=float)
    if not len(lag_s):
        return math.nan, math.nan
    return float(np.quantile(lag_s, 0.99)), float(lag_s.max())


def _generator_cpu(cell: Cell) -> Check:
    facts = cell.record.generator
    share = facts.cpu_s / facts.elapsed_s if facts and facts.elapsed_s else math.nan
    return _exact(
        cell,
        "generator CPU",
        holds=share <= GENERATOR_CPU_SHARE_MAX,
        found=f"{share:.0%} of a core",
        gate=f"≤ {GENERATOR_CPU_SHARE_MAX:.0%} (else GENERATOR_LIMITED)",
    )


def little_pair(cell: Cell) -> tuple[float, float]:
    """Return the mean jobs in system, sampled from the admission books and counted from stamps at the same instants."""
    samples = samples_in_seconds(cell)
    begin_s, end_s = steady_window(cell)
    books = samples[(samples["metric"] == Metric.PLACES_HELD_JOBS) & samples["at_s"].between(begin_s, end_s)]
    if books.empty:
        return math.nan, math.nan
    counted = in_system(jobs_in_seconds(cell), books["at_s"].to_numpy(dtype=float))
    return float(books["value"].mean()), float(counted.mean())


def _little(cell: Cell) -> Check:
    sampled, counted = little_pair(cell)
    gap = abs(sampled - counted)
    relative = gap / counted if counted else math.nan
    verdict = Verdict.PASS if relative <= LITTLE_WARN or gap <= LITTLE_JOBS_FLOOR else Verdict.WARN
    verdict = Verdict.FAIL if verdict is Verdict.WARN and not relative <= LITTLE_FAIL else verdict
    found = f"L sampled {sampled:.2f}, λW from stamps {counted:.2f} ({relative:.1%})"
    gate = f"warn > {LITTLE_WARN:.0%}, fail > {LITTLE_FAIL:.0%}"
    return _check(cell, "Little's law", verdict=verdict, found=found, gate=gate)


def _stable(cell: Cell) -> Check:
    metrics = steady_metrics(cell)
    verdict = Verdict.WARN if metrics.unstable else Verdict.PASS
    found = f"backlog {metrics.backlog_growth_per_s:+.2f} jobs/s"
    return _check(cell, "steady", verdict=verdict, found=found, gate="no growth (else UNSTABLE)")


def _no_refusals(cell: Cell) -> Check:
    refused = int((cell.requests["outcome"] == Outcome.REFUSED).sum())
    return _exact(cell, "nothing refused when calm", holds=refused == 0, found=f"{refused} refused", gate="0")


def _overloaded(cell: Cell) -> Check:
    """The control group must fail: without a bound the backlog has to grow, or the test overloads nothing."""
    pulse = cell.record.spec.phases[1]
    window = cell.requests[cell.requests["phase"] == pulse.name]
    offered_per_s = len(window) / pulse.duration_s
    share = offered_per_s / cell.record.capacity_per_s
    return _exact(
        cell,
        "really overloaded",
        holds=share > OVERLOAD_SHARE_MIN,
        found=f"offered {share:.2f} × capacity",
        gate=f"> {OVERLOAD_SHARE_MIN} × capacity",
    )


def _baseline_complete(cell: Cell) -> Check:
    done, planned = len(cell.baseline), cell.record.spec.jobs_count
    return _exact(cell, "all files done", holds=done == planned, found=f"{done} of {planned}", gate="every file once")
