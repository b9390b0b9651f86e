"""A run's numbers → the report: text between marks, so that prose by hand and generated numbers never mix. Pure.

Invariant: the same run gives the same text, byte for byte; a mark without its block, or the reverse, is an error.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.checks import QUIET, Verdict
from analysis.figures import spaced
from analysis.load import Run
from analysis.pulse import OBJECTIVE_S
from analysis.style import Picture
from analysis.summary import BARE_RATIO_TARGET, DIRECT_RATIO_TARGET, Summary, flags, rows_of
from contracts.cells import CellKind, CellRecord

_MARKS = re.compile(r"<!-- generated:([a-z-]+) -->\n.*?<!-- end:\1 -->", re.DOTALL)
#: Fewer repeats than this carry no inference.
REPEATS_FOR_INFERENCE = 5


class ReportMarksError(Exception):
    """The text's marks and the blocks do not match."""


def render(text: str, blocks: Mapping[str, str]) -> str:
    """Return `text` with every marked part replaced by its block.

    Raises:
        ReportMarksError: a mark has no block, or a block no mark.
    """
    marks = set(_MARKS.findall(text))
    if marks != set(blocks):
        raise ReportMarksError(f"marks and blocks differ: {sorted(marks ^ set(blocks))}")
    return _MARKS.sub(lambda found: _marked(found.group(1), blocks[found.group(1)]), text)


def _marked(name: str, block: str) -> str:
    return f"<!-- generated:{name} -->\n{block.strip()}\n<!-- end:{name} -->"


def make_blocks(run: Run, summary: Summary, pictures: Sequence[Picture], *, plots: str) -> dict[str, str]:
    """Return every generated block; `plots` is the folder of the pictures as seen from the report."""
    shown = {picture.name: _picture(picture, plots) for picture in pictures}
    return {
        "answer": _answer(run, summary),
        "validity": _validity(summary) + shown.get("validity", ""),
        "method": _method(run),
        "capacity": _capacity(summary) + shown.get("capacity", ""),
        "time-to-ready": _time_to_ready(summary) + shown.get("time-to-ready", "") + shown.get("breakdown", ""),
        "pulse": _pulse(summary) + shown.get("pulse", ""),
        "memory": _memory(summary) + shown.get("memory", ""),
        "reproduce": _reproduce(run),
        "appendix": _appendix(run, summary),
    }


def _picture(picture: Picture, plots: str) -> str:
    return f"\n\n![{picture.alt}]({plots}/{picture.name}.png)\n\n*{picture.caption}*\n"


def stamp(run: Run) -> str:
    """Return the line that says how much the run's numbers may carry."""
    repeats = int(run.manifest["repeats_count"])
    if repeats < REPEATS_FOR_INFERENCE:
        times = "one repeat" if repeats == 1 else f"{repeats} repeats"
        return f"**Quick look, no inference** ({times} of each cell): no intervals, no claims about small differences."
    return f"{repeats} repeats of each cell."


def _answer(run: Run, summary: Summary) -> str:
    lines = [stamp(run)]
    invalid = len(summary.invalid_ids)
    if invalid:
        lines.append(f"**INVALID: {invalid} of {len(run.cells)} cells failed a check** (see below).")
    noisy = {check.cell_id for check in summary.checks if check.name == QUIET and check.verdict is not Verdict.PASS}
    if noisy:
        lines.append(f"**NOISY: {len(noisy)} of {len(run.cells)} cells ran beside other work on this machine.**")
    lines += ["", *(f"{number}. {line}" for number, line in enumerate(_answer_lines(summary), 1))]
    return "\n".join(lines)


def _answer_lines(summary: Summary) -> list[str]:
    lines = []
    drains, steadies = summary.valid(CellKind.DRAIN), summary.valid(CellKind.STEADY)
    if len(drains):
        best = drains.loc[drains.groupby("size")["jobs_per_s"].idxmax()].sort_values("jobs_per_s")
        parts = [
            f"{_n(row.jobs_per_s, 1)} photos/s of {spaced(row.size)} with {row.setting} "
            f"({_n(row.megapixels_per_s, 0)} MP/s)"
            for row in rows_of(best)
        ]
        lines.append(f"Capacity: {', '.join(parts)}.")
    if not math.isnan(summary.ratio_bare):
        lines.append(
            f"Price of the whole line: {_share(summary.ratio_bare)} of the bare loop (target "
            f"{_share(BARE_RATIO_TARGET)}, {_met(summary.ratio_bare, BARE_RATIO_TARGET)}) and "
            f"{_share(summary.ratio_direct)} of the direct loop without a queue (target {_share(DIRECT_RATIO_TARGET)}, "
            f"{_met(summary.ratio_direct, DIRECT_RATIO_TARGET)})."
        )
    if len(steadies):
        parts = [f"{spaced(row.size)} {row.setting} {_n(row.ttr_p95_s, 2)} s" for row in rows_of(_best_p95(steadies))]
        found = ", ".join(parts) or "no cell was steady with enough samples"
        lines.append(f"Time to ready at 0.8 of capacity, p95 of the best setting: {found}.")
    return lines + _pulse_lines(summary)


def _best_p95(steadies: pd.DataFrame) -> pd.DataFrame:
    usable = steadies[~steadies["unstable"].astype(bool)].dropna(subset=["ttr_p95_s"])
    return usable.loc[usable.groupby("size")["ttr_p95_s"].idxmin()].sort_values("ttr_p95_s")


def _pulse_lines(summary: Summary) -> list[str]:
    names = {"none": "Overload without a bound", "count": "Overload with the bound"}
    return [
        f"{names.get(row.policy, row.policy)}: {_share(row.refused_in_pulse_share)} of the pulse refused, queue lag up "
        f"to {_n(row.lag_peak_s, 1)} s, {_share(row.late_share)} of the accepted later than {OBJECTIVE_S:g} s, "
        f"{_recovered(row.recovery_s)} (fluid model: {_fluid(row.recovery_fluid_s)})."
        for row in rows_of(summary.valid(CellKind.PULSE).sort_values("policy", ascending=False))
    ]


def _validity(summary: Summary) -> str:
    rows = []
    for name in dict.fromkeys(check.name for check in summary.checks):
        mine = [check for check in summary.checks if check.name == name]
        counts = {verdict: sum(check.verdict is verdict for check in mine) for verdict in Verdict}
        bad = [f"{check.cell_title}: {check.found}" for check in mine if check.verdict is not Verdict.PASS]
        verdict = "FAIL" if counts[Verdict.FAIL] else "warn" if counts[Verdict.WARN] else "PASS"
        rows.append((name, mine[0].gate, verdict, f"{counts[Verdict.PASS]} of {len(mine)}", "; ".join(bad) or "–"))
    return _table(("Check", "Gate", "Result", "Cells passed", "Exceptions"), rows)


def _method(run: Run) -> str:
    specs = [cell.record.spec for cell in run.cells]
    settings = sorted({spec.setting for spec in specs if spec.prefetch})
    sizes = sorted({spec.size for spec in specs}, key=lambda size: float(size.removesuffix("MP")))
    priorities = sorted({cell.record.generator.priority for cell in run.cells if cell.record.generator})
    cells = f"- Cells: {len(specs)}, {run.manifest['repeats_count']} repeat(s), seed {run.manifest['seed']}; settings "
    lines = [
        cells + f"{', '.join(settings)} (concurrency / prefetch); sizes {', '.join(spaced(size) for size in sizes)}.",
        f"- Scheduling priority that the generator obtained: {', '.join(priorities) or 'n/a'}.",
        *_method_pulse([cell.record for cell in run.cells if cell.record.spec.kind is CellKind.PULSE]),
    ]
    return "\n".join(lines)


def _method_pulse(pulses: Sequence[CellRecord]) -> list[str]:
    if not pulses:
        return []
    phases = ", ".join(f"{p.name} {p.capacity_share:g} × for {p.duration_s:g} s" for p in pulses[0].spec.phases)
    bounds = [
        f"- Bound of `{record.spec.policy}`: N = {record.jobs_bound} jobs = {record.spec.bound_s:g} s of capacity."
        for record in pulses
        if record.jobs_bound
    ]
    recovered = (
        "- Recovered: the queue lag stays at or under the larger of 1 s and twice its p95 before the pulse for 5 s, "
        "with no fewer completions in them than Poisson chance allows at the base rate."
    )
    return [f"- Pulse: {phases}, of a capacity of {pulses[0].capacity_per_s:.2f} jobs/s.", *bounds, recovered]


def _capacity(summary: Summary) -> str:
    rows = [
        (
            spaced(row.size),
            row.setting,
            _n(row.jobs_per_s, 2),
            _n(row.megapixels_per_s, 1),
            _n(row.mib_per_s, 2),
            _n(row.completions_count, 0),
            _n(row.cpu_worker_cores, 2),
            flags(summary.checks, row.cell_id),
        )
        for row in rows_of(summary.kind(CellKind.DRAIN).sort_values(["size", "setting"]))
    ]
    head = ("Size", "Setting", "jobs/s", "MP/s", "MiB/s in", "n", "worker, cores", "Flags")
    return _table(head, rows) + "\n\n" + _ratios(summary)


def _ratios(summary: Summary) -> str:
    rows = []
    targets = [(CellKind.BARE, summary.ratio_bare, BARE_RATIO_TARGET)]
    targets += [(CellKind.DIRECT, summary.ratio_direct, DIRECT_RATIO_TARGET)]
    for kind, ratio, target in targets:
        loop = summary.kind(kind)
        if len(loop):
            rate = float(loop["jobs_per_s"].mean())
            rows.append((kind.value, _n(rate, 2), _share(ratio), _share(target), _met(ratio, target)))
    return _table(("Loop", "files/s", "product ÷ loop", "target", "met"), rows)


def _time_to_ready(summary: Summary) -> str:
    rows = [
        (
            spaced(row.size),
            row.setting,
            _n(row.offered_per_s, 2),
            _n(row.ready_per_s, 2),
            *(_stationary(row, value) for value in (row.ttr_p50_s, row.ttr_p95_s, row.ttr_p99_s)),
            _n(row.answer_p95_s * 1000, 0),
            _n(row.lag_p95_s, 2),
            _n(row.arrivals_count, 0),
            flags(summary.checks, row.cell_id),
        )
        for row in rows_of(summary.kind(CellKind.STEADY).sort_values(["size", "setting"]))
    ]
    head = ["Size", "Setting", "offered/s", "ready/s", "TTR p50 s", "p95 s", "p99 s"]
    head += ["answer p95 ms", "queue lag p95 s", "n", "Flags"]
    notes = (
        "n/a: too few samples for that percentile. unstable: the backlog grew, so a percentile would only say how long"
    )
    return f"{_table(head, rows)}\n\n{notes} the cell lasted.\n"


def _stationary(row: Any, value: float) -> str:
    return "unstable" if row.unstable else _n(value, 2)


def _pulse(summary: Summary) -> str:
    pulses = summary.kind(CellKind.PULSE).sort_values("policy", ascending=False)
    if pulses.empty:
        return ""
    lines: list[tuple[str, str, int]] = [
        ("Uploads offered", "offered_count", 0),
        ("Accepted", "accepted_count", 0),
        ("Refused (503)", "refused_count", 0),
        ("Time to a refusal, p50, ms", "answer_refused_p50_s", -3),
        ("Peak queue lag, s", "lag_peak_s", 1),
        ("… fluid model, s", "lag_peak_fluid_s", 1),
        ("Peak jobs in system", "in_system_peak_jobs", 0),
        ("Area under the queue lag, s²", "lag_area_s2", 0),
        ("TTR p95 of the accepted, s", "ttr_p95_s", 1),
        (f"Goodput (ready within {OBJECTIVE_S:g} s), jobs/s", "goodput_per_s", 2),
        ("Completions during the pulse, jobs/s", "throughput_in_pulse_per_s", 2),
        ("Recovery after the pulse, s", "recovery_s", 1),
        ("… fluid model from the drain's capacity, s", "recovery_fluid_s", 1),
        ("… fluid model from the pulse's own throughput, s", "recovery_fluid_live_s", 1),
        ("Worker peak, sum of RSS, MiB", "worker_rss_peak_mib", 0),
        ("API peak RSS, MiB", "api_rss_peak_mib", 0),
    ]
    rows: list[tuple[str, ...]] = [
        (text, *(_n(float(value) * (1000 if digits < 0 else 1), max(digits, 0)) for value in pulses[column]))
        for text, column, digits in lines
    ]
    rows.append(("Flags", *(flags(summary.checks, cell_id) for cell_id in pulses["cell_id"])))
    return _table(("", *(f"policy {policy}" for policy in pulses["policy"])), rows)


def _memory(summary: Summary) -> str:
    live = summary.rows[summary.rows["kind"].isin([CellKind.DRAIN.value, CellKind.STEADY.value])]
    columns = ["worker_process_peak_mib", "worker_pss_peak_mib", "worker_rss_peak_mib", "api_rss_peak_mib"]
    if live.empty:
        return ""
    peaks = live.groupby(["size", "setting"])[columns].max()
    rows = [(spaced(str(size)), setting, *(_n(value, 0) for value in row)) for (size, setting), row in _rows(peaks)]
    head = ("Size", "Setting", "largest process MiB", "worker PSS MiB", "worker sum of RSS MiB", "API RSS MiB")
    return _table(head, rows)


def _rows(peaks: pd.DataFrame) -> list[tuple[tuple[str, str], list[float]]]:
    return [(index, [float(value) for value in peaks.loc[index]]) for index in peaks.index]


def _reproduce(run: Run) -> str:
    manifest = run.manifest
    name = manifest["plan_name"]
    known = {"quick": "make bench", "full": "make bench-full"}
    command = known.get(name, f"spillway bench run --plan {name}")
    return (
        f"`{command}` on a machine with nothing but Python: sets everything up, runs the `{name}` plan, writes this "
        f"report. Code {manifest['code_version']}, seed {manifest['seed']}; every schedule's SHA-256 is in its cell's "
        "record. From the raw data alone: `spillway bench report RUN`."
    )


def _appendix(run: Run, summary: Summary) -> str:
    rows = [
        (
            str(row.order + 1),
            row.title,
            row.cell_id,
            _n(row.jobs_per_s if "jobs_per_s" in summary.rows else math.nan, 2),
            _n(row.ttr_p95_s if "ttr_p95_s" in summary.rows else math.nan, 2),
            _n(row.generator_lag_p99_s * 1000 if "generator_lag_p99_s" in summary.rows else math.nan, 1),
            flags(summary.checks, row.cell_id),
        )
        for row in rows_of(summary.rows)
    ]
    missing = len(run.manifest["cells"]) - len(run.cells)
    note = f"\n\n{missing} planned cell(s) have not run.\n" if missing else "\n\n"
    head = ("#", "Cell", "Id", "jobs/s", "TTR p95 s", "generator lag p99 ms", "Flags")
    machine = _table(("Of the machine", ""), [(key, str(value)) for key, value in sorted(run.environment.items())])
    return _table(head, rows) + note + _cpu(summary) + "\n\n" + machine


def _cpu(summary: Summary) -> str:
    """Return who used the cores in each sampled cell, over its measured window."""
    columns = [name for name in summary.rows.columns if name.startswith("cpu_")]
    sampled = summary.rows.dropna(subset=columns, how="all") if columns else summary.rows.iloc[:0]
    names = [name.removeprefix("cpu_").removesuffix("_cores") for name in columns]
    rows = [
        (str(title), *(_n(float(value), 2) for value in values))
        for title, values in zip(sampled["title"], sampled[columns].to_numpy(dtype=float), strict=True)
    ]
    return _table(("Cores used by", *names), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _n(value: float, digits: int) -> str:
    """Return a number for people; `n/a` where the data carry none, `> window` where it never came."""
    if math.isnan(value):
        return "n/a"
    return "> window" if math.isinf(value) else f"{value:.{digits}f}"


def _fluid(value: float) -> str:
    return "never" if math.isinf(value) else f"{_n(value, 0)} s"


def _recovered(value: float) -> str:
    return "not recovered within the cell" if math.isinf(value) else f"recovered {_n(value, 0)} s after the pulse"


def _share(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.0%}".replace("%", " %")


def _met(value: float, target: float) -> str:
    return "n/a" if math.isnan(value) else "met" if value >= target else "missed"
