"""What the broker gave up on is written down before it is acknowledged, and never kept in hand through an outage."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator

import aio_pika
import pytest

from app.core.backlog import Backlog
from app.core.postgres import Database, DatabaseUnavailableError, PoolSettings, open_database
from app.core.rabbit import BrokerSession, BrokerSettings
from app.core.registry import DeadReason
from contracts.messages import JobMessage, dead_letter_queue, jobs_queue
from stack.roles import Roles
from tests.line import Line, open_line, until
from worker.dead_letters import reason_of, take_dead_letters

GARBAGE = b"\x00 not a message"
#: Nothing listens on the discard port.
NOWHERE = "postgresql://spillway@127.0.0.1:9/none"


@pytest.fixture
async def line(roles: Roles, fresh_env: dict[str, str]) -> AsyncIterator[Line]:
    async with open_line(roles, fresh_env) as opened:
        yield opened


def broker_of(line: Line) -> BrokerSettings:
    return BrokerSettings(
        url=line.env["SPILLWAY_BROKER_URL"],
        prefix=line.env["SPILLWAY_BROKER_PREFIX"],
        timeout_s=10.0,
        heartbeat_s=60,
    )


async def database_at(url: str) -> Database:
    return await open_database(
        PoolSettings(
            url=url, application_name="test", connections_max=2, acquire_timeout_s=2.0, statement_timeout_s=2.0
        )
    )


async def publish(line: Line, body: bytes, queue: str) -> None:
    """Put a message of our own into a queue, once whoever declares that has done so, and wait for its confirm."""
    async with await aio_pika.connect(line.env["SPILLWAY_BROKER_URL"]) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)

        async def taken() -> bool:
            try:
                await channel.default_exchange.publish(aio_pika.Message(body), queue)
            except aio_pika.exceptions.DeliveryError:
                return False
            return True

        await until(taken, what="the queue is there")


async def waiting(line: Line, queue: str) -> int:
    """How many messages a queue holds that nobody has in hand."""
    async with await aio_pika.connect(line.env["SPILLWAY_BROKER_URL"]) as connection:
        channel = await connection.channel()
        return int((await channel.declare_queue(queue, passive=True)).declaration_result.message_count or 0)


async def letters(line: Line) -> list[dict[str, object]]:
    return [dict(row) for row in await line.raw.fetch("SELECT * FROM spillway.dead_letters ORDER BY first_seen_at")]


async def test_an_unreadable_message_is_shown_once_however_often_it_comes(line: Line) -> None:
    await line.start("worker", "janitor")
    queue = jobs_queue(line.env["SPILLWAY_BROKER_PREFIX"])
    for _ in range(2):
        await publish(line, GARBAGE, queue)

    async def both_seen() -> bool:
        found = await letters(line)
        return bool(found) and found[0]["seen_count"] == 2

    await until(both_seen, what="both dead letters are noted")
    (letter,) = await letters(line)
    assert letter["body_sha256"] == hashlib.sha256(GARBAGE).hexdigest()
    assert (letter["reason"], letter["body_bytes"], letter["job_id"]) == ("unreadable", len(GARBAGE), None)

    async def gone() -> bool:
        return await waiting(line, dead_letter_queue(line.env["SPILLWAY_BROKER_PREFIX"])) == 0

    await until(gone, what="the dead-letter queue is empty")


async def test_a_readable_dead_letter_names_its_job_and_the_job_goes_on(line: Line) -> None:
    await line.start("api", "relay")
    (job_id,) = await line.accepted([1])
    await line.wait_published([job_id])
    await publish(
        line,
        JobMessage(job_id=job_id).model_dump_json().encode(),
        dead_letter_queue(line.env["SPILLWAY_BROKER_PREFIX"]),
    )
    await line.start("janitor", "worker")
    await line.wait_ready([job_id])

    async def noted() -> bool:
        return [letter["job_id"] for letter in await letters(line)] == [job_id]

    await until(noted, what="the dead letter is noted with its job")


async def test_a_dead_letter_goes_back_to_its_queue_when_the_database_does_not_answer(line: Line) -> None:
    queue = dead_letter_queue(line.env["SPILLWAY_BROKER_PREFIX"])
    away, here = await database_at(NOWHERE), await database_at(line.env["SPILLWAY_DATABASE_URL"])
    async with BrokerSession.open(broker_of(line)) as session:
        for _ in range(2):
            await publish(line, GARBAGE, queue)
        with pytest.raises(DatabaseUnavailableError):
            await take_dead_letters(session, backlog=Backlog(away, rows_max=10), letters_max=10)
        assert not session.closed.is_set()

        async def back() -> bool:
            return await waiting(line, queue) == 2

        await until(back, what="both letters wait in the queue while the session lives on", timeout_s=10.0)
        await take_dead_letters(session, backlog=Backlog(here, rows_max=10), letters_max=10)
        (letter,) = await letters(line)
        assert letter["seen_count"] == 2
        assert await waiting(line, queue) == 0
    await asyncio.gather(away.close(), here.close())


async def test_a_sweep_takes_only_so_many(line: Line) -> None:
    queue = dead_letter_queue(line.env["SPILLWAY_BROKER_PREFIX"])
    database = await database_at(line.env["SPILLWAY_DATABASE_URL"])
    async with BrokerSession.open(broker_of(line)) as session:
        for _ in range(3):
            await publish(line, uuid.uuid4().bytes, queue)
        await take_dead_letters(session, backlog=Backlog(database, rows_max=10), letters_max=2)
        assert len(await letters(line)) == 2
        assert await waiting(line, queue) == 1
    await database.close()


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("delivery_limit", DeadReason.DELIVERY_LIMIT),
        ("rejected", DeadReason.REJECTED),
        (None, DeadReason.UNKNOWN),
        ("a word of tomorrow", DeadReason.UNKNOWN),
        ("unreadable", DeadReason.UNKNOWN),
    ],
)
def test_the_reason_is_one_of_a_closed_set(word: str | None, reason: DeadReason) -> None:
    assert reason_of(word, readable=True) is reason
    assert reason_of(word, readable=False) is DeadReason.UNREADABLE
