"""Frames of one cell → its numbers. Pure; units are the last word of every name.

Invariant: a number that the data cannot carry is NaN, never a guess: percentiles need enough samples, a rate needs a
window, a recovery that did not happen inside the cell is infinite and printed as such.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.load import Cell
from analysis.times import arrivals_with_jobs, jobs_in_seconds, samples_in_seconds
from contracts.runs import Metric, Outcome

#: Least samples for a percentile to be worth printing, by its share.
SAMPLES_MIN = {0.50: 20, 0.95: 200, 0.99: 1000}
#: The first completions of a drain are left out: workers are starting.
DRAIN_SKIPPED_SHARE = 0.10
#: Arrivals of a steady cell that are due earlier are warm-up.
WARM_UP_S = 5.0

Array = npt.NDArray[np.float64]


def percentile(values: pd.Series, share: float) -> float:
    """Return the percentile (`share` of `SAMPLES_MIN`) or NaN when there are too few values for it."""
    kept = values.dropna()
    return float(kept.quantile(share)) if len(kept) >= SAMPLES_MIN[share] else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMetrics:
    """Capacity of one setting, from the server's stamps of a drained backlog."""

    jobs_per_s: float
    megapixels_per_s: float
    mib_per_s: float  #: of source bytes
    completions_count: int  #: completions that the rate stands on
    first_ready_s: float  #: from the start of the workers to the first result


def drain_metrics(cell: Cell) -> DrainMetrics:
    """Return the drain's rate over the last 90 % of its completions."""
    jobs = jobs_in_seconds(cell)
    ready = jobs[jobs["state"] == "ready"].sort_values("finished_s")
    rate, kept = completion_rate(ready["finished_s"].to_numpy(dtype=float))
    megapixels = float((ready["source_width"] * ready["source_height"]).mean() / 1e6)
    mib = float(ready["source_bytes"].mean() / 2**20)
    first_s = float(ready["finished_s"].min()) - cell.record.work_began_s if len(ready) else math.nan
    return DrainMetrics(
        jobs_per_s=rate,
        megapixels_per_s=rate * megapixels,
        mib_per_s=rate * mib,
        completions_count=kept,
        first_ready_s=first_s,
    )


def completion_rate(finished_s: Array) -> tuple[float, int]:
    """Return completions a second over the last 90 % of them, and how many intervals that is."""
    ordered = np.sort(finished_s)
    skipped = math.ceil(len(ordered) * DRAIN_SKIPPED_SHARE)
    kept = len(ordered) - skipped
    if skipped == 0 or kept <= 1:
        return math.nan, 0
    return float(kept / (ordered[-1] - ordered[skipped - 1])), kept


def baseline_rate(cell: Cell) -> tuple[float, int]:
    """Return a baseline loop's files a second, by the same rule as a drain."""
    return completion_rate(cell.baseline["ended_s"].to_numpy(dtype=float))


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyMetrics:
    """Time to ready of a live load below capacity, over the arrivals after the warm-up."""

    arrivals_count: int
    accepted_count: int
    offered_per_s: float
    ready_per_s: float
    ttr_p50_s: float
    ttr_p95_s: float
    ttr_p99_s: float
    answer_p50_s: float  #: of the HTTP answer, from the due time
    answer_p95_s: float
    accept_mean_s: float
    wait_mean_s: float
    service_mean_s: float
    lag_p95_s: float  #: queue lag: age of the oldest unstarted job, over the window
    backlog_growth_per_s: float  #: slope of the jobs in system over the window
    unstable: bool  #: the slope's 95 % interval lies above zero and adds up to more than chance in the window


def steady_window(cell: Cell) -> tuple[float, float]:
    """Return begin and end of the measured arrivals, seconds after time zero."""
    due_s = cell.requests["due_s"]
    return min(WARM_UP_S, float(due_s.max()) / 4), float(due_s.max())


def steady_metrics(cell: Cell) -> SteadyMetrics:
    """Return the numbers of a steady cell."""
    begin_s, end_s = steady_window(cell)
    arrivals = arrivals_with_jobs(cell)
    inside = arrivals[(arrivals["due_s"] >= begin_s) & (arrivals["due_s"] <= end_s)]
    span_s = end_s - begin_s
    jobs = jobs_in_seconds(cell)
    finished = jobs["finished_s"].between(begin_s, end_s) & (jobs["state"] == "ready")
    at_s = np.arange(begin_s, end_s, 0.1)
    growth_per_s, unstable = backlog_slope(at_s, in_system(jobs, at_s))
    return SteadyMetrics(
        arrivals_count=len(inside),
        accepted_count=int((inside["outcome"] == Outcome.ACCEPTED).sum()),
        offered_per_s=len(inside) / span_s,
        ready_per_s=float(finished.sum()) / span_s,
        ttr_p50_s=percentile(inside["ttr_s"], 0.50),
        ttr_p95_s=percentile(inside["ttr_s"], 0.95),
        ttr_p99_s=percentile(inside["ttr_s"], 0.99),
        answer_p50_s=percentile(inside["answer_s"], 0.50),
        answer_p95_s=percentile(inside["answer_s"], 0.95),
        accept_mean_s=float(inside["accept_s"].mean()),
        wait_mean_s=float(inside["wait_s"].mean()),
        service_mean_s=float(inside["service_s"].mean()),
        lag_p95_s=float(np.quantile(queue_lag(jobs, at_s), 0.95)),
        backlog_growth_per_s=growth_per_s,
        unstable=unstable,
    )


def in_system(jobs: pd.DataFrame, at_s: Array) -> Array:
    """Return how many jobs held a place at each instant, from their own stamps."""
    return _count_between(jobs["admitted_s"], jobs["released_s"], at_s)


def queue_lag(jobs: pd.DataFrame, at_s: Array) -> Array:
    """Return the age, at each instant, of the oldest accepted job that no worker had started yet; 0 without one."""
    accepted = jobs.dropna(subset=["accepted_s"]).sort_values("accepted_s")
    accepted_s = np.append(accepted["accepted_s"].to_numpy(dtype=float), np.inf)
    claimed_s = accepted["claimed_s"].fillna(np.inf).to_numpy(dtype=float)
    # The oldest not started at t is the first whose predecessors and itself were not all claimed by t.
    oldest = np.searchsorted(np.maximum.accumulate(claimed_s), at_s, side="right")
    ages: Array = np.maximum(at_s - accepted_s[oldest], 0.0)
    return ages


def _count_between(begin_s: pd.Series, end_s: pd.Series, at_s: Array) -> Array:
    begins = np.sort(begin_s.dropna().to_numpy(dtype=float))
    ends = np.sort(end_s[begin_s.notna()].dropna().to_numpy(dtype=float))
    begun = np.searchsorted(begins, at_s, side="right")
    ended = np.searchsorted(ends, at_s, side="right")
    return (begun - ended).astype(float)


_BLOCKS_COUNT = 6
#: Student's t, 97.5 %, for six blocks less two fitted values.
_T_BLOCKS = 2.776
#: Growth over the window that chance makes in a stable queue near 0.8 of capacity, jobs.
_GROWTH_JOBS_MIN = 10.0


def backlog_slope(at_s: Array, jobs_count: Array) -> tuple[float, bool]:
    """Return the slope of the jobs in system (jobs a second) from block means, and whether it is growth."""
    if len(at_s) < _BLOCKS_COUNT * 2:
        return math.nan, False
    x = np.array([block.mean() for block in np.array_split(at_s, _BLOCKS_COUNT)])
    y = np.array([block.mean() for block in np.array_split(jobs_count, _BLOCKS_COUNT)])
    slope, offset = np.polyfit(x, y, 1)
    residual = y - (slope * x + offset)
    spread = float(np.sqrt((residual**2).sum() / (_BLOCKS_COUNT - 2) / ((x - x.mean()) ** 2).sum()))
    grows = slope - _T_BLOCKS * spread > 0 and slope * (at_s[-1] - at_s[0]) > _GROWTH_JOBS_MIN
    return float(slope), bool(grows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMetrics:
    """Memory of the worker role over a cell, and CPU of every role."""

    worker_rss_peak_mib: float  #: highest sum of RSS over the worker's process tree (shared pages counted repeatedly)
    worker_process_peak_mib: float  #: highest VmHWM of one process of the tree: does it fit
    worker_pss_peak_mib: float  #: highest sum of PSS: what the tree really takes
    api_rss_peak_mib: float


def memory_metrics(cell: Cell) -> MemoryMetrics:
    """Return peaks in MiB; NaN for a role that was not sampled."""
    peaks = cell.samples.groupby(["role", "metric"])["value"].max()

    def mib(role: str, metric: str) -> float:
        return float(peaks.get((role, metric), math.nan)) / 2**20

    return MemoryMetrics(
        worker_rss_peak_mib=mib("worker", Metric.RSS_BYTES),
        worker_process_peak_mib=mib("worker", Metric.RSS_PEAK_BYTES),
        worker_pss_peak_mib=mib("worker", Metric.PSS_BYTES),
        api_rss_peak_mib=mib("api", Metric.RSS_BYTES),
    )


def cpu_by_role(cell: Cell, *, begin_s: float, end_s: float) -> dict[str, float]:
    """Return each role's mean use of one core between two instants after time zero."""
    samples = samples_in_seconds(cell)
    cpu = samples[(samples["metric"] == Metric.CPU_S) & samples["at_s"].between(begin_s, end_s)]
    shares: dict[str, float] = {}
    for role, rows in cpu.groupby("role"):
        span_s = rows["at_s"].iloc[-1] - rows["at_s"].iloc[0]
        if span_s > 0:
            shares[str(role)] = float((rows["value"].iloc[-1] - rows["value"].iloc[0]) / span_s)
    return shares
