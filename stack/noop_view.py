"""`spillway bench noop`: servers of its own for a while, and the rates as they come."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from stack.noop import NoopRate, measure_noop
from stack.servers import Servers


def run_noop(environment: Mapping[str, str], *, console: Console) -> list[dict[str, Any]]:
    """Return a row for each cell, told on the console as it comes.

    Raises:
        EnvironmentUnfitError: the servers do not start, or the database is not ours.
        NoopFailedError: a rate would not count.
    """
    console.print("bench: starting PostgreSQL, S3 and RabbitMQ", highlight=False)
    with tempfile.TemporaryDirectory(prefix="spillway-noop-", ignore_cleanup_errors=True) as data:
        servers = Servers(Path(data), environment)
        servers.start()
        try:
            rates = measure_noop(servers, environment, on_rate=lambda rate: _tell(rate, console))
        finally:
            servers.stop()
    return [row_of(rate) for rate in rates]


def row_of(rate: NoopRate) -> dict[str, Any]:
    """Return one rate as a plain row, for machines."""
    return {
        "work": rate.cell.work.value,
        "workers_count": rate.cell.workers_count,
        "concurrency": rate.cell.concurrency,
        "jobs_count": rate.cell.jobs_count,
        "jobs_per_s": round(rate.jobs_per_s, 1),
        "cpu_ms_per_job": {name: round(cpu_ms, 3) for name, cpu_ms in rate.cpu_ms.items()},
    }


def _tell(rate: NoopRate, console: Console) -> None:
    total_ms = sum(rate.cpu_ms.values())
    parts = ", ".join(f"{name} {cpu_ms:.2f}" for name, cpu_ms in sorted(rate.cpu_ms.items(), key=lambda item: -item[1]))
    console.print(
        f"bench: no-op jobs ({rate.cell.title}): {rate.jobs_per_s:,.0f}/s; CPU {total_ms:.2f} ms a job ({parts})",
        highlight=False,
        soft_wrap=True,
    )
