"""The local stack as the bench's system under test: the only place where the bench meets the product.

Invariant: roles are started and stopped here and nowhere else during a run, so a cell's worker and API are what its
spec says. All methods block; use one target from one thread.
"""

import asyncio
import contextlib
import http.client
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from app.core.jobstore import JobStore
from app.core.migrate import migrate
from app.core.postgres import Database, load_queries, open_database, pool_settings
from app.core.settings import PREFIX, Settings
from app.core.tokens import TokenStore
from contracts.cells import CellKind
from contracts.runs import Metric
from loadtest.clocks import read_clocks
from loadtest.generator import Aim
from loadtest.sampler import parse_gauges
from stack import baselines
from stack.errors import EnvironmentUnfitError
from stack.gate_rate import measure_gate
from stack.loop_store import plant
from stack.roles import Role, RoleProcess, Roles
from stack.servers import Servers

OWNER = "bench"
READY_S_MAX = 30.0
SCRAPE_S_MAX = 10.0
_JOBS_MAX = 100_000
_CLOCK_READINGS = 7
_CONNECTIONS = 2
_POLL_S = 0.1
_SQL_FILE = Path(__file__).with_name("bench.sql")
_GATE_DATABASE = "gate_rate"
#: One API process: the grid is about workers, and the accept path must not be what limits it.
_BENCH_ENV = {f"{PREFIX}API_PROCESSES": "1", f"{PREFIX}LOG_LEVEL": "warning"}


class StackTarget:
    """Servers and roles of one run. Use as a context manager."""

    def __init__(self, servers: Servers, environment: Mapping[str, str]) -> None:
        self._servers = servers
        self._environment = dict(environment)
        self._runner = asyncio.Runner()
        self._admission: tuple[str, int] | None = None
        self._worker: RoleProcess | None = None
        self._api: RoleProcess

    def __enter__(self) -> Self:
        """Start servers and roles, the API without a bound, no worker yet.

        Raises:
            EnvironmentUnfitError: something does not start; the message holds the end of its log.
        """
        try:
            self._servers.start()
            self._roles = Roles(self._servers, self._environment, env=_BENCH_ENV)
            self._roles.migrate()
            self._settings = settings_from(self._servers.env())
            self._database = self._runner.run(self._open())
            self._sql = load_queries(str(_SQL_FILE))
            _, self._token = self._runner.run(TokenStore(self._database).create(owner=OWNER))
            self._relay, self._janitor = self._spawn("relay"), self._spawn("janitor")
            self.set_admission(policy="none", jobs_bound=0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._servers.stop)
            stack.callback(self._runner.close)
            if hasattr(self, "_database"):
                stack.callback(lambda: self._runner.run(self._database.close()))
            if hasattr(self, "_roles"):
                stack.callback(self._roles.stop)

    @property
    def aim(self) -> Aim:
        """Where uploads go."""
        return Aim(url=self._api.url, token=self._token)

    @property
    def metrics_url(self) -> str:
        """The janitor's page: its gauges are fresh at each scrape."""
        return f"{self._janitor.url}/metrics"

    def gate_facts(self, console: Console) -> dict[str, float]:
        """Measure and print what the gate row carries, on an idle database of our own server."""
        if self._servers.postgres is None:
            return {}
        url = self._servers.postgres.create_database(_GATE_DATABASE)
        migrate(url)
        rates = self._runner.run(measure_gate(url))
        text = ", ".join(f"{rate.pairs_per_s:,.0f}/s with {rate.clients_count}" for rate in rates)
        console.print(f"bench: admit and settle pairs: {text} clients", highlight=False)
        return {f"gate_pairs_per_s_{rate.clients_count}_clients": round(rate.pairs_per_s, 1) for rate in rates}

    def set_admission(self, *, policy: str, jobs_bound: int) -> None:
        """Run the API with this policy and bound; it is started anew only when they differ from what it has."""
        if self._admission == (policy, jobs_bound):
            return
        if self._admission is not None:
            self._stop(self._api)
        env = {f"{PREFIX}ADMISSION_POLICY": policy}
        env |= {f"{PREFIX}ADMISSION_JOBS_MAX": str(jobs_bound)} if jobs_bound else {}
        self._api = self._spawn("api", env=env)
        self._admission = (policy, jobs_bound)

    def start_workers(self, *, concurrency: int, prefetch: int) -> None:
        """Start a fresh worker process and return when it works."""
        self.stop_workers()
        env = {f"{PREFIX}WORKER_CONCURRENCY": str(concurrency), f"{PREFIX}WORKER_PREFETCH": str(prefetch)}
        self._worker = self._spawn("worker", env=env)

    def stop_workers(self) -> None:
        """Stop the worker process, if there is one."""
        if self._worker is not None:
            self._stop(self._worker)
            self._worker = None

    def roots(self) -> dict[str, list[int]]:
        """Return the pids of all roles and servers, by name."""
        roots: dict[str, list[int]] = {process.role: [process.pid] for process in self._roles.processes}
        return roots | {server.name: [server.child.pid] for server in self._servers.local if server.child is not None}

    def unfinished_count(self) -> int:
        """Return the places held by the admission books.

        Raises:
            EnvironmentUnfitError: the janitor does not tell.
        """
        deadline_s = time.monotonic() + SCRAPE_S_MAX
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                gauges = parse_gauges(self._janitor.get("/metrics")[1].decode())
                if Metric.PLACES_HELD_JOBS in gauges:
                    return int(gauges[Metric.PLACES_HELD_JOBS])
            time.sleep(_POLL_S)
        raise self._janitor.failure("does not tell how many jobs are unfinished")

    def database_now(self) -> datetime:
        """Return the database's clock."""
        now: datetime = self._runner.run(self._database.value(self._sql.database_clock))
        return now

    def database_minus_host_s(self) -> float:
        """Return how far the database's clock is ahead of this host's: from the fastest of a few round trips."""
        readings = [self._read_offset() for _ in range(_CLOCK_READINGS)]
        return min(readings)[1]

    def export_jobs(self, *, since: datetime) -> list[dict[str, Any]]:
        """Return the stamps of all jobs admitted since a moment of the database's clock."""
        return self._runner.run(JobStore(self._database).export_jobs(since=since, rows_max=_JOBS_MAX))

    def run_loop(self, kind: CellKind, files: Sequence[Path], *, processes_count: int) -> list[dict[str, Any]]:
        """Work `files` off in a baseline loop."""
        env = {**self._environment, **self._servers.env()}
        loop = baselines.Loop(kind=kind, env=env)
        if kind is CellKind.DIRECT:
            self._runner.run(plant(self._settings, files))
        return baselines.run_loop(loop, files, processes_count=processes_count)

    def _read_offset(self) -> tuple[float, float]:
        before = read_clocks()
        database_s = self.database_now().timestamp()
        after = read_clocks()
        return after.monotonic_s - before.monotonic_s, database_s - (before.wall_s + after.wall_s) / 2

    async def _open(self) -> Database:
        return await open_database(pool_settings(self._settings, role="bench", connections_max=_CONNECTIONS))

    def _spawn(self, role: Role, *, env: Mapping[str, str] | None = None) -> RoleProcess:
        process = self._roles.spawn(role, env=env)
        process.wait_live(READY_S_MAX)
        return process

    def _stop(self, process: RoleProcess) -> None:
        code = process.stop()
        self._roles.forget(process)
        if code != 0:
            raise process.failure(f"ended with code {code} when it was asked to stop")


def settings_from(env: Mapping[str, str]) -> Settings:
    """Return the settings that a role with this environment would have.

    Raises:
        EnvironmentUnfitError: a variable is out of its range.
    """
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value for name, value in env.items() if name.startswith(PREFIX)
    }
    try:
        return Settings(**given)
    except ValueError as error:
        raise EnvironmentUnfitError(f"wrong settings ({PREFIX}*): {error}") from error
