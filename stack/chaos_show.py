"""Progress of a chaos run on standard error: a bar on a terminal, plain lines elsewhere."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stack.chaos_plan import Fault


class ChaosShow:
    """Shows how far a run is and what is being done to it. Use as a context manager."""

    def __init__(self, console: Console, *, seconds: int) -> None:
        self._console = console
        self._seconds = seconds
        self._began_s: float | None = None
        self._bar: TaskID | None = None
        self._bars = (
            Progress(
                TextColumn("chaos"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Say what comes next."""
        self._console.print(f"chaos: {text}", highlight=False)

    def fault(self, fault: Fault) -> None:
        """Say which fault begins."""
        if self._began_s is None:
            self._began_s = time.monotonic()
        point = f" at {fault.crash_point}" if fault.crash_point else ""
        since_s = time.monotonic() - self._began_s
        self.say(f"{since_s:5.0f} s  {fault.kind.name} ({fault.target}{point}) for {fault.lasting_s:.1f} s")

    def tick(self, *, calls: int) -> None:
        """Move the bar."""
        if self._bars is None:
            return
        if self._began_s is None:
            self._began_s = time.monotonic()
        if self._bar is None:
            self._bar = self._bars.add_task("", total=self._seconds, note="")
        done_s = min(time.monotonic() - self._began_s, self._seconds)
        self._bars.update(self._bar, completed=done_s, note=f"{calls} requests")
