"""The strip chart of the overload pulse: both policies side by side on shared axes."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from analysis import style
from analysis.load import Cell
from analysis.metrics import Array, in_system, queue_lag
from analysis.pulse import (
    OBJECTIVE_S,
    STEP_S,
    Fluid,
    PulseMetrics,
    PulseWindow,
    fluid_pulse,
    pulse_metrics,
    pulse_window,
    rate_series,
)
from analysis.style import Picture
from analysis.times import arrivals_with_jobs, jobs_in_seconds, samples_in_seconds
from contracts.runs import Metric, Outcome

_TITLES = {"none": "No bound (policy none)", "count": "Bounded (policy count)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """What one column of the chart is drawn from."""

    cell: Cell
    window: PulseWindow
    metrics: PulseMetrics
    fluid: Fluid
    at_s: Array


def pulse_chart(cells: list[Cell]) -> Picture:
    """Return the strip chart of the pulse cells, one column a policy."""
    columns = [_column(cell) for cell in sorted(cells, key=lambda cell: cell.record.spec.policy, reverse=True)]
    figure, axes = style.new_figure(
        4, len(columns), width_in=5.0 * len(columns) + 0.5, height_in=8.4, sharex=True, sharey="row"
    )
    for index, column in enumerate(columns):
        _rates(axes[0][index], column)
        _lag(axes[1][index], column)
        _system(axes[2][index], column)
        _memory(axes[3][index], column)
        axes[3][index].set_xlabel("Time since the load began, s")
        for row in range(4):
            _shade(axes[row][index], column.window)
    for row, label in enumerate(("Jobs/s", "Queue lag, s", "Jobs in system", "Memory, MiB")):
        axes[row][0].set_ylabel(label)
        axes[row][0].set_ylim(bottom=0)
    axes[0][0].set_xlim(0, max(column.window.load_end_s for column in columns))
    spec = columns[0].cell.record.spec
    counts = ", ".join(f"{column.cell.record.spec.policy} n = {column.metrics.offered_count}" for column in columns)
    base, pulse, _ = spec.phases
    return Picture(
        name="pulse",
        figure=figure,
        caption=(
            f"Overload pulse ({spec.size}, {spec.setting}): {base.capacity_share:g} × capacity, then "
            f"{pulse.capacity_share:g} × for {pulse.duration_s:g} s (shaded), then {base.capacity_share:g} × again; "
            f"the same arrivals for both policies ({counts}). Goodput = ready within {OBJECTIVE_S:g} s of the due "
            "time, counted when ready, in bins of 2 s. Dashed: what a fluid queue predicts from the drain's capacity. "
            "One run each."
        ),
        alt=_alt(columns),
    )


def _column(cell: Cell) -> _Column:
    record, window = cell.record, pulse_window(cell)
    bound_jobs = float(record.jobs_bound) if record.jobs_bound else math.inf
    return _Column(
        cell=cell,
        window=window,
        metrics=pulse_metrics(cell),
        fluid=fluid_pulse(window, capacity_per_s=record.capacity_per_s, bound_jobs=bound_jobs),
        at_s=np.arange(0.0, record.ended_s, STEP_S),
    )


def _alt(columns: list[_Column]) -> str:
    parts = []
    for column in columns:
        found = column.metrics
        back = "not within the run" if math.isinf(found.recovery_s) else f"{found.recovery_s:.0f} s after the pulse"
        parts.append(
            f"policy {column.cell.record.spec.policy}: queue lag peaks at {found.lag_peak_s:.1f} s with "
            f"{found.in_system_peak_jobs:.0f} jobs in system and recovers {back}"
        )
    return "Strip chart of rates, queue lag, jobs in system and memory over time; " + "; ".join(parts) + "."


def _shade(axes: Axes, window: PulseWindow) -> None:
    axes.axvspan(window.begin_s, window.end_s, color=style.PALE, zorder=0, linewidth=0)


def _rates(axes: Axes, column: _Column) -> None:
    arrivals = arrivals_with_jobs(column.cell)
    accepted = arrivals[arrivals["outcome"] == Outcome.ACCEPTED]
    good = accepted[accepted["ttr_s"] <= OBJECTIVE_S]
    end_s = column.window.load_end_s
    at_s, offered_per_s = rate_series(arrivals["due_s"], end_s=end_s)
    axes.fill_between(at_s, offered_per_s, step="mid", color="#BDBDBD", linewidth=0, label="offered")
    for name, times_s, colour in (
        ("accepted", accepted["due_s"], style.BLACK),
        ("goodput", good["finished_s"], style.GREEN),
    ):
        at_s, per_s = rate_series(times_s, end_s=end_s)
        axes.plot(at_s, per_s, color=colour, linewidth=1.5, label=name, drawstyle="steps-mid")
    record = column.cell.record
    label = f"capacity {record.capacity_per_s:.1f}/s"
    axes.axhline(record.capacity_per_s, color=style.BLACK, linewidth=0.9, linestyle=":", label=label)
    policy = record.spec.policy
    bound = f", N = {record.jobs_bound} jobs" if record.jobs_bound else ""
    axes.set_title(_TITLES.get(policy, policy) + bound, color=style.POLICY_COLOURS.get(policy, style.BLACK))
    axes.legend(loc="upper right", fontsize=8, handlelength=1.4)


def _lag(axes: Axes, column: _Column) -> None:
    colour = style.POLICY_COLOURS.get(column.cell.record.spec.policy, style.BLACK)
    lag_s = queue_lag(jobs_in_seconds(column.cell), column.at_s)
    axes.plot(column.at_s, lag_s, color=colour)
    _fluid(axes, column)
    found, window = column.metrics, column.window
    if not math.isfinite(found.recovery_s):
        axes.annotate("not recovered in the cell", (0.99, 0.9), xycoords="axes fraction", ha="right", color=colour)
        return
    recovered_s = window.end_s + found.recovery_s
    axes.axvline(recovered_s, color=colour, linewidth=1.0, linestyle="-")
    is_late = recovered_s > 0.75 * window.load_end_s
    axes.annotate(
        f"recovered\n{found.recovery_s:.0f} s after",
        (recovered_s, 0.78),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if is_late else 4, 0),
        textcoords="offset points",
        ha="right" if is_late else "left",
        fontsize=8.5,
        color=colour,
    )


def _fluid(axes: Axes, column: _Column) -> None:
    """Draw the fluid queue's lag."""
    fluid = column.fluid
    axes.plot(fluid.at_s, fluid.lag_s, color=style.BLACK, linewidth=1.0, linestyle="--")


def _system(axes: Axes, column: _Column) -> None:
    record = column.cell.record
    colour = style.POLICY_COLOURS.get(record.spec.policy, style.BLACK)
    axes.plot(column.at_s, in_system(jobs_in_seconds(column.cell), column.at_s), color=colour)
    axes.plot(column.fluid.at_s, column.fluid.backlog_jobs, color=style.BLACK, linewidth=1.0, linestyle="--")
    if record.jobs_bound:
        axes.axhline(record.jobs_bound, color=style.BLACK, linewidth=0.9, linestyle=":")
        end_s = column.window.load_end_s
        axes.annotate(
            f"bound {record.jobs_bound}",
            (end_s, record.jobs_bound),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )


def _memory(axes: Axes, column: _Column) -> None:
    samples = samples_in_seconds(column.cell)
    for role, colour in (("worker", style.PURPLE), ("api", style.ORANGE), ("postgres", style.SKY), ("s3", style.GREEN)):
        rss = samples[(samples["metric"] == Metric.RSS_BYTES) & (samples["role"] == role)]
        if rss.empty:
            continue
        axes.plot(rss["at_s"], rss["value"] / 2**20, color=colour, linewidth=1.3, label=role)
    axes.margins(y=0.45)
    axes.legend(loc="upper left", fontsize=8, ncols=4, handlelength=1.4, title="RSS, sum over the role's processes")
