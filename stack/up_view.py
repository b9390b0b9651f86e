"""What a person sees of `up`: one line per process on standard error, live on a terminal, plain in a log."""

import threading
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from stack.roles import Roles
from stack.servers import Servers

_READY = "ready"


class UpView:
    """Shows the steps of starting; also safe to call from the servers' threads."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._lines: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.fields[name]:<10}"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._live = False

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
            self._live = True
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the live lines; what comes later is printed plainly."""
        with self._lock:
            if self._live:
                self._progress.stop()
                self._live = False

    def __call__(self, name: str, step: str) -> None:
        """Show that something has come to this step."""
        with self._lock:
            if not self._live:
                self._console.print(f"{name:<10} {step}", markup=False, highlight=False)
                return
            if name not in self._lines:
                self._lines[name] = self._progress.add_task(step, total=1, name=name)
            done = 1 if step == _READY else 0
            self._progress.update(self._lines[name], description=step, completed=done)


def show_ready(console: Console, servers: Servers, roles: Roles) -> None:
    """Print where everything is; passwords stay in the state file."""
    table = Table(box=None, show_header=False)
    for process in roles.processes:
        table.add_row(process.name, process.url)
    for server in servers.local:
        table.add_row(server.name, f"127.0.0.1:{server.port()}")
    table.add_row("data", str(servers.folder))
    table.add_row("secrets", str(servers.site.state.path))
    console.print(table, highlight=False)
