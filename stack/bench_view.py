"""Progress of a sweep on standard error: bars on a terminal, plain lines elsewhere.

Invariant: standard output stays free for what a program reads.
"""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from contracts.cells import CellSpec
from loadtest.sweep import estimate_s

_DEPTH_PERIOD_S = 1.0


class SweepView:
    """Shows cells done, the time left and the depth of the system; one view a sweep."""

    def __init__(self, console: Console, depth: Callable[[], int]) -> None:
        """`depth` returns the unfinished jobs and is asked about once a second."""
        self._console = console
        self._depth = depth
        self._bars = _bars(console) if console.is_terminal else None
        self._cells_bar: TaskID | None = None
        self._cell_bar: TaskID | None = None
        self._left_s = 0.0
        self._began_s = 0.0
        self._asked_s = 0.0
        self._done = 0
        self._count = 0

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, specs: Sequence[CellSpec], *, finished_count: int) -> None:
        """Say what is to come and how long it will take."""
        self._count = len(specs)
        self._left_s = sum(map(estimate_s, specs))
        kept = f", {finished_count} of them finished before" if finished_count else ""
        self._console.print(f"bench: {len(specs)} cells{kept}, about {_minutes(self._left_s)} in all", highlight=False)
        if self._bars is not None:
            self._cells_bar = self._bars.add_task("cells", total=len(specs), note="")
            self._cell_bar = self._bars.add_task("", total=1.0, note="", visible=False)

    def cell_begins(self, spec: CellSpec) -> None:
        """Say which cell runs now."""
        self._began_s = time.monotonic()
        if self._bars is not None and self._cell_bar is not None:
            self._bars.reset(self._cell_bar, total=estimate_s(spec), description=spec.title, visible=True)
        else:
            number = f"{self._done + 1}/{self._count}"
            self._console.print(
                f"bench: {number} {spec.title} … (about {_minutes(self._left_s)} left)", highlight=False
            )

    def tick(self) -> None:
        """Move the bar of the cell and refresh the depth."""
        now_s = time.monotonic()
        if self._bars is None or self._cell_bar is None or now_s - self._asked_s < _DEPTH_PERIOD_S:
            return
        self._asked_s = now_s
        note = f"{self._depth()} jobs in system"
        self._bars.update(self._cell_bar, completed=now_s - self._began_s, note=note)

    def cell_ends(self, spec: CellSpec, *, note: str) -> None:
        """Say that a cell is done, with its main number."""
        self._done += 1
        self._left_s -= estimate_s(spec)
        self._console.print(f"bench: {self._done}/{self._count} {spec.title}: {note}", highlight=False, soft_wrap=True)
        if self._bars is not None and self._cells_bar is not None and self._cell_bar is not None:
            self._bars.update(self._cells_bar, completed=self._done, note=f"about {_minutes(self._left_s)} left")
            self._bars.update(self._cell_bar, visible=False)


def _bars(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True)


def _minutes(seconds: float) -> str:
    return f"{max(seconds, 0) / 60:.1f} min"
