"""One function a figure: frames and numbers in, a `Picture` out. Drawing only."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import style
from analysis.checks import lag_of
from analysis.load import Cell, Run
from analysis.metrics import steady_metrics, steady_window
from analysis.strip_chart import pulse_chart
from analysis.style import Picture
from analysis.summary import Summary, rows_of
from analysis.times import arrivals_with_jobs
from contracts.cells import CellKind

_SPECTRUM_TICKS = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99)


def draw_all(run: Run, summary: Summary) -> list[Picture]:
    """Return every figure that the run has data for, in report order."""
    with style.applied():
        return list(_draw(run, summary))


def _draw(run: Run, summary: Summary) -> Iterator[Picture]:
    drains = summary.kind(CellKind.DRAIN)
    steadies = summary.kind(CellKind.STEADY).sort_values(["size", "setting"])
    by_kind = {kind: [cell for cell in run.cells if cell.record.spec.kind is kind] for kind in CellKind}
    if by_kind[CellKind.PULSE]:
        yield pulse_chart([cell for cell in by_kind[CellKind.PULSE] if cell.record.spec.repeat == 0])
    if len(drains):
        yield capacity_chart(summary)
    if len(steadies):
        yield spectrum_chart(by_kind[CellKind.STEADY], steadies)
        yield breakdown_chart(steadies)
    if len(drains):
        yield memory_chart(summary)
    if len(steadies):
        yield validity_chart(run, steadies)


def capacity_chart(summary: Summary) -> Picture:
    """Return capacity by setting and size, with the loops without a product as lines."""
    drains = summary.kind(CellKind.DRAIN).sort_values(["size", "setting"])
    sizes = sorted(drains["size"].unique(), key=_megapixels)
    figure, axes = style.new_figure(1, len(sizes), width_in=4.6 * len(sizes), height_in=2.9)
    colours = style.setting_colours(drains["setting"])
    for panel, size in zip(axes[0], sizes, strict=True):
        means = drains[drains["size"] == size].groupby("setting")["jobs_per_s"].mean()
        places = np.arange(len(means))
        panel.barh(places, means.to_numpy(), color=[colours[name] for name in means.index], height=0.62)
        panel.set_yticks(places, means.index)
        panel.invert_yaxis()
        panel.set_xlim(0, max([*means, *_loop_rates(summary, size).values()]) * 1.22)
        panel.grid(visible=False, axis="y")
        for place, rate in zip(places, means, strict=True):
            panel.annotate(f"{rate:.1f}", (0, place), xytext=(6, 0), **_inside())
        for name, rate in _loop_rates(summary, size).items():
            panel.axvline(rate, color=style.BLACK, linewidth=1.0, linestyle="--" if name == "bare" else ":")
            side = ("left", 3) if name == "bare" else ("right", -3)
            panel.annotate(
                f"{name} {rate:.1f}",
                (rate, -0.52),
                xytext=(side[1], 0),
                textcoords="offset points",
                ha=side[0],
                va="bottom",
                fontsize=8,
                annotation_clip=False,
            )
        panel.set_title(f"{spaced(size)} photos", pad=14)
        panel.set_xlabel("Capacity, jobs/s (last 90 % of a drained backlog)")
    axes[0][0].set_ylabel("Concurrency / prefetch")
    counts = ", ".join(f"{row.title} n = {int(row.completions_count)}" for row in rows_of(drains))
    best = "; ".join(
        f"{size}: {', '.join(f'{r.setting} {r.jobs_per_s:.1f}/s' for r in rows_of(drains[drains['size'] == size]))}"
        for size in sizes
    )
    return Picture(
        name="capacity",
        figure=figure,
        caption=(
            "Capacity by worker setting and image size. Lines: the bare loop (transform alone) and the direct loop "
            f"(fetch, transform, store, row update; no queue) in two processes. Completions behind each rate: {counts}."
        ),
        alt=f"Bars of jobs per second. {best}.",
    )


def _inside() -> dict[str, object]:
    return {
        "textcoords": "offset points",
        "ha": "left",
        "va": "center",
        "fontsize": 8.5,
        "color": "white",
        "fontweight": "bold",
    }


def _loop_rates(summary: Summary, size: str) -> dict[str, float]:
    rates = {}
    for kind in (CellKind.BARE, CellKind.DIRECT):
        rows = summary.kind(kind)
        rows = rows[rows["size"] == size]
        if len(rows):
            rates[kind.value] = float(rows["jobs_per_s"].mean())
    return rates


def spectrum_chart(cells: list[Cell], steadies: pd.DataFrame) -> Picture:
    """Return the percentile spectrum of time to ready, one line a setting, one panel a size."""
    sizes = sorted(steadies["size"].unique(), key=_megapixels)
    figure, axes = style.new_figure(1, len(sizes), width_in=4.9 * len(sizes), height_in=3.5)
    colours = style.setting_colours(steadies["setting"])
    for panel, size in zip(axes[0], sizes, strict=True):
        mine = [cell for cell in cells if cell.record.spec.size == size and cell.record.spec.repeat == 0]
        for cell in sorted(mine, key=lambda cell: cell.record.spec.setting):
            _spectrum(panel, cell, colour=colours[cell.record.spec.setting])
        panel.set_xscale("log")
        ticks = [1 / (1 - share) for share in _SPECTRUM_TICKS]
        panel.set_xticks(ticks, [f"{share:.0%}" for share in _SPECTRUM_TICKS])
        panel.set_xticks([], minor=True)
        panel.set_xlim(1, 150)
        panel.axvline(20, color=style.BLACK, linewidth=0.9, linestyle=":")
        panel.set_ylim(bottom=0)
        panel.set_title(f"{spaced(size)} photos")
        panel.set_xlabel("Percentile of the arrivals")
        legend = panel.legend(loc="upper left", fontsize=8, title="Concurrency / prefetch", frameon=True)
        legend.get_frame().set(facecolor="white", edgecolor="none", alpha=0.85)
    axes[0][0].set_ylabel("Time to ready from the due time, s")
    counts = ", ".join(f"{row.size} {row.setting} n = {int(row.arrivals_count)}" for row in rows_of(steadies))
    p95 = "; ".join(
        f"{row.size} {row.setting} {_p95(row.ttr_p95_s, is_unstable=row.unstable)}" for row in rows_of(steadies)
    )
    return Picture(
        name="time-to-ready",
        figure=figure,
        caption=(
            "Time to ready at 0.8 of each setting's own capacity, Poisson arrivals, from the due time to the commit of "
            f"the result; dotted: the 95th percentile, and cells whose backlog grew. Arrivals after warm-up: {counts}."
        ),
        alt=f"Percentile curves of time to ready. {p95}.",
    )


def _spectrum(panel: Axes, cell: Cell, *, colour: str) -> None:
    begin_s, _ = steady_window(cell)
    arrivals = arrivals_with_jobs(cell)
    times = np.sort(arrivals.loc[arrivals["due_s"] >= begin_s, "ttr_s"].dropna().to_numpy(dtype=float))
    shares = (np.arange(len(times)) + 0.5) / len(times)
    found = steady_metrics(cell)
    label = f"{cell.record.spec.setting}: {_p95(found.ttr_p95_s, is_unstable=found.unstable)}"
    panel.plot(1 / (1 - shares), times, color=colour, label=label, linestyle=":" if found.unstable else "-")
    if not found.unstable:
        panel.plot([20], [found.ttr_p95_s], marker="o", color=colour, markersize=5)


def _p95(seconds: float, *, is_unstable: bool) -> str:
    if is_unstable:
        return "unstable"
    return "p95 n/a" if math.isnan(seconds) else f"p95 {seconds:.2f} s"


_PARTS = (
    ("accept_mean_s", "due to accepted", style.SKY),
    ("wait_mean_s", "waiting in queue", style.ORANGE),
    ("service_mean_s", "in work", style.BLUE),
)


def breakdown_chart(steadies: pd.DataFrame) -> Picture:
    """Return the mean time to ready of each steady cell, split into its parts."""
    rows = steadies[steadies["repeat"] == 0].sort_values(["size", "setting"])
    figure, axes = style.new_figure(1, 1, width_in=8.4, height_in=0.42 * len(rows) + 1.5)
    panel = axes[0][0]
    places, left = np.arange(len(rows)), np.zeros(len(rows))
    for column, name, colour in _PARTS:
        widths = rows[column].to_numpy(dtype=float)
        panel.barh(places, widths, left=left, color=colour, height=0.64, label=name)
        for place, start, width in zip(places, left, widths, strict=True):
            if width > 0.06 * rows[[part[0] for part in _PARTS]].sum(axis=1).max():
                ink = "white" if colour == style.BLUE else style.BLACK
                place_xy = (start + width / 2, place)
                panel.annotate(f"{width * 1000:.0f}", place_xy, ha="center", va="center", fontsize=8, color=ink)
        left += widths
    panel.set_yticks(places, [f"{spaced(row.size)}  {row.setting}" for row in rows_of(rows)])
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")
    panel.set_xlabel("Mean time of an accepted upload, s (numbers: ms)")
    panel.legend(loc="lower right", fontsize=8.5, bbox_to_anchor=(1.0, 1.0), ncols=3)
    text = "; ".join(
        f"{row.size} {row.setting}: waiting {row.wait_mean_s * 1000:.0f} ms, in work {row.service_mean_s * 1000:.0f} ms"
        for row in rows_of(rows)
    )
    return Picture(
        name="breakdown",
        figure=figure,
        caption="Where the time goes at 0.8 of capacity: means over the arrivals after the warm-up; the parts add up.",
        alt=f"Stacked bars. {text}.",
    )


_MEMORY = (
    ("worker_pss_peak_mib", "whole worker, PSS", "o", style.BLUE),
    ("worker_rss_peak_mib", "whole worker, sum of RSS", "s", style.ORANGE),
    ("worker_process_peak_mib", "largest process, peak RSS", "D", style.GREEN),
)


def memory_chart(summary: Summary) -> Picture:
    """Return the workers' peak memory by setting and size."""
    live = summary.rows[summary.rows["kind"].isin([CellKind.DRAIN.value, CellKind.STEADY.value])]
    peaks = live.groupby(["size", "setting"])[[part[0] for part in _MEMORY]].max().sort_index()
    figure, axes = style.new_figure(1, 1, width_in=8.4, height_in=0.42 * len(peaks) + 1.5)
    panel = axes[0][0]
    places = np.arange(len(peaks))
    panel.hlines(places, peaks.min(axis=1), peaks.max(axis=1), color=style.PALE, linewidth=3, zorder=1)
    for column, name, marker, colour in _MEMORY:
        panel.scatter(peaks[column], places, marker=marker, color=colour, label=name, zorder=2, s=42)
        for place, value in zip(places, peaks[column], strict=True):
            if np.isfinite(value):
                panel.annotate(f"{value:.0f}", (value, place), xytext=(0, 6), **_above())
    panel.set_yticks(places, [f"{spaced(size)}  {setting}" for size, setting in peaks.index])
    panel.set_ylim(len(peaks) - 0.4, -0.7)
    panel.grid(visible=False, axis="y")
    panel.set_xlim(0, float(peaks.max().max()) * 1.08)
    panel.set_xlabel("Peak over the drain and the live cell, MiB")
    panel.legend(loc="lower right", fontsize=8.5, bbox_to_anchor=(1.0, 1.0), ncols=3)
    text = "; ".join(f"{index[0]} {index[1]}: PSS {row.worker_pss_peak_mib:.0f} MiB" for index, row in _pairs(peaks))
    return Picture(
        name="memory",
        figure=figure,
        caption=(
            "Peak memory of one worker with its children. The sum of RSS counts shared pages once a process; PSS does "
            "not. Workers are started anew for every cell."
        ),
        alt=f"Dots of peak memory. {text}.",
    )


def _pairs(peaks: pd.DataFrame) -> "list[tuple[tuple[str, str], pd.Series]]":
    return [((str(size), str(setting)), peaks.loc[(size, setting)]) for size, setting in peaks.index]


def _above() -> dict[str, object]:
    return {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 7.5, "color": style.BLACK}


def validity_chart(run: Run, steadies: pd.DataFrame) -> Picture:
    """Return the generator's lag and Little's law, the two checks that the claims stand on."""
    figure, axes = style.new_figure(1, 2, width_in=9.4, height_in=3.1)
    lag, little = axes[0]
    live = [cell for cell in run.cells if cell.record.spec.kind in {CellKind.STEADY, CellKind.PULSE}]
    worst = 0.0
    for cell in live:
        lag_ms = np.sort((cell.requests["started_s"] - cell.requests["due_s"]).to_numpy(dtype=float)) * 1000
        shares = (np.arange(len(lag_ms)) + 1) / len(lag_ms)
        is_pulse = cell.record.spec.kind is CellKind.PULSE
        lag.plot(lag_ms, shares, color=style.VERMILLION if is_pulse else style.BLUE, linewidth=1.0, alpha=0.8)
        worst = max(worst, lag_of(cell.requests)[0])
    lag.set_xscale("log")
    lag.axvline(10, color=style.BLACK, linewidth=0.9, linestyle=":")
    lag.set_xlabel("Real start minus due time, ms (dotted: gate on the p99)")
    lag.set_ylabel("Share of the arrivals")
    lag.set_title("Generator lag (blue steady, red pulse)")
    top = float(steadies[["little_sampled_jobs", "little_stamped_jobs"]].max().max()) * 1.15
    little.plot([0, top], [0, top], color=style.GREY, linewidth=1.0)
    little.scatter(steadies["little_stamped_jobs"], steadies["little_sampled_jobs"], color=style.BLUE, s=36, zorder=3)
    little.set_xlim(0, top)
    little.set_ylim(0, top)
    little.set_xlabel("Mean jobs in system from stamps")
    little.set_ylabel("... from the sampled gauge")
    little.set_title("Little's law, steady cells")
    return Picture(
        name="validity",
        figure=figure,
        caption=(
            f"Left: lag of the generator in {len(live)} live cells; worst p99 {worst * 1000:.1f} ms. Right: jobs in "
            f"system by the admission books against the jobs' own stamps, {len(steadies)} steady cells."
        ),
        alt=f"Lag curves with a worst p99 of {worst * 1000:.1f} milliseconds; points near the diagonal of equality.",
    )


def spaced(size: str) -> str:
    """Return a size class as people write it: `2 MP`."""
    return size.replace("MP", " MP")


def _megapixels(size: str) -> float:
    return float(size.removesuffix("MP"))
