"""Whatever is wrong with the object store, uploads get a prompt answer, jobs lose no attempt, and all goes on after."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aio_pika
import pytest

from app.core.objects import PROBE_TIMEOUT_S
from contracts.messages import jobs_queue
from stack.children import ChildSpec
from stack.s3 import S3
from stack.servers import Servers
from tests.faults.link import link_to
from tests.faults.prompt import (
    assert_no_attempt_spent,
    codes_of_uploads,
    components,
    wait_accepting,
    wait_component,
)
from tests.line import Line, store_client, until
from worker.pipeline import HAND_BACKS_MAX

SILENT_SOON = {"SPILLWAY_S3_TIMEOUT_S": "2"}


class FullS3(S3):
    """The same store on a disk that has less room than it may use up."""

    def spec(self) -> ChildSpec:
        """Return how to run the server, to which no disk has room enough."""
        spec = super().spec()
        return replace(
            spec, args=["-volume.minFreeSpace=99.99" if a.startswith("-volume.minFree") else a for a in spec.args]
        )


@asynccontextmanager
async def full_disk(servers: Servers) -> AsyncIterator[None]:
    assert servers.s3 is not None
    await asyncio.to_thread(servers.s3.kill)
    full = FullS3(servers.site)
    await asyncio.to_thread(full.start)
    try:
        yield
    finally:
        await asyncio.to_thread(full.kill)
        await asyncio.to_thread(servers.s3.start)


async def test_a_store_without_room_refuses_uploads_and_keeps_the_jobs(line: Line, servers: Servers) -> None:
    await line.start("api", "worker", "janitor", **SILENT_SOON)
    job_ids = await line.accepted(range(3))
    async with full_disk(servers):
        await wait_component(line, "store", "up")  # it answers, and no upload has met with it
        refused = await codes_of_uploads(line, 4)
        assert refused == {"dependency_unavailable": 4}
        await wait_component(line, "store", "away")
        await line.start("relay")  # what it announces meets a worker that finds a full store
        await jobs_go_back(line)
    await wait_component(line, "store", "up")
    await line.wait_ready(job_ids)
    await wait_accepting(line)
    await line.wait_ready([*line.sources])
    await assert_no_attempt_spent(line)
    await line.assert_nothing_left_behind()


async def test_a_silent_store_is_given_up_and_the_worker_takes_nothing_more(line: Line, servers: Servers) -> None:
    """What it had is handed back, and no delivery is taken until a probe succeeds: nothing is claimed in vain."""
    assert servers.s3 is not None
    await line.start("api", "worker", "janitor", **SILENT_SOON)
    job_ids = await line.accepted(range(4))
    servers.s3.freeze()
    try:
        await line.start("relay")
        refused = await codes_of_uploads(line, 4)
        assert refused == {"dependency_unavailable": 4}
        await wait_component(line, "store", "away")
        await jobs_go_back(line)
        assert await messages_once_unheard(line) >= 1
        # Every one was claimed once at most: nothing went round between broker and worker.
        assert await claims_made(line) <= len(job_ids)
    finally:
        servers.s3.thaw()
    await line.wait_ready(job_ids)
    await wait_accepting(line)
    await line.wait_ready([*line.sources])
    await assert_no_attempt_spent(line)


async def jobs_go_back(line: Line) -> None:
    async def back() -> bool:
        rows = await line.rows()
        tried = [row for row in rows if row["claim_token"]]
        return bool(tried) and all(row["state"] in ("queued", "dropped") for row in rows)

    await until(back, what="the worker has tried and has handed everything back")


async def claims_made(line: Line) -> int:
    return int(await line.raw.fetchval("SELECT sum(claim_token) FROM spillway.jobs"))


async def messages_once_unheard(line: Line) -> int:
    """Return how many messages wait in the broker once nobody consumes."""
    connection = await aio_pika.connect(line.env["SPILLWAY_BROKER_URL"])
    async with connection:
        channel = await connection.channel()
        name = jobs_queue(line.env["SPILLWAY_BROKER_PREFIX"])

        async def unheard() -> bool:
            queue = await channel.declare_queue(name, passive=True)
            return queue.declaration_result.consumer_count == 0

        await until(unheard, what="nobody consumes")
        queue = await channel.declare_queue(name, passive=True)
        return int(queue.declaration_result.message_count or 0)


async def test_a_slow_store_slows_uploads_and_jobs_and_fails_none(line: Line) -> None:
    async with link_to(line.env["SPILLWAY_S3_ENDPOINT_URL"]) as (link, url):
        through = {"SPILLWAY_S3_ENDPOINT_URL": url}
        await line.start("api", "relay", "worker", "janitor", **through)
        link.delay_s = 0.3
        assert await codes_of_uploads(line, 6) == {"accepted": 6}
        assert (await components(line))["store"] == "up"
        await line.wait_ready([*line.sources])
    await assert_no_attempt_spent(line)


async def test_a_store_whose_answers_are_lost_is_a_prompt_refusal_and_leaves_no_object(line: Line) -> None:
    async with link_to(line.env["SPILLWAY_S3_ENDPOINT_URL"]) as (link, url):
        through = {"SPILLWAY_S3_ENDPOINT_URL": url, **SILENT_SOON}
        await line.start("api", "relay", "worker", "janitor", **through)
        await line.wait_ready(await line.accepted([1]))
        link.mute = True
        refused = await codes_of_uploads(line, 3)
        assert refused == {"dependency_unavailable": 3}
        link.mute = False
        await wait_accepting(line)
        await line.wait_ready([*line.sources])
        await line.assert_nothing_left_behind()


@pytest.mark.parametrize(("claims_before", "spends"), [(0, False), (HAND_BACKS_MAX, True)])
async def test_cuts_that_a_probe_does_not_meet_spend_an_attempt_only_when_they_go_on_and_on(
    line: Line, claims_before: int, *, spends: bool
) -> None:
    async with link_to(line.env["SPILLWAY_S3_ENDPOINT_URL"]) as (link, url):
        await line.start("api")
        (job_id,) = await line.accepted([1])
        await line.raw.execute("UPDATE spillway.jobs SET claim_token = $1", claims_before)
        link.cut_at = b"/thumb"
        through = {"SPILLWAY_S3_ENDPOINT_URL": url, "SPILLWAY_RETRY_BASE_S": "0.1"}
        await line.start("relay", "worker", "janitor", **through)

        async def claimed_again() -> bool:
            (row,) = await line.rows()
            return bool(row["claim_token"] >= claims_before + 2)

        await until(claimed_again, what="the job has come back from its first attempt")
        link.cut_at = b""
        await line.wait_ready([job_id])
        (row,) = await line.rows()
        assert bool(row["attempts_spent"]) is spends


async def test_a_store_slower_than_a_health_probe_allows_is_still_worked_with(line: Line) -> None:
    async with link_to(line.env["SPILLWAY_S3_ENDPOINT_URL"]) as (link, url):
        await line.start("api")
        (job_id,) = await line.accepted([1])
        link.delay_s = PROBE_TIMEOUT_S / 2  # there and back, for a write and a read: at least twice what a probe has
        await line.start("relay", "worker", SPILLWAY_S3_ENDPOINT_URL=url)
        await line.wait_ready([job_id])


async def test_a_store_that_has_lost_the_bucket_has_it_made_again(line: Line) -> None:
    """An own bucket, whose loss disturbs nobody else."""
    bucket = line.env["SPILLWAY_BROKER_PREFIX"]
    await line.start("api", "relay", "worker", "janitor", SPILLWAY_S3_BUCKET=bucket)
    await wait_accepting(line)
    async with store_client(line.env) as store:
        await line.wait_ready([*line.sources])
        kept = (await store.list_objects_v2(Bucket=bucket))["Contents"]
        await store.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": entry["Key"]} for entry in kept]})
        await store.delete_bucket(Bucket=bucket)
    before = len(line.sources)
    await wait_accepting(line)
    await line.wait_ready([*line.sources][before:])
