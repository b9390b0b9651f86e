"""How many jobs a second the line carries with the pixels switched off, and which process that time goes to.

Everything else is on: outbox, confirmed publishing, quorum queue, claims with fencing and leases, settles, acks after
them, a janitor beside. The outbox is filled first, then relay and workers go; the rate is that of the last nine tenths
of the settles. Invariant: jobs, database and queues are the bench's own, and it is an error unless each job ended
`ready`, by its first claim, with nothing left behind.
"""

import asyncio
import hashlib
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psutil

from app.core.jobstore import AdmitOutcome, Bounds, JobStore, Reservation, Source
from app.core.migrate import migrate
from app.core.objects import ObjectStore, store_settings
from app.core.postgres import Database, load_queries, open_database, pool_settings
from app.core.settings import PREFIX, Settings
from contracts.images import ImageFormat
from contracts.keys import staging_key
from stack.account import Account
from stack.bench_target import settings_from
from stack.children import Child, ChildSpec, spawn
from stack.errors import EnvironmentUnfitError
from stack.noop_worker import NOOP_DATABASE, Work
from stack.roles import Roles
from stack.servers import Servers
from stack.state import STACK_VARIABLE

CELL_S_MAX = 300.0
#: The first tenth of the settles is the start and not counted.
COUNTED_SHARE = 0.9

_SOURCE = b"the source of a job without pixels"
_PLANTERS = 16
_CONNECTIONS = 16
_JOBS_MAX = 100_000
_POLL_S = 0.1
_STOP_S_MAX = 30.0
_PROJECT = Path(__file__).resolve().parents[1]
_BOUNDS = Bounds(jobs_max=None, staging_bytes_max=None)
_ENV = {f"{PREFIX}BROKER_PREFIX": "noop", f"{PREFIX}LOG_LEVEL": "warning"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoopCell:
    """One measurement: what is left of the work, who does it, and how many jobs."""

    work: Work
    workers_count: int
    concurrency: int
    jobs_count: int

    @property
    def title(self) -> str:
        """Name the cell; also the owner of its jobs."""
        return f"{self.work}, {self.workers_count} worker(s) x {self.concurrency}"


CELLS = (
    NoopCell(work=Work.NOTHING, workers_count=1, concurrency=1, jobs_count=1_000),
    NoopCell(work=Work.NOTHING, workers_count=1, concurrency=8, jobs_count=3_000),
    NoopCell(work=Work.NOTHING, workers_count=1, concurrency=64, jobs_count=4_000),
    NoopCell(work=Work.NOTHING, workers_count=2, concurrency=32, jobs_count=4_000),
    NoopCell(work=Work.STORE, workers_count=1, concurrency=8, jobs_count=600),
    NoopCell(work=Work.STORE, workers_count=2, concurrency=16, jobs_count=600),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoopRate:
    """What one cell gave. `cpu_ms` is CPU time a job, by process."""

    cell: NoopCell
    jobs_per_s: float
    cpu_ms: Mapping[str, float]


class NoopFailedError(Exception):
    """The jobs did not all end `ready` by their first claim, or left something behind."""


def measure_noop(
    servers: Servers,
    environment: Mapping[str, str],
    *,
    cells: Sequence[NoopCell] = CELLS,
    on_rate: Callable[[NoopRate], None] = lambda _: None,
) -> list[NoopRate]:
    """Return the rate of each cell on started servers; `on_rate` is called with each as it comes.

    Raises:
        EnvironmentUnfitError: the database is not ours, or a process does not start.
        NoopFailedError: a rate would not count.
    """
    if servers.postgres is None:
        raise EnvironmentUnfitError("the no-op jobs need a database server of their own: unset SPILLWAY_DATABASE_URL")
    url = servers.postgres.create_database(NOOP_DATABASE)
    migrate(url)
    env = {**servers.env(), **_ENV, f"{PREFIX}DATABASE_URL": url}
    rates = []
    with _Line(servers, environment, env) as line:
        for cell in cells:
            rates.append(line.measure(cell))
            on_rate(rates[-1])
    return rates


class _Line:
    """Relay, janitor and no-op workers on a database of their own."""

    def __init__(self, servers: Servers, environment: Mapping[str, str], env: Mapping[str, str]) -> None:
        self._servers = servers
        self._env = {**environment, **env, STACK_VARIABLE: servers.site.state.load().stack_id}
        self._roles = Roles(servers, environment, env=env)
        self._runner = asyncio.Runner()
        self._settings = settings_from(env)
        self._sql = load_queries(str(Path(__file__).with_name("noop.sql")))

    def __enter__(self) -> Self:
        self._database = self._runner.run(
            open_database(pool_settings(self._settings, role="noop", connections_max=_CONNECTIONS))
        )
        self._janitor = self._roles.spawn("janitor", name="noop-janitor")
        self._janitor.wait_live()
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            stack.callback(self._runner.close)
            stack.callback(lambda: self._runner.run(self._database.close()))
            stack.callback(self._roles.stop)

    def measure(self, cell: NoopCell) -> NoopRate:
        """Fill the outbox, let relay and workers go, and wait for the last settle."""
        self._runner.run(_plant(self._settings, self._database, cell))
        workers = [self._start_worker(cell, number) for number in range(cell.workers_count)]
        try:
            self._wait(lambda: self._ask(self._sql.consuming_workers) == cell.workers_count, "workers that consume")
            relay = self._roles.spawn("relay", name="noop-relay")
            roots = self._roots() | {"worker": [worker.pid for worker in workers], "relay": [relay.pid]}
            roots["janitor"] = [self._janitor.pid]
            before_s = {name: _cpu_s(pids) for name, pids in roots.items()}
            self._wait(lambda: self._ask(self._sql.noop_left, owner=cell.title) == 0, "the last settle")
            spent_s = {name: _cpu_s(pids) - before_s[name] for name, pids in roots.items()}
            self._wait(lambda: self._ask(self._sql.noop_traces) == 0, "an empty outbox and empty books")
            relay.stop()
            self._roles.forget(relay)
        finally:
            for worker in workers:
                worker.stop(_STOP_S_MAX)
        jobs_per_s = _rate(self._jobs_of(cell), cell)
        cpu_ms = {name: 1000 * cpu_s / cell.jobs_count for name, cpu_s in spent_s.items()}
        return NoopRate(cell=cell, jobs_per_s=jobs_per_s, cpu_ms=cpu_ms)

    def _start_worker(self, cell: NoopCell, number: int) -> Child:
        name = f"noop-worker-{number}"
        spec = ChildSpec(
            name=name,
            args=[sys.executable, "-m", "stack.noop_worker", cell.work],
            cwd=_PROJECT,
            env={**self._env, f"{PREFIX}WORKER_CONCURRENCY": str(cell.concurrency)},
            log_path=self._servers.site.log_path(name),
            account=Account(),
        )
        return spawn(spec)

    def _roots(self) -> dict[str, list[int]]:
        return {server.name: [server.child.pid] for server in self._servers.local if server.child is not None}

    def _ask(self, query: Any, **params: object) -> int:
        return int(self._runner.run(self._database.value(query, **params)))

    def _jobs_of(self, cell: NoopCell) -> list[dict[str, Any]]:
        since = datetime(2000, 1, 1, tzinfo=UTC)
        rows = self._runner.run(JobStore(self._database).export_jobs(since=since, rows_max=_JOBS_MAX))
        return [row for row in rows if row["owner"] == cell.title]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + CELL_S_MAX
        while not condition():
            if time.monotonic() > deadline_s:
                raise NoopFailedError(f"not within {CELL_S_MAX:.0f} s: {what}")
            time.sleep(_POLL_S)


async def _plant(settings: Settings, database: Database, cell: NoopCell) -> None:
    """Bring the cell's jobs to where a client has its `202`."""
    jobs = JobStore(database)
    todo = iter(range(cell.jobs_count))
    async with ObjectStore.open(store_settings(settings, connections_max=_PLANTERS)) as objects:

        async def work() -> None:
            for _ in todo:
                await _plant_one(jobs, objects if cell.work is Work.STORE else None, owner=cell.title)

        await asyncio.gather(*(work() for _ in range(_PLANTERS)))


async def _plant_one(jobs: JobStore, objects: ObjectStore | None, *, owner: str) -> None:
    place = Reservation(
        job_id=uuid.uuid4(), image_id=uuid.uuid4(), owner=owner, upload_token=uuid.uuid4(), held_bytes=len(_SOURCE)
    )
    outcome = await jobs.admit(place, bounds=_BOUNDS, lease_s=60.0, deadline_s=60.0)
    if outcome is not AdmitOutcome.ADMITTED:
        raise NoopFailedError(f"a gate without a bound said {outcome}")
    if objects is not None:
        await objects.put(staging_key(place.job_id), _SOURCE, media_type="image/jpeg")
    source = Source(
        source_bytes=len(_SOURCE),
        sha256=hashlib.sha256(_SOURCE).hexdigest(),
        format=ImageFormat.JPEG,
        width=1,
        height=1,
    )
    if not await jobs.accept(
        job_id=place.job_id, upload_token=place.upload_token, source=source, job_deadline_s=3_600.0
    ):
        raise NoopFailedError("a fresh reservation was gone")


def _rate(rows: Sequence[Mapping[str, Any]], cell: NoopCell) -> float:
    states = {row["state"] for row in rows}
    tokens = {row["claim_token"] for row in rows}
    if len(rows) != cell.jobs_count or states != {"ready"} or tokens != {1}:
        raise NoopFailedError(f"{len(rows)} jobs of {cell.jobs_count}, states {states}, claims {tokens}")
    ends = sorted(row["finished_at"] for row in rows)
    counted = ends[len(ends) - int(len(ends) * COUNTED_SHARE) :]
    took: timedelta = counted[-1] - counted[0]
    return (len(counted) - 1) / took.total_seconds()


def _cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes with all their children so far."""
    total_s = 0.0
    for pid in pids:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s
