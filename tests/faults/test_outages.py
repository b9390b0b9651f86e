"""Servers go away and come back while jobs wait: everything resumes by itself, and no outage is an attempt."""

import asyncio

import asyncpg
import httpx

from stack.servers import Servers
from tests.line import Line, photo, until

LOOKS_MIN, UPLOADS_MAX = 200, 200
SLOW_PHOTO = {"width": 2600, "height": 2000}  #: about a second of work


async def test_a_broker_restarted_while_jobs_wait_keeps_them(line: Line, servers: Servers) -> None:
    assert servers.rabbit is not None
    await line.start("api", "relay", "janitor")
    job_ids = await line.accepted(range(4))

    await line.wait_published(job_ids)
    await asyncio.to_thread(servers.rabbit.kill)
    during = await line.accepted(range(4, 6))
    await asyncio.to_thread(servers.rabbit.start)
    await line.start("worker")
    await line.wait_ready([*job_ids, *during])
    await line.assert_equal_to_a_single_run([job_ids[0], during[0]])


async def test_a_database_restarted_while_jobs_wait_and_run_costs_no_attempt(line: Line, servers: Servers) -> None:
    assert servers.postgres is not None
    await line.start("api", "relay", "worker", "janitor", SPILLWAY_JOB_LEASE_S="10")
    job_ids = [(await line.upload(photo(seed, **SLOW_PHOTO))).json()["job_id"] for seed in range(4)]
    await asyncio.to_thread(servers.postgres.restart)

    async def answers() -> bool:
        response = await line.upload(photo(9))
        assert response.status_code in (httpx.codes.ACCEPTED, httpx.codes.SERVICE_UNAVAILABLE)
        return response.status_code == httpx.codes.ACCEPTED

    await until(answers, what="uploads are accepted again")
    await line.reconnect()
    await line.wait_ready([*line.sources])
    rows = [await line.row(job_id) for job_id in line.sources]
    assert {(row["attempts_spent"], row["deaths"]) for row in rows} == {(0, 0)}
    assert len(job_ids) == 4


async def test_a_store_away_hands_jobs_back_and_refuses_uploads_promptly(line: Line, servers: Servers) -> None:
    assert servers.s3 is not None
    await line.start("api", "relay", "janitor")
    job_ids = await line.accepted(range(3))
    await asyncio.to_thread(servers.s3.kill)
    await line.start("worker")
    refused = await line.upload(photo(7))
    assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert refused.json()["code"] == "dependency_unavailable"
    assert int(refused.headers["retry-after"]) > 0
    await asyncio.to_thread(servers.s3.start)
    await line.wait_ready(job_ids)
    rows = [await line.row(job_id) for job_id in job_ids]
    assert {(row["attempts_spent"], row["deaths"]) for row in rows} == {(0, 0)}
    await line.assert_nothing_left_behind()


async def test_a_frozen_worker_is_fenced_off_and_the_second_attempt_wins(line: Line) -> None:
    await line.start("api", "relay", "janitor")
    (frozen,) = await line.start("worker", SPILLWAY_WORKER_CONCURRENCY="1")
    response = await line.upload(photo(1, **SLOW_PHOTO))
    (job_id,) = line.sources
    await line.wait_state(job_id, "processing")
    frozen.freeze()
    assert response.status_code == httpx.codes.ACCEPTED
    await line.start_named("worker", name="worker-2")
    row = await line.wait_state(job_id, "ready")
    frozen.thaw()

    async def fenced() -> bool:
        _, text = await asyncio.to_thread(frozen.get, "/metrics")
        return b"spillway_worker_fenced_writes_total 1.0" in text

    await until(fenced, what="the late worker's write was refused and counted")
    after = await line.row(job_id)
    assert (after["claim_token"], after["finished_at"]) == (2, row["finished_at"])
    await line.assert_equal_to_a_single_run([job_id])


async def test_a_worker_stopped_in_mid_job_hands_it_back_at_no_cost(line: Line) -> None:
    await line.start("api", "relay", "janitor")
    (worker,) = await line.start("worker", SPILLWAY_WORKER_STOP_GRACE_S="0.1", SPILLWAY_WORKER_CONCURRENCY="1")
    await line.upload(photo(1, **SLOW_PHOTO))
    (job_id,) = line.sources
    await line.wait_state(job_id, "processing")
    assert await asyncio.to_thread(worker.stop, 10.0) == 0
    row = await line.row(job_id)
    assert (row["state"], row["attempts_spent"], row["deaths"]) == ("queued", 0, 0)
    await line.start("worker")
    await line.wait_ready([job_id])


async def test_every_role_stops_cleanly_under_load(line: Line) -> None:
    roles = await line.start("api", "relay", "worker", "janitor")
    await line.accepted(range(6))
    for process in roles:
        assert await asyncio.to_thread(process.stop, 25.0) == 0, process.role
    rows = await line.rows()
    assert {row["state"] for row in rows} <= {"queued", "ready"}
    assert {(row["attempts_spent"], row["deaths"]) for row in rows} == {(0, 0)}


async def test_a_deleted_queue_comes_back_and_its_jobs_are_announced_again(line: Line) -> None:
    await line.start("api", "relay", "janitor")
    job_ids = await line.accepted(range(3))

    await line.wait_published(job_ids)
    await line.delete_jobs_queue()
    await line.start("worker")
    await line.wait_ready(job_ids)


async def test_no_transaction_stays_open_over_a_round_trip(line: Line) -> None:
    """Every statement autocommits: a session is never seen idle inside a transaction, however hard one looks."""
    await line.start("api", "relay", "worker", "janitor")
    looks = 0
    stop = asyncio.Event()
    watcher = await asyncpg.connect(line.env["SPILLWAY_DATABASE_URL"])

    async def look() -> None:
        nonlocal looks
        while not stop.is_set():
            found = await watcher.fetch(
                """SELECT application_name, query FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in transaction%'"""
            )
            assert found == []
            looks += 1
            await asyncio.sleep(0.002)

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        for seed in range(UPLOADS_MAX):
            await line.accepted([seed])
            if looks > LOOKS_MIN:
                break
        await line.wait_ready([*line.sources])
        stop.set()
    await watcher.close()
    assert looks > LOOKS_MIN
