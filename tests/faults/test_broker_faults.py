"""Whatever is wrong with the broker, uploads are accepted, and what was announced in vain is announced again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import psutil
import pytest

from app.core.rabbit import BrokerSession, BrokerSettings
from contracts.messages import jobs_queue
from stack.roles import RoleProcess
from stack.servers import Servers
from tests.faults.link import Link, link_to
from tests.faults.prompt import assert_no_attempt_spent, codes_of_uploads, metric, wait_component
from tests.line import Line, until

#: The broker takes no messages while one of these alarms is on. (Command that sets it, command that lifts it.)
ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0"), ("set_vm_memory_high_watermark", "absolute", "1GB")),
    "disk": (("set_disk_free_limit", "100000000000000"), ("set_disk_free_limit", "200000000")),
}
SOON = {"SPILLWAY_BROKER_TIMEOUT_S": "2"}
#: A channel of everybody's is told to have acknowledged what it never got, which the broker answers by closing it.
CLOSE_CHANNELS = (
    "lists:foreach(fun(C) -> rabbit_channel:do(C, {'basic.ack', 999999, false}) end, rabbit_channel:list())."
)
FILES_MORE_MAX = 3


@asynccontextmanager
async def alarm(servers: Servers, name: str) -> AsyncIterator[None]:
    assert servers.rabbit is not None
    on, off = ALARMS[name]
    await asyncio.to_thread(servers.rabbit.control, *on)
    try:
        yield
    finally:
        await asyncio.to_thread(servers.rabbit.control, *off)


@asynccontextmanager
async def broker_link(line: Line) -> AsyncIterator[tuple[Link, dict[str, str]]]:
    """Give a link to the broker and what a role is told to use it."""
    async with link_to(line.env["SPILLWAY_BROKER_URL"]) as (link, url):
        yield link, {"SPILLWAY_BROKER_URL": url, **SOON}


async def waiting_rows(line: Line) -> int:
    return int(await line.raw.fetchval("SELECT count(*) FROM spillway.outbox"))


async def tries_spent(line: Line) -> int:
    return int(await line.raw.fetchval("SELECT coalesce(max(tries), 0) FROM spillway.outbox"))


async def wait_announced(line: Line) -> None:
    async def empty() -> bool:
        return not await waiting_rows(line)

    await until(empty, what="everything is announced")


@pytest.mark.parametrize("name", list(ALARMS))
async def test_under_an_alarm_uploads_are_accepted_and_wait_in_the_outbox(
    line: Line, servers: Servers, name: str
) -> None:
    _, worker, _ = await line.start("api", "worker", "janitor")
    await line.start("relay", **SOON)
    await line.wait_ready(await line.accepted([1]))
    async with alarm(servers, name):
        assert await codes_of_uploads(line, 5) == {"accepted": 5}
        await wait_component(line, "relay", "away")
        assert await codes_of_uploads(line, 5, first_seed=200) == {"accepted": 5}
        # The relay asks first whether messages are taken: rows are not tried over and over, to arrive all at the end.
        assert await tries_spent(line) <= 1
        assert await waiting_rows(line) == 10
    await line.wait_ready([*line.sources])
    await wait_component(line, "relay", "up")
    assert await metric(worker.url, line, "spillway_worker_empty_claims_total") <= 5
    await assert_no_attempt_spent(line)


@pytest.mark.parametrize("timeout_s", [2, 20], ids=["given up by us", "given up by the heartbeat"])
async def test_a_frozen_broker_is_waited_for_by_every_role(line: Line, servers: Servers, timeout_s: int) -> None:
    assert servers.rabbit is not None
    impatient = {"SPILLWAY_BROKER_TIMEOUT_S": str(timeout_s), "SPILLWAY_BROKER_HEARTBEAT_S": "1"}
    roles = await line.start("api", "relay", "worker", "janitor", **impatient)
    await line.wait_ready(await line.accepted([1]))
    servers.rabbit.freeze()
    try:
        assert await codes_of_uploads(line, 5) == {"accepted": 5}
        for part in ("broker", "relay", "workers"):
            await wait_component(line, part, "away")
        assert all(process.alive for process in roles)
        assert max(files_open(process) for process in roles[1:]) < 100
    finally:
        servers.rabbit.thaw()
    await line.wait_ready([*line.sources], timeout_s=90.0)
    assert all(process.alive for process in roles)
    await assert_no_attempt_spent(line)


def files_open(process: RoleProcess) -> int:
    return psutil.Process(process.pid).num_fds()


async def test_connections_are_not_piled_up_while_the_broker_is_silent(line: Line, servers: Servers) -> None:
    assert servers.rabbit is not None
    (relay,) = await line.start("relay", SPILLWAY_BROKER_TIMEOUT_S="0.3")
    servers.rabbit.freeze()
    try:
        before = files_open(relay)
        waits = 0

        async def many_tries() -> bool:
            nonlocal waits
            waits += 1
            return waits > 120  # of 50 ms and more each: some three sessions given up

        await until(many_tries, what="time passes")
        assert files_open(relay) <= before + FILES_MORE_MAX
    finally:
        servers.rabbit.thaw()


async def test_a_lost_confirm_is_published_again_and_done_once(line: Line) -> None:
    async with broker_link(line) as (link, through):
        await line.start("api", "janitor")
        (relay,) = await line.start("relay", **through)
        await line.wait_published(await line.accepted([1]))
        link.mute = True
        job_ids = await line.accepted(range(2, 5))

        async def unconfirmed() -> bool:
            return await metric(relay.url, line, "spillway_relay_unconfirmed_total") >= 1

        await until(unconfirmed, what="a confirm is missed")
        link.mute = False
        await wait_announced(line)
    assert await messages_ready(line) > 1 + len(job_ids), "the broker had the message all the same"
    (worker,) = await line.start("worker")
    await line.wait_ready([*line.sources])

    async def came_twice() -> bool:
        return await metric(worker.url, line, "spillway_worker_empty_claims_total") >= 1

    await until(came_twice, what="the second delivery found nothing to do")
    assert {row["claim_token"] for row in await line.rows()} == {1}
    await line.assert_equal_to_a_single_run(job_ids)


async def test_a_relay_alone_brings_a_deleted_queue_back(line: Line) -> None:
    """Nobody is there but it: a message without a queue comes back, and is no message sent."""
    await line.start("api")
    (relay,) = await line.start("relay")
    await line.wait_published(await line.accepted([1]))
    await line.delete_jobs_queue()
    job_ids = await line.accepted(range(2, 5))
    await line.wait_published(job_ids)
    assert await metric(relay.url, line, "spillway_relay_unconfirmed_total") >= 1
    await line.start("worker", "janitor")
    await line.wait_ready([*line.sources])


async def test_a_queue_that_the_broker_has_lost_is_made_again(line: Line, servers: Servers) -> None:
    """RabbitMQ 3.10, killed right after a declaration: the queue is there by its word, and takes and gives nothing."""
    assert servers.rabbit is not None
    url, prefix = line.env["SPILLWAY_BROKER_URL"], line.env["SPILLWAY_BROKER_PREFIX"]
    async with BrokerSession.open(BrokerSettings(url=url, prefix=prefix, timeout_s=5.0, heartbeat_s=5)):
        servers.rabbit.kill()
    await asyncio.to_thread(servers.rabbit.start)
    await line.start("api", "relay", "worker", "janitor", **SOON)
    await line.wait_ready(await line.accepted(range(3)), timeout_s=90.0)
    await assert_no_attempt_spent(line)


async def test_a_deleted_queue_is_made_again_under_the_hands_of_its_consumer(line: Line) -> None:
    await line.start("api", "relay", "worker", "janitor")
    await line.wait_ready(await line.accepted([1]))
    await line.delete_jobs_queue()
    await line.wait_ready(await line.accepted(range(2, 5)))


async def test_closed_channels_are_opened_anew(line: Line, servers: Servers) -> None:
    assert servers.rabbit is not None
    await line.start("api", "relay", "worker", "janitor")
    await line.wait_ready(await line.accepted([1]))
    await asyncio.to_thread(servers.rabbit.control, "eval", CLOSE_CHANNELS)
    await line.wait_ready(await line.accepted(range(2, 5)))
    await assert_no_attempt_spent(line)


async def test_a_backlog_leaves_the_outbox_in_bounded_batches(line: Line, servers: Servers) -> None:
    assert servers.rabbit is not None
    await line.start("api", SPILLWAY_ADMISSION_JOBS_MAX="100")
    job_ids = [await line.accepted([seed]) for seed in range(30)]
    await line.start("relay", SPILLWAY_RELAY_BATCH_ROWS="4", SPILLWAY_RELAY_LEASE_S="10")
    most = 0

    async def drained() -> bool:
        nonlocal most
        most = max(most, await line.raw.fetchval("SELECT count(*) FROM spillway.outbox WHERE lease_token IS NOT NULL"))
        return not await waiting_rows(line)

    await until(drained, what="the backlog is announced")
    assert most <= 4
    # Rows that one statement announced carry the number of its transaction.
    batches = await line.raw.fetch("SELECT count(*) AS rows FROM spillway.jobs GROUP BY xmin::text")
    assert len(job_ids) / 4 <= len(batches)
    assert max(batch["rows"] for batch in batches) <= 4
    assert await messages_ready(line) == len(job_ids)


async def messages_ready(line: Line) -> int:
    connection = await aio_pika.connect(line.env["SPILLWAY_BROKER_URL"])
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(jobs_queue(line.env["SPILLWAY_BROKER_PREFIX"]), passive=True)
        return int(queue.declaration_result.message_count or 0)
