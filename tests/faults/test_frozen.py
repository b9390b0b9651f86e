"""A process that is frozen (SIGSTOP) stops no other one, and finds its work done by others when it goes on."""

import asyncio
import uuid

import httpx
import psutil

from stack.roles import RoleProcess
from stack.servers import Servers
from tests.edge import Connection, body, connect, exchange, head, request
from tests.faults.prompt import metric
from tests.line import Line, photo, until

LEASE_S = 2.0  #: of the line's QUICK settings, for jobs and uploads
SEVERAL_LEASES_S = 3.5 * LEASE_S
SLOW_PHOTO = {"width": 6000, "height": 5000}  #: seconds of work


async def test_a_frozen_api_holds_a_place_for_a_lease_and_its_neighbour_goes_on(line: Line) -> None:
    await line.start("janitor")
    (frozen,) = await line.start("api", SPILLWAY_ADMISSION_JOBS_MAX="1")
    async with connect(frozen.port) as slow:
        begun = await begin(line, slow)
        frozen.freeze()
        other = await line.start_named("api", name="api-2", SPILLWAY_ADMISSION_JOBS_MAX="1")

        async def accepted() -> bool:
            answer = await exchange(other.port, request(line.token, body(photo(2))))
            assert answer.status == 202 or answer.code == "backlog_full"
            return answer.status == 202

        await until(accepted, what="the place of the frozen upload is given to another")
        frozen.thaw()
        await slow.send(begun)
        answer = await slow.answer()
    assert (answer.status, answer.code) == (503, "reservation_lost")
    (row,) = [row for row in await line.rows() if row["state"] != "dropped"]
    assert row["state"] == "queued"


async def begin(line: Line, slow: Connection) -> bytes:
    """Send an upload without its end, which is returned."""
    data = body(photo(1))
    await slow.send(head(line.token, length_bytes=len(data)) + data[:-500])

    async def reserved() -> bool:
        return bool(await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE state = 'uploading'"))

    await until(reserved, what="the upload has its place")
    return data[-500:]


async def test_one_frozen_process_of_an_api_leaves_new_clients_to_the_others(line: Line) -> None:
    (api,) = await line.start("api", SPILLWAY_API_PROCESSES="2")

    async def both() -> list[psutil.Process]:
        children = [child for child in psutil.Process(api.pid).children() if "--slot" in " ".join(child.cmdline())]
        return children if len(children) == 2 else []

    frozen, _ = await until(both, what="both processes run")
    frozen.suspend()
    # Connections of their own: one that the frozen process had taken before could only wait for it.
    answers = await asyncio.gather(*(exchange(api.port, request(line.token, body(photo(n)))) for n in range(6)))
    assert [answer.status for answer in answers] == [202] * 6
    frozen.resume()


async def test_a_frozen_relay_keeps_what_it_took_for_a_lease_only(line: Line, servers: Servers) -> None:
    assert servers.rabbit is not None
    frozen, _, _ = await line.start("relay", "api", "janitor")
    await line.wait_published(await line.accepted([1]))
    # With the broker silent it waits for confirms: this is where it is frozen, rows in its hands.
    servers.rabbit.freeze()
    job_ids = await line.accepted(range(2, 5))

    async def taken() -> bool:
        return bool(await line.raw.fetchval("SELECT count(*) FROM spillway.outbox WHERE lease_token IS NOT NULL"))

    await until(taken, what="the relay has taken rows")
    frozen.freeze()
    servers.rabbit.thaw()
    await line.start_named("relay", name="relay-2")
    await line.start("worker")
    await line.wait_ready(job_ids)
    frozen.thaw()
    await line.wait_ready(await line.accepted([6]))
    assert {row["claim_token"] for row in await line.rows()} == {1}


async def test_a_frozen_janitor_leaves_the_sweeps_to_another(line: Line) -> None:
    frozen, _, _ = await line.start("janitor", "api", "relay")
    (worker,) = await line.start("worker", crash_point="worker.claimed", SPILLWAY_WORKER_CONCURRENCY="1")
    frozen.freeze()
    (job_id,) = await line.accepted([1])
    await line.wait_state(job_id, "processing")
    await until_dead(worker)
    await line.start_named("janitor", name="janitor-2")
    await line.start_named("worker", name="worker-2")
    await line.wait_ready([job_id])
    frozen.thaw()
    assert (await line.row(job_id))["deaths"] == 1


async def test_a_frozen_worker_gives_up_what_it_had_only_fetched(line: Line) -> None:
    """One job in its hands and three deliveries behind it: the broker takes those back, the janitor the first."""
    await line.start("api", "relay", "janitor")
    few = {"SPILLWAY_WORKER_CONCURRENCY": "1", "SPILLWAY_WORKER_PREFETCH": "4", "SPILLWAY_BROKER_HEARTBEAT_S": "1"}
    (frozen,) = await line.start("worker", **few)
    (child,) = psutil.Process(frozen.pid).children()
    child.suspend()  # so that nothing ends before everything is in its hands
    job_ids = await line.accepted(range(4))
    await line.wait_published(job_ids)

    async def in_hand() -> bool:
        return bool(await line.raw.fetchval("SELECT sum(unacked) = 4 FROM spillway.processes WHERE role = 'worker'"))

    await until(in_hand, what="the worker has all four")
    frozen.freeze()
    await line.start_named("worker", name="worker-2", **few)
    await line.wait_ready(job_ids)
    frozen.thaw()
    await line.assert_equal_to_a_single_run(job_ids)

    async def fenced() -> bool:
        return await metric(frozen.url, line, "spillway_worker_fenced_writes_total") >= 1

    await until(fenced, what="the late writes were refused and counted")
    assert {row["state"] for row in await line.rows()} == {"ready"}


async def test_a_job_longer_than_its_lease_is_left_to_its_worker_while_that_lives(line: Line) -> None:
    """The image stands still for several leases, in the child; the worker's heartbeat goes on."""
    await line.start("api", "relay", "janitor")
    (worker,) = await line.start("worker", SPILLWAY_WORKER_CONCURRENCY="1")
    (child,) = psutil.Process(worker.pid).children()
    child.suspend()
    (job_id,) = await line.accepted([1])
    row = await line.wait_state(job_id, "processing")

    async def long_past() -> bool:
        age_s = await line.raw.fetchval(
            "SELECT extract(epoch FROM clock_timestamp() - $1::timestamptz)", row["claimed_at"]
        )
        return bool(age_s > SEVERAL_LEASES_S)

    await until(long_past, what="several leases are over")
    after = await line.row(job_id)
    assert (after["state"], after["claim_token"], after["deaths"]) == ("processing", 1, 0)
    child.resume()
    await line.wait_ready([job_id])
    assert (await line.row(job_id))["claim_token"] == 1


async def test_a_worker_started_again_under_its_name_is_another_one(line: Line) -> None:
    """What the dead one held is nobody's until its lease ends: the new one neither renews nor settles it."""
    await line.start("api", "relay", "janitor")
    (first,) = await line.start("worker", crash_point="worker.claimed", SPILLWAY_WORKER_CONCURRENCY="1")
    (job_id,) = await line.accepted([1])
    await until_dead(first)
    held: uuid.UUID = (await line.row(job_id))["worker_id"]
    (second,) = await line.start("worker")
    assert second.name == first.name
    await line.wait_ready([job_id])
    after = await line.row(job_id)
    assert (after["claim_token"], after["deaths"]) == (2, 1)
    assert after["worker_id"] != held


async def until_dead(process: RoleProcess) -> None:
    async def dead() -> bool:
        return not process.alive

    await until(dead, what="the process has ended")


async def test_status_is_readable_while_every_background_role_is_frozen(line: Line) -> None:
    roles = await line.start("api", "relay", "worker", "janitor")
    for process in roles[1:]:
        process.freeze()
    (job_id,) = await line.accepted([1])
    answer = await line.http.get(
        f"{line.base_url}/api/v1/image-jobs/{job_id}", headers={"Authorization": f"Bearer {line.token}"}
    )
    assert (answer.status_code, answer.json()["status"]) == (httpx.codes.OK, "queued")
    for process in roles[1:]:
        process.thaw()
    await line.wait_ready([job_id])
