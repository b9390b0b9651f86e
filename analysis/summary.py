"""A run's frames → one row a cell, and the few numbers that answer the questions. Pure.

Invariant: every number in the report comes from here; equal runs give equal rows.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from analysis.checks import QUIET, Check, Verdict, check_cell, lag_of, little_pair
from analysis.load import Cell, Run
from analysis.metrics import baseline_rate, cpu_by_role, drain_metrics, memory_metrics, steady_metrics, steady_window
from analysis.pulse import pulse_metrics, pulse_window
from contracts.cells import CellKind

#: Targets of the drain with concurrency 2 against the two loops.
BARE_RATIO_TARGET = 0.80
DIRECT_RATIO_TARGET = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All numbers of a run."""

    rows: pd.DataFrame  #: one row a cell; columns that do not apply to its kind are NaN
    checks: tuple[Check, ...]
    ratio_bare: float
    ratio_direct: float

    @property
    def invalid_ids(self) -> frozenset[str]:
        """Return the cells that failed a check."""
        return frozenset(check.cell_id for check in self.checks if check.verdict is Verdict.FAIL)

    def kind(self, kind: CellKind) -> pd.DataFrame:
        """Return the rows of one kind of cell, invalid ones too: for tables."""
        return self.rows[self.rows["kind"] == kind.value]

    def valid(self, kind: CellKind) -> pd.DataFrame:
        """Return the rows of one kind that passed every check: for claims."""
        rows = self.kind(kind)
        return rows[~rows["cell_id"].isin(self.invalid_ids)]


_LABELS = ["cell_id", "order", "title", "kind", "size", "setting", "concurrency", "prefetch", "policy", "repeat"]


def rows_of(frame: pd.DataFrame) -> list[Any]:
    """Return the rows as named tuples whose fields are numbers and names, for drawing and printing."""
    return list(frame.itertuples())


def summarize(run: Run) -> Summary:
    """Return every number of the run."""
    rows = pd.DataFrame([_row(cell) for cell in run.cells], columns=None if run.cells else _LABELS)
    checks = tuple(check for cell in run.cells for check in check_cell(cell))
    summary = Summary(rows=rows, checks=checks, ratio_bare=math.nan, ratio_direct=math.nan)
    return replace(summary, ratio_bare=_ratio(summary, CellKind.BARE), ratio_direct=_ratio(summary, CellKind.DIRECT))


def _row(cell: Cell) -> dict[str, Any]:
    record, spec = cell.record, cell.record.spec
    row: dict[str, Any] = {
        "cell_id": record.cell_id,
        "order": record.order,
        "title": spec.title,
        "kind": spec.kind.value,
        "size": spec.size,
        "setting": spec.setting,
        "concurrency": spec.concurrency,
        "prefetch": spec.prefetch,
        "policy": spec.policy,
        "repeat": spec.repeat,
        "capacity_per_s": record.capacity_per_s,
        "jobs_bound": record.jobs_bound,
        "ended_s": record.ended_s,
    }
    if spec.kind in {CellKind.BARE, CellKind.DIRECT}:
        rate, count = baseline_rate(cell)
        return row | {"jobs_per_s": rate, "completions_count": count}
    lag_p99_s, lag_max_s = lag_of(cell.requests)
    row |= {"generator_lag_p99_s": lag_p99_s, "generator_lag_max_s": lag_max_s}
    return row | asdict(memory_metrics(cell)) | _of_kind(cell)


def _of_kind(cell: Cell) -> dict[str, Any]:
    record = cell.record
    if record.spec.kind is CellKind.DRAIN:
        begin_s, end_s = record.work_began_s, record.ended_s
        found: dict[str, Any] = asdict(drain_metrics(cell))
    elif record.spec.kind is CellKind.STEADY:
        begin_s, end_s = steady_window(cell)
        sampled, counted = little_pair(cell)
        found = asdict(steady_metrics(cell)) | {"little_sampled_jobs": sampled, "little_stamped_jobs": counted}
    else:
        window = pulse_window(cell)
        begin_s, end_s = window.begin_s, window.end_s
        found = asdict(pulse_metrics(cell))
    shares = cpu_by_role(cell, begin_s=begin_s, end_s=end_s)
    return found | {f"cpu_{role}_cores": share for role, share in shares.items()}


def _ratio(summary: Summary, baseline: CellKind) -> float:
    """Return the drain's rate over a loop's, for the same files and as many jobs at once; NaN when one is missing.

    The drain is the one with the largest prefetch: a loop has its next file at hand too.
    """
    loops, drains = summary.valid(baseline), summary.valid(CellKind.DRAIN)
    if loops.empty or drains.empty:
        return math.nan
    loop = loops.iloc[0]
    drains = drains[(drains["size"] == loop["size"]) & (drains["concurrency"] == loop["concurrency"])]
    drains = drains[drains["prefetch"] == drains["prefetch"].max()]
    return float(drains["jobs_per_s"].mean() / loops["jobs_per_s"].mean()) if len(drains) else math.nan


def flags(checks: Iterable[Check], cell_id: str) -> str:
    """Return the flags of a cell for tables: what failed or warned, or `ok`."""
    mine = [check for check in checks if check.cell_id == cell_id and check.verdict is not Verdict.PASS]
    names = {"generator lag": "GENERATOR_LIMITED", "generator CPU": "GENERATOR_LIMITED", "steady": "UNSTABLE"}
    names |= {QUIET: "NOISY"}
    return ", ".join(sorted({names.get(check.name, f"{check.verdict}: {check.name}") for check in mine})) or "ok"
