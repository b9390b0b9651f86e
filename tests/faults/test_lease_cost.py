"""What leases cost at the default settings: statements a job beyond claim and settle, and CPU. Prints both."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager

import psutil
import pytest

from app.core.backlog import Backlog
from app.core.jobstore import JobStore
from app.core.jobviews import JobViews
from app.core.outbox import Outbox
from app.core.postgres import PoolSettings, open_database
from stack.roles import Role
from stack.servers import Servers
from tests.books import Books
from tests.line import Line, photo, until

pytestmark = pytest.mark.alone

JOBS = 40
TWO_MP = {"width": 1632, "height": 1224}
CALLS = 300
HELD = 2
STATEMENTS_MAX = 4.0
CPU_SHARE_MAX = 0.03

#: What exists for leases, their heartbeats and the sweeps that judge them, and for nothing else.
LEASES = ("extend_leases", "hand_back_unheld", "rescue", "report_process", "estimate_capacity")
#: Parts of the statements, without constants, which the server leaves out.
TEXTS = {
    "claim": "first_claimed_at = coalesce(first_claimed_at",
    "settle": "spillway.complete(",
    "extend_leases": "FOR NO KEY UPDATE OF j",
    "hand_back_unheld": "spillway.hand_back_unheld(",
    "rescue": "spillway.rescue(",
    "report_process": "INSERT INTO spillway.processes",
    "estimate_capacity": "UPDATE spillway.capacity",
}


@asynccontextmanager
async def counting(servers: Servers, line: Line) -> AsyncIterator[None]:
    """Let the server count statements; it is started anew before and after."""
    assert servers.postgres is not None
    await line.raw.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
    await asyncio.to_thread(servers.postgres.restart)
    await line.reconnect()
    try:
        await line.raw.execute("CREATE EXTENSION pg_stat_statements")
        yield
    finally:
        await line.raw.execute("ALTER SYSTEM RESET shared_preload_libraries")
        await asyncio.to_thread(servers.postgres.restart)
        await line.reconnect()


async def calls_by_name(line: Line) -> dict[str, int]:
    rows = await line.raw.fetch(
        """SELECT query, calls FROM pg_stat_statements
        WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    )
    return {name: sum(row["calls"] for row in rows if text in row["query"]) for name, text in TEXTS.items()}


@asynccontextmanager
async def books_of(line: Line) -> AsyncIterator[Books]:
    """Lend the stores on a single connection, whose session's CPU can then be read."""
    pool = PoolSettings(
        url=line.env["SPILLWAY_DATABASE_URL"],
        application_name="cost",
        connections_max=1,
        acquire_timeout_s=5.0,
        statement_timeout_s=5.0,
    )
    database = await open_database(pool)
    backlog = Backlog(database, rows_max=100)
    yield Books(database, JobStore(database), JobViews(database), Outbox(database), backlog, line.raw)
    await database.close()


async def cpu_s_a_call(line: Line, calls: Iterable[Awaitable[object]]) -> float:
    """Return the CPU seconds of one call, those of this process and of the server's session together."""
    session = psutil.Process(
        await line.raw.fetchval("SELECT pid FROM pg_stat_activity WHERE application_name = 'cost'")
    )

    def spent_s() -> float:
        times = session.cpu_times()
        return time.process_time() + float(times.user + times.system)

    before_s, count = spent_s(), 0
    for call in calls:
        await call
        count += 1
    return (spent_s() - before_s) / count


async def costs_of_leases(line: Line) -> tuple[float, float]:
    """Return the CPU seconds of a claim, and of a heartbeat over as many jobs as a worker has in hand."""
    async with books_of(line) as books:
        queued = [await books.queued() for _ in range(CALLS)]
        claim_s = await cpu_s_a_call(line, (books.claimed(job_id) for job_id in queued))
        held = dict.fromkeys(queued[:HELD], 1)
        beat_s = await cpu_s_a_call(line, (books.jobs.extend_leases(held, lease_s=30.0) for _ in range(CALLS)))
    return claim_s, beat_s


async def told_cpu_s(line: Line) -> float | None:
    """Return the mean of the worker's jobs as it told the register."""
    told: float | None = await line.raw.fetchval("SELECT max(job_cpu_s) FROM spillway.processes WHERE role = 'worker'")
    return told


async def test_leases_cost_few_statements_and_little_cpu(
    line: Line, servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photo(1, **TWO_MP)
    async with counting(servers, line):
        room = {"SPILLWAY_ADMISSION_JOBS_MAX": str(JOBS)}
        roles: tuple[Role, ...] = ("api", "relay", "janitor")
        processes = [line.roles.spawn(role, env=room) for role in roles]
        await asyncio.gather(*(asyncio.to_thread(process.wait_live) for process in processes))
        line.base_url = processes[0].url
        for _ in range(JOBS):
            assert (await line.upload(data)).status_code == 202
        await line.wait_published([*line.sources])
        await line.raw.execute("SELECT pg_stat_statements_reset()")
        worker = line.roles.spawn("worker")
        await line.wait_ready([*line.sources])
        calls = await calls_by_name(line)
        job_cpu_s = await until(lambda: told_cpu_s(line), what="the worker has told what a job costs")
        for process in (worker, *processes):
            await asyncio.to_thread(process.stop)
    assert calls["claim"] == calls["settle"] == JOBS

    claim_s, beat_s = await costs_of_leases(line)
    statements = sum(calls[name] for name in LEASES) / JOBS
    share = (claim_s + statements * beat_s) / job_cpu_s
    with capsys.disabled():
        sys.stdout.write(
            f"\nleases: {statements:.2f} statements a job beyond claim and settle {calls}; "
            f"{100 * share:.2f} % of the {1000 * job_cpu_s:.0f} ms of CPU of a 2 MP job "
            f"(a claim {1000 * claim_s:.2f} ms, a heartbeat {1000 * beat_s:.2f} ms)\n"
        )
    assert statements <= STATEMENTS_MAX
    assert share <= CPU_SHARE_MAX
