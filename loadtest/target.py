"""What a cell needs of the system under test. The bench measures from outside; the local stack implements this.

Invariant: every method returns when what it names is done, within a bound of the implementation's own.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from contracts.cells import CellKind
from loadtest.generator import Aim


class Target(Protocol):
    """The system under test, as one stack with one API."""

    @property
    def aim(self) -> Aim:
        """Where uploads go."""
        ...

    @property
    def metrics_url(self) -> str:
        """The page with the queue gauges."""
        ...

    def set_admission(self, *, policy: str, jobs_bound: int) -> None:
        """Make the API admit by `policy`; `jobs_bound` 0 leaves the bound to the policy itself."""
        ...

    def start_workers(self, *, concurrency: int, prefetch: int) -> None:
        """Start a fresh worker process."""
        ...

    def stop_workers(self) -> None:
        """Stop the worker process, if there is one."""
        ...

    def roots(self) -> dict[str, list[int]]:
        """Return the pids of all roles and servers, by name."""
        ...

    def unfinished_count(self) -> int:
        """Return how many jobs are admitted and not finished."""
        ...

    def database_now(self) -> datetime:
        """Return the database's clock."""
        ...

    def database_minus_host_s(self) -> float:
        """Return how far the database's clock is ahead of this host's, seconds."""
        ...

    def export_jobs(self, *, since: datetime) -> list[dict[str, Any]]:
        """Return the stamps of all jobs admitted since a moment of the database's clock, columns of contracts.runs."""
        ...

    def run_loop(self, kind: CellKind, files: Sequence[Path], *, processes_count: int) -> list[dict[str, Any]]:
        """Work `files` off in a baseline loop and return its rows, columns of contracts.runs."""
        ...
