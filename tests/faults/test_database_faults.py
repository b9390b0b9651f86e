"""Whatever is wrong with the database, uploads get a prompt answer, no attempt is spent, and all goes on by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx

from stack.servers import Servers
from tests.faults.prompt import (
    assert_no_attempt_spent,
    codes_of_uploads,
    wait_accepting,
    wait_component,
)
from tests.line import Line, photo, until

REFUSED = {"dependency_unavailable", "backlog_full"}
SLOW_PHOTO = {"width": 2600, "height": 2000}  #: about a second of work


async def test_a_frozen_database_is_waited_for_by_every_role(line: Line, servers: Servers) -> None:
    """Longer than a lease: when it goes on, whoever lives may renew first, and no death is counted."""
    assert servers.postgres is not None
    roles = await line.start("api", "relay", "worker", "janitor", SPILLWAY_WORKER_CONCURRENCY="1")
    for seed in range(3):
        assert (await line.upload(photo(seed, **SLOW_PHOTO))).status_code == httpx.codes.ACCEPTED
    servers.postgres.freeze()
    try:
        for _ in range(3):
            assert set(await codes_of_uploads(line, 4)) <= REFUSED
        answer = await line.http.get(f"{line.base_url}/health/ready")
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert answer.json()["components"]["database"] == "away"
        assert (await line.http.get(f"{line.base_url}/health/live")).status_code == httpx.codes.OK
        assert all(process.alive for process in roles)
    finally:
        servers.postgres.thaw()
    await wait_accepting(line)
    await line.wait_ready([*line.sources])
    await assert_no_attempt_spent(line)
    await line.assert_nothing_left_behind()


async def test_a_locked_table_holds_up_every_role_and_harms_none(line: Line) -> None:
    roles = await line.start("api", "relay", "worker", "janitor")
    for seed in range(3):
        assert (await line.upload(photo(seed, **SLOW_PHOTO))).status_code == httpx.codes.ACCEPTED
    locker = await asyncpg.connect(line.env["SPILLWAY_DATABASE_URL"])
    async with locker.transaction():
        await locker.execute("LOCK TABLE spillway.jobs, spillway.outbox IN ACCESS EXCLUSIVE MODE")
        for _ in range(3):
            assert set(await codes_of_uploads(line, 4)) <= REFUSED
    await locker.close()
    await wait_accepting(line)
    await line.wait_ready([*line.sources])
    assert all(process.alive for process in roles)
    await assert_no_attempt_spent(line)


async def test_a_pool_with_no_connection_left_refuses_promptly_and_leases_are_still_renewed(line: Line) -> None:
    """All connections for requests wait for a lock; snapshots and reports have others."""
    await line.start("api", SPILLWAY_DATABASE_POOL_CONNECTIONS_MAX="2")
    await line.accepted([1])
    locker = await asyncpg.connect(line.env["SPILLWAY_DATABASE_URL"])
    async with locker.transaction():
        await locker.execute("SELECT 1 FROM spillway.gate FOR UPDATE")
        assert set(await codes_of_uploads(line, 30)) <= REFUSED
        assert (await line.http.get(f"{line.base_url}/health/live")).status_code == httpx.codes.OK
        await wait_component(line, "database", "up")
    await locker.close()
    await wait_accepting(line)


@asynccontextmanager
async def refusing_logins(line: Line) -> AsyncIterator[None]:
    """Cut every session and refuse new ones, as a server does whose password was changed."""
    server, _, name = line.env["SPILLWAY_DATABASE_URL"].rpartition("/")
    other = await asyncpg.connect(f"{server}/postgres")
    await other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE $2",
        name,
        "spillway%",
    )
    try:
        yield
    finally:
        await other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await other.close()


async def test_a_database_that_refuses_the_login_is_away_and_ends_no_role(line: Line) -> None:
    roles = await line.start("api", "relay", "worker", "janitor", SPILLWAY_WORKER_CONCURRENCY="1")
    for seed in range(3):
        assert (await line.upload(photo(seed, **SLOW_PHOTO))).status_code == httpx.codes.ACCEPTED
    async with refusing_logins(line):
        for _ in range(3):
            assert set(await codes_of_uploads(line, 4)) <= REFUSED
        await wait_component(line, "database", "away")
    await wait_accepting(line)
    await line.wait_ready([*line.sources])
    assert all(process.alive for process in roles)
    await assert_no_attempt_spent(line)


@asynccontextmanager
async def read_only(line: Line) -> AsyncIterator[None]:
    """Let sessions write nothing, from their next one on; the ones there are are cut."""
    server, _, name = line.env["SPILLWAY_DATABASE_URL"].rpartition("/")
    other = await asyncpg.connect(f"{server}/postgres")

    async def change(how: str) -> None:
        await other.execute(f"ALTER DATABASE {name} {how}")
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE $2",
            name,
            "spillway%",
        )

    await change("SET default_transaction_read_only = on")
    try:
        yield
    finally:
        await change("RESET default_transaction_read_only")
        await other.close()


async def test_a_database_that_only_reads_is_away_before_any_upload_has_met_with_it(line: Line) -> None:
    await line.start("api")
    await wait_component(line, "database", "up")
    async with read_only(line):
        await wait_component(line, "database", "away")
        answer = await line.http.get(f"{line.base_url}/health/ready")
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert set(await codes_of_uploads(line, 2)) == {"dependency_unavailable"}
    await wait_accepting(line)
    await wait_component(line, "database", "up")


@asynccontextmanager
async def no_slot_left(line: Line) -> AsyncIterator[None]:
    """Take every connection that the server still gives."""
    taken = []
    try:
        while True:
            try:
                taken.append(await asyncpg.connect(line.env["SPILLWAY_DATABASE_URL"]))
            except asyncpg.TooManyConnectionsError:
                break
        yield
    finally:
        await asyncio.gather(*(connection.close() for connection in taken))


async def test_a_server_without_a_free_connection_is_an_outage_like_any_other(line: Line) -> None:
    await line.start("relay", "worker", "janitor")
    async with no_slot_left(line):
        # Its first connection is asked for only now.
        await line.start("api")
        assert set(await codes_of_uploads(line, 4)) <= REFUSED
        await wait_component(line, "database", "away")
    await wait_accepting(line)
    await line.wait_ready([*line.sources])


async def test_a_database_without_room_refuses_promptly(line: Line) -> None:
    """Its own words for a full disk, said where a row would have been written."""
    await line.start("api", "relay", "worker", "janitor")
    await line.wait_ready(await line.accepted([1]))
    await line.raw.execute(
        """CREATE FUNCTION spillway.no_room() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
        CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON spillway.jobs
        FOR EACH STATEMENT EXECUTE FUNCTION spillway.no_room()"""
    )
    assert set(await codes_of_uploads(line, 4)) <= REFUSED
    await line.raw.execute("DROP TRIGGER no_room ON spillway.jobs")
    await wait_accepting(line)
    await line.wait_ready([*line.sources])
    await assert_no_attempt_spent(line)


async def test_connections_cut_by_the_server_are_opened_anew(line: Line) -> None:
    """Every session but the watcher's is ended, again and again, while jobs run."""
    roles = await line.start("api", "relay", "worker", "janitor")
    cuts = 0
    for seed in range(6):
        await line.upload(photo(seed, **SLOW_PHOTO))
        cuts += await line.raw.fetchval(
            """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()"""
        )
    assert cuts >= len(roles)
    await wait_accepting(line)
    await line.wait_ready([*line.sources])
    assert all(process.alive for process in roles)
    await assert_no_attempt_spent(line)


async def test_an_idle_worker_notices_a_database_that_is_away_before_it_takes_the_next_job(
    line: Line, servers: Servers
) -> None:
    """Deliveries that it could not claim go back to the broker, unacknowledged."""
    assert servers.postgres is not None
    await line.start("api", "relay", "janitor")
    job_ids = await line.accepted(range(3))
    await line.wait_published(job_ids)
    await asyncio.to_thread(servers.postgres.kill)
    (worker,) = await line.start("worker")
    await asyncio.to_thread(servers.postgres.start)
    await line.reconnect()
    await line.wait_ready(job_ids)
    assert worker.alive

    async def idle() -> bool:
        return bool(await line.raw.fetchval("SELECT sum(unacked) = 0 FROM spillway.processes WHERE role = 'worker'"))

    await until(idle, what="nothing is left in its hands")
