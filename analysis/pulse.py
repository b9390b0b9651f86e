"""Overload pulse: series over time, recovery, and what a fluid model predicts. Pure.

Recovered = from some instant after the pulse on, for `HOLD_S`: queue lag at or under the larger of twice its p95 before
the pulse and `LAG_S_FLOOR`, and completions in that stretch not below what Poisson chance allows at the base rate.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.load import Cell
from analysis.metrics import in_system, percentile, queue_lag
from analysis.times import arrivals_with_jobs, jobs_in_seconds
from contracts.runs import Outcome

HOLD_S = 5.0
LAG_S_FLOOR = 1.0
STEP_S = 0.1
#: Width of the bins of the rate series.
BIN_S = 2.0
#: Ready within this time of the due time counts as goodput.
OBJECTIVE_S = 15.0

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseWindow:
    """Where the phases lie, seconds after time zero, with their planned rates (jobs a second)."""

    begin_s: float
    end_s: float
    load_end_s: float
    base_per_s: float
    peak_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseMetrics:
    """What the pulse did and how the system came back."""

    offered_count: int
    accepted_count: int
    refused_count: int
    refused_in_pulse_share: float
    answer_refused_p50_s: float
    lag_peak_s: float
    lag_area_s2: float  #: area under the queue lag, seconds × seconds
    backlog_peak_jobs: float
    in_system_peak_jobs: float
    ttr_p95_s: float  #: of all accepted arrivals of the cell
    late_share: float  #: of the accepted: not ready within the objective
    goodput_per_s: float  #: ready within the objective, a second of the load
    throughput_in_pulse_per_s: float  #: completions a second while the pulse lasted
    recovery_s: float  #: inf: not inside the cell
    recovery_fluid_s: float  #: predicted from the drain's capacity
    recovery_fluid_live_s: float  #: predicted from the throughput that the pulse itself reached
    lag_peak_fluid_s: float


def pulse_window(cell: Cell) -> PulseWindow:
    """Return the phases of a pulse cell: base, pulse, recovery."""
    base, pulse, recovery = cell.record.spec.phases
    rates = cell.record.rates_per_s
    return PulseWindow(
        begin_s=base.duration_s,
        end_s=base.duration_s + pulse.duration_s,
        load_end_s=base.duration_s + pulse.duration_s + recovery.duration_s,
        base_per_s=rates[base.name],
        peak_per_s=rates[pulse.name],
    )


def pulse_metrics(cell: Cell) -> PulseMetrics:
    """Return the numbers of a pulse cell."""
    window = pulse_window(cell)
    arrivals = arrivals_with_jobs(cell)
    jobs = jobs_in_seconds(cell)
    at_s = np.arange(0.0, window.load_end_s, STEP_S)
    lag_s = queue_lag(jobs, at_s)
    held = in_system(jobs, at_s)
    accepted = arrivals[arrivals["outcome"] == Outcome.ACCEPTED]
    refused = arrivals[arrivals["outcome"] == Outcome.REFUSED]
    pulse = arrivals[arrivals["phase"] == cell.record.spec.phases[1].name]
    in_time = accepted["ttr_s"] <= OBJECTIVE_S
    live_per_s = _completions_per_s(jobs, begin_s=window.begin_s + 1.0, end_s=window.end_s)
    threshold_s = lag_threshold_s(at_s, lag_s, window)
    bound = float(cell.record.jobs_bound) if cell.record.jobs_bound else math.inf
    fluid = fluid_pulse(window, capacity_per_s=cell.record.capacity_per_s, bound_jobs=bound)
    fluid_live = fluid_pulse(window, capacity_per_s=live_per_s, bound_jobs=bound)
    return PulseMetrics(
        offered_count=len(arrivals),
        accepted_count=len(accepted),
        refused_count=len(refused),
        refused_in_pulse_share=float((pulse["outcome"] == Outcome.REFUSED).mean()),
        answer_refused_p50_s=percentile(refused["answer_s"], 0.5),
        lag_peak_s=float(lag_s.max()),
        lag_area_s2=float(lag_s.sum() * STEP_S),
        backlog_peak_jobs=float(held[(at_s >= window.begin_s) & (at_s <= window.end_s + 1)].max()),
        in_system_peak_jobs=float(held.max()),
        ttr_p95_s=percentile(accepted["ttr_s"], 0.95),
        late_share=float(1 - in_time.mean()),
        goodput_per_s=float(in_time.sum()) / window.load_end_s,
        throughput_in_pulse_per_s=live_per_s,
        recovery_s=recovery_s(jobs, at_s, lag_s, window=window),
        recovery_fluid_s=fluid.recovery_s(window, threshold_s=threshold_s),
        recovery_fluid_live_s=fluid_live.recovery_s(window, threshold_s=threshold_s),
        lag_peak_fluid_s=float(fluid.lag_s.max()),
    )


def _completions_per_s(jobs: pd.DataFrame, *, begin_s: float, end_s: float) -> float:
    return float(jobs["finished_s"].between(begin_s, end_s).sum()) / (end_s - begin_s)


def lag_threshold_s(at_s: Array, lag_s: Array, window: PulseWindow) -> float:
    """Return the queue lag under which the system counts as recovered."""
    before = lag_s[at_s < window.begin_s]
    return max(LAG_S_FLOOR, 2 * float(np.quantile(before, 0.95)) if len(before) else 0.0)


def recovery_s(jobs: pd.DataFrame, at_s: Array, lag_s: Array, *, window: PulseWindow) -> float:
    """Return the time from the pulse's end to the first instant from which recovery holds; inf when there is none."""
    threshold_s = lag_threshold_s(at_s, lag_s, window)
    finished_s = np.sort(jobs["finished_s"].dropna().to_numpy(dtype=float))
    least = completions_floor(window.base_per_s * HOLD_S)
    steps = round(HOLD_S / STEP_S)
    calm = lag_s <= threshold_s
    for index in range(int(np.searchsorted(at_s, window.end_s)), len(at_s) - steps):
        done = np.searchsorted(finished_s, at_s[index] + HOLD_S) - np.searchsorted(finished_s, at_s[index])
        if calm[index : index + steps].all() and done >= least:
            return float(at_s[index] - window.end_s)
    return math.inf


def completions_floor(expected: float) -> float:
    """Return the count that a Poisson count of this mean stays under in about one of 200 cases."""
    return max(1.0, expected - 2.6 * math.sqrt(expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fluid:
    """A first-in-first-out queue of water: what the pulse would do without chance."""

    at_s: Array
    backlog_jobs: Array
    lag_s: Array  #: age of what is served next

    def recovery_s(self, window: PulseWindow, *, threshold_s: float) -> float:
        """Return the time from the pulse's end until the lag stays under the threshold; inf when it never does."""
        late = self.at_s[(self.at_s >= window.end_s) & (self.lag_s > threshold_s)]
        if not len(late):
            return 0.0
        return math.inf if late[-1] >= self.at_s[-1] - STEP_S else float(late[-1] + STEP_S - window.end_s)


#: How much longer than the load the fluid is followed.
_FLUID_FACTOR = 2.0


def fluid_pulse(window: PulseWindow, *, capacity_per_s: float, bound_jobs: float) -> Fluid:
    """Return the fluid queue under the pulse's rates with an optional bound on its backlog.

    The lag is read off the two cumulative curves: what is served next at t came in when the inflow stood where the
    outflow stands at t.
    """
    at_s = np.arange(0.0, window.load_end_s * _FLUID_FACTOR, STEP_S)
    offered_per_s = np.where((at_s >= window.begin_s) & (at_s < window.end_s), window.peak_per_s, window.base_per_s)
    inflow, outflow = np.zeros(len(at_s)), np.zeros(len(at_s))
    for index in range(1, len(at_s)):
        backlog = inflow[index - 1] - outflow[index - 1]
        served = min(backlog + offered_per_s[index - 1] * STEP_S, capacity_per_s * STEP_S)
        taken = min(offered_per_s[index - 1] * STEP_S, bound_jobs - backlog + served)
        inflow[index], outflow[index] = inflow[index - 1] + taken, outflow[index - 1] + served
    came_s = np.interp(outflow, inflow, at_s)
    return Fluid(at_s=at_s, backlog_jobs=inflow - outflow, lag_s=at_s - came_s)


def rate_series(times_s: pd.Series, *, end_s: float) -> tuple[Array, Array]:
    """Return bin middles and events a second."""
    edges = np.arange(0.0, end_s + BIN_S, BIN_S)
    counts, _ = np.histogram(times_s.dropna().to_numpy(dtype=float), bins=edges)
    return (edges[:-1] + BIN_S / 2), counts / BIN_S
