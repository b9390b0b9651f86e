"""What others met between broker and workers, tried on this line: slow jobs, closed channels, returned messages."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aio_pika
import psutil
import pytest

from contracts.limits import DELIVERIES_MAX
from contracts.messages import dead_letter_queue, jobs_queue
from stack.roles import RoleProcess
from stack.servers import Servers
from tests.hostile_images import RGB, png_whole
from tests.image_makers import encode, photo
from tests.line import QUICK, Line, until

PREFETCH = 4
SAMPLE_S = 0.05
#: How long the broker waits for an acknowledgement here, and how often a channel looks at that, milliseconds.
PATIENCE_MS, TICK_MS = 1_500, 500
CONSUMER_TIMEOUT = (
    "application:set_env(rabbit, consumer_timeout, {}), application:set_env(rabbit, channel_tick_interval, {})."
)


def own_name() -> str:
    """Return a name whose log no earlier test has written to."""
    return f"worker-{uuid.uuid4().hex[:8]}"


def log_of(process: RoleProcess) -> str:
    return process.child.spec.log_path.read_text(encoding="utf-8", errors="replace")


def sessions_of(worker: RoleProcess) -> int:
    """Return how often the worker has begun to consume."""
    return log_of(worker).count("worker.consuming")


async def wait_sessions(workers: list[RoleProcess], *, count: int) -> None:
    """Return when each worker has begun to consume so often."""

    async def consuming() -> bool:
        return all(sessions_of(worker) >= count for worker in workers)

    await until(consuming, what="every worker consumes")


def children_of(worker: RoleProcess) -> list[int]:
    return [child.pid for child in psutil.Process(worker.pid).children()]


@asynccontextmanager
async def impatient_broker(servers: Servers) -> AsyncIterator[None]:
    """Let the broker close channels whose deliveries are not acknowledged soon."""
    assert servers.rabbit is not None
    await asyncio.to_thread(servers.rabbit.control, "eval", CONSUMER_TIMEOUT.format(PATIENCE_MS, TICK_MS))
    try:
        yield
    finally:
        await asyncio.to_thread(servers.rabbit.control, "eval", CONSUMER_TIMEOUT.format(1_800_000, 60_000))


async def test_a_job_longer_than_the_brokers_patience_is_done_once_and_the_worker_goes_on(
    line: Line, servers: Servers
) -> None:
    await line.start("api", "relay", "janitor")
    async with impatient_broker(servers):
        worker = await line.start_named("worker", name=own_name(), SPILLWAY_WORKER_CONCURRENCY="1")

        async def has_child() -> bool:
            return len(children_of(worker)) == 1

        async def came_back() -> bool:
            return sessions_of(worker) > 1

        await until(has_child, what="the worker has its child")
        (child,) = children_of(worker)
        os.kill(child, signal.SIGSTOP)  # stands for an image that takes very long
        try:
            (slow,) = await line.accepted([1])
            await until(came_back, what="the channel was closed and opened anew")
        finally:
            os.kill(child, signal.SIGCONT)
        await line.wait_ready([slow])
    row = await line.row(slow)
    assert (row["claim_token"], row["attempts_spent"], row["deaths"]) == (1, 0, 0)
    await line.wait_ready(await line.accepted([2, 3]))
    await line.assert_equal_to_a_single_run([slow])


@pytest.mark.alone
async def test_images_that_keep_every_core_busy_cost_no_connection(line: Line) -> None:
    await line.start("api", "relay", "janitor")
    worker = await line.start_named(
        "worker", name=own_name(), SPILLWAY_WORKER_CONCURRENCY="4", SPILLWAY_BROKER_HEARTBEAT_S="1"
    )
    heavy = encode(photo(3_000, 2_000), "JPEG", quality=70, progressive=True)
    answers = [await line.upload(heavy) for _ in range(6)]
    job_ids = [uuid.UUID(answer.json()["job_id"]) for answer in answers]
    await line.wait_ready(job_ids, timeout_s=120)
    assert sessions_of(worker) == 1
    assert {(row["claim_token"], row["attempts_spent"]) for row in await line.rows()} == {(1, 0)}


async def test_an_image_that_eats_memory_is_final_at_once_and_its_neighbours_are_not(line: Line) -> None:
    await line.start("api", "relay", "janitor")
    memory = {"SPILLWAY_IMAGE_MEMORY_BYTES_MAX": str(192 * 1024**2)}
    worker = await line.start_named("worker", name=own_name(), **memory)
    eater = await line.upload(png_whole(7_000, 7_000, colour=RGB, interlace=1))
    assert eater.status_code == 202
    good = await line.accepted(range(12))
    row = await line.wait_state(uuid.UUID(eater.json()["job_id"]), "failed")
    assert (row["error_code"], row["claim_token"], row["deaths"]) == ("image_memory_limit", 1, 0)
    await line.wait_ready(good)
    assert worker.alive
    assert sessions_of(worker) == 1


@asynccontextmanager
async def channel_of(line: Line) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    connection = await aio_pika.connect(line.env["SPILLWAY_BROKER_URL"])
    async with connection:
        yield await connection.channel()


async def test_a_message_returned_until_the_broker_gives_it_up_does_not_take_its_job_along(line: Line) -> None:
    await line.start("api", "relay")
    (job_id,) = await line.accepted([1])
    await line.wait_published([job_id])
    returns = 0
    async with channel_of(line) as channel:
        queue = await channel.get_queue(jobs_queue(line.env["SPILLWAY_BROKER_PREFIX"]), ensure=False)
        while (message := await queue.get(fail=False, timeout=5)) is not None:
            await message.nack(requeue=True)
            returns += 1
            assert returns <= 2 * DELIVERIES_MAX
    assert returns > 20, "a broker of version 4 would have dropped it by now, with no limit of ours"
    await line.start("janitor", "worker")
    await line.wait_ready([job_id])
    row = await line.row(job_id)
    assert (row["claim_token"], row["attempts_spent"], row["deaths"]) == (1, 0, 0)


async def test_jobs_that_fail_are_in_the_registry_whatever_became_of_the_dead_letter_queue(line: Line) -> None:
    await line.start("api", "relay", "janitor", "worker")
    async with channel_of(line) as channel:
        await channel.queue_delete(
            dead_letter_queue(line.env["SPILLWAY_BROKER_PREFIX"]), if_unused=False, if_empty=False
        )
    whole = encode(photo(300, 200), "JPEG")
    failed = []
    for _ in range(8):
        answer = await line.upload(whole[: len(whole) // 2])
        failed.append(uuid.UUID(answer.json()["job_id"]))
    for job_id in failed:
        row = await line.wait_state(job_id, "failed")
        assert (row["error_code"], row["claim_token"]) == ("invalid_image", 1)
        assert row["bytes_book"] == "failed_source", "a replay would have no source"


@dataclass(slots=True)
class Watch:
    """What workers said of the deliveries in their hands, by worker."""

    most: dict[uuid.UUID, int] = field(default_factory=dict)

    async def look(self, line: Line) -> None:
        for row in await line.raw.fetch("SELECT id, unacked FROM spillway.processes WHERE role = 'worker'"):
            self.most[row["id"]] = max(row["unacked"], self.most.get(row["id"], 0))


async def watch_until_ready(line: Line, job_ids: list[uuid.UUID]) -> Watch:
    watch = Watch()

    async def over() -> bool:
        await watch.look(line)
        return not await line.raw.fetchval(
            "SELECT count(*) FROM spillway.jobs WHERE id = ANY ($1) AND state <> 'ready'", job_ids
        )

    await until(over, timeout_s=90, what="all jobs ready")
    return watch


@pytest.mark.alone
async def test_no_worker_gets_more_than_its_prefetch_before_and_after_the_broker_was_away(
    line: Line, servers: Servers
) -> None:
    assert servers.rabbit is not None
    await line.start("api", "relay", "janitor")
    settings = {
        **QUICK,
        "SPILLWAY_WORKER_CONCURRENCY": "2",
        "SPILLWAY_WORKER_PREFETCH": str(PREFETCH),
        "SPILLWAY_PROCESS_SEEN_S": str(SAMPLE_S),
    }
    workers = [line.roles.spawn("worker", name=own_name(), env=settings) for _ in range(2)]
    for worker in workers:
        await asyncio.to_thread(worker.wait_live)
    await wait_sessions(workers, count=1)  # else the first to consume may take all there is
    before = await watch_until_ready(line, await line.accepted(range(30)))
    await asyncio.to_thread(servers.rabbit.restart)
    await wait_sessions(workers, count=2)
    after = await watch_until_ready(line, await line.accepted(range(100, 130)))
    for watch in (before, after):
        assert len(watch.most) == len(workers)
        assert all(0 < most <= PREFETCH for most in watch.most.values()), watch.most
