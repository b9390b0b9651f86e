"""Retention: 410 first, objects next, the row last; bounded, again and again, and never what is still needed."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from app.core.backlog import Backlog
from app.core.jobstore import Bounds, ReplayOutcome
from app.core.messages import MessageStore
from app.core.postgres import load_queries
from app.core.retention import Keep, Retention
from contracts.keys import original_key, staging_key
from stack.servers import Servers
from tests.edge import open_edge
from tests.jobs_by_hand import PHOTO, Hand, open_hand
from tests.line import until
from worker.cleaner import Cleaner

HOUR_S = 3600.0
LEASE_S = 60.0
KEEP = Keep(
    ready_s=4 * HOUR_S,
    failed_s=2 * HOUR_S,
    cancelled_s=HOUR_S,
    message_s=24 * HOUR_S,
    gone_s=HOUR_S,
    failed_source_bytes_max=10**9,
)
ROWS_MAX = 2


@dataclass(frozen=True, slots=True)
class Keeper:
    """A line whose janitor's steps a test takes itself, and whose time it moves."""

    hand: Hand
    cleaner: Cleaner

    async def age(self, job_id: uuid.UUID, hours: float) -> None:
        """Let a job be so much older."""
        await self.hand.line.raw.execute(
            """UPDATE spillway.jobs SET finished_at = finished_at - $2 * interval '1 hour',
                expired_at = expired_at - $2 * interval '1 hour',
                sweep_due_at = sweep_due_at - $2 * interval '1 hour' WHERE id = $1""",
            job_id,
            hours,
        )

    async def step(self) -> None:
        """Take every step once."""
        await self.cleaner.expire()
        await self.cleaner.sweep_gone()
        await self.cleaner.purge_failed_sources()
        await self.cleaner.delete_rows()

    async def state(self, job_id: uuid.UUID) -> str | None:
        state: str | None = await self.hand.line.raw.fetchval("SELECT state FROM spillway.jobs WHERE id = $1", job_id)
        return state

    async def assert_books_are_right(self) -> None:
        """The books equal the sums over the rows."""
        sums = await self.hand.line.raw.fetchrow(
            """SELECT count(*) FILTER (WHERE holds_place) AS jobs_held,
                coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'staging'), 0)::bigint AS staging_bytes,
                coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'failed_source'), 0)::bigint AS failed_source_bytes
            FROM spillway.jobs"""
        )
        gate = await self.hand.line.raw.fetchrow(
            "SELECT jobs_held, staging_bytes, failed_source_bytes FROM spillway.gate"
        )
        assert sums is not None
        assert gate is not None
        assert dict(sums) == dict(gate)


def cleaner_of(hand: Hand, keep: Keep) -> Cleaner:
    retention = Retention(hand.database, keep=keep, lease_s=LEASE_S, rows_max=ROWS_MAX)
    return Cleaner(retention=retention, backlog=Backlog(hand.database, rows_max=ROWS_MAX), objects=hand.line.objects)


@asynccontextmanager
async def other_connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(scope="module")
async def keeper(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Keeper]:
    async with open_edge(servers, environment, janitor=False) as line:
        hand = await open_hand(line)
        opened = Keeper(hand, cleaner_of(hand, KEEP))
        yield opened
        await opened.assert_books_are_right()
        await hand.database.close()


@pytest.mark.parametrize(("state", "hours"), [("ready", 4), ("failed", 2), ("cancelled", 1)])
async def test_a_job_goes_in_order_state_objects_row(keeper: Keeper, state: str, hours: float) -> None:
    hand = keeper.hand
    makers = {"ready": hand.ready, "failed": hand.failed, "cancelled": hand.cancelled}
    job_id = await makers[state]()
    image_id = await hand.image_of(job_id)
    await keeper.age(job_id, hours - 0.1)
    await keeper.cleaner.expire()
    assert await keeper.state(job_id) == state
    await keeper.age(job_id, 0.2)
    await keeper.cleaner.expire()
    assert (await hand.read(job_id)).status_code == 410
    assert await hand.keys_of(job_id, image_id) != []
    await keeper.cleaner.sweep_gone()
    assert await hand.keys_of(job_id, image_id) == []
    assert (await hand.line.row(job_id))["held_bytes"] == 0
    await keeper.step()
    assert (await hand.read(job_id)).status_code == 410
    for _ in range(2):  # after the lease, and after the time of 410
        await keeper.age(job_id, 0.6)
        await keeper.step()
    assert await keeper.state(job_id) is None
    assert (await hand.read(job_id)).status_code == 404
    assert await hand.line.raw.fetchval("SELECT count(*) FROM spillway.images WHERE id = $1", image_id) == 0


async def test_reading_prolongs_nothing(keeper: Keeper) -> None:
    job_id = await keeper.hand.ready()
    await keeper.age(job_id, 4.1)
    for _ in range(3):
        assert (await keeper.hand.read(job_id)).status_code == 200
    await keeper.cleaner.expire()
    assert (await keeper.hand.read(job_id)).status_code == 410


async def test_sweeps_are_bounded_and_two_at_once_do_no_harm(keeper: Keeper) -> None:
    hand = keeper.hand
    job_ids = [await hand.ready() for _ in range(2 * ROWS_MAX + 1)]
    images = [await hand.image_of(job_id) for job_id in job_ids]
    for job_id in job_ids:
        await keeper.age(job_id, 5)
    await keeper.cleaner.expire()
    assert [await keeper.state(job_id) for job_id in job_ids].count("expired") == ROWS_MAX
    other = cleaner_of(hand, KEEP)
    for _ in range(4):
        await asyncio.gather(keeper.cleaner.expire(), other.expire())
        await asyncio.gather(keeper.cleaner.sweep_gone(), other.sweep_gone())
    assert {await keeper.state(job_id) for job_id in job_ids} == {"expired"}
    for job_id, image_id in zip(job_ids, images, strict=True):
        assert await hand.keys_of(job_id, image_id) == []
    await keeper.assert_books_are_right()


async def test_objects_that_are_gone_already_are_no_error(keeper: Keeper) -> None:
    hand = keeper.hand
    job_id = await hand.failed()
    await hand.line.objects.delete([staging_key(job_id)])
    await keeper.age(job_id, 3)
    await keeper.step()
    row = await hand.line.row(job_id)
    assert (row["state"], row["held_bytes"]) == ("expired", 0)


async def test_nothing_foreign_is_touched(keeper: Keeper) -> None:
    hand = keeper.hand
    job_id, neighbour_id = await hand.ready(), await hand.ready()
    image_id, neighbour = await hand.image_of(job_id), await hand.image_of(neighbour_id)
    foreign = [f"images/{image_id}x/original", f"staging/{job_id}.keep", "images/readme.txt"]
    for key in foreign:
        await hand.line.objects.put(key, b"not ours", media_type="text/plain")
    before = await hand.keys_of(neighbour_id, neighbour)
    await keeper.age(job_id, 5)
    await keeper.step()
    assert await hand.keys_of(neighbour_id, neighbour) == before
    assert all([await hand.line.objects.exists(key) for key in foreign])
    await hand.line.objects.delete(foreign)


async def test_the_original_stays_while_another_job_of_the_image_is_kept(keeper: Keeper) -> None:
    hand = keeper.hand
    job_id, other_id = await hand.ready(), await hand.ready()
    image_id = await hand.image_of(job_id)
    await hand.line.raw.execute("UPDATE spillway.jobs SET image_id = $2 WHERE id = $1", other_id, image_id)
    await keeper.age(job_id, 5)
    await keeper.step()
    assert await keeper.state(job_id) == "expired"
    assert await hand.line.objects.exists(original_key(image_id))
    await keeper.age(other_id, 5)
    await keeper.step()
    assert not await hand.line.objects.exists(original_key(image_id))


async def test_an_image_whose_two_jobs_went_in_two_sweeps_at_once_goes_in_a_later_one(keeper: Keeper) -> None:
    hand, raw = keeper.hand, keeper.hand.line.raw
    job_id, other_id = await hand.ready(), await hand.ready()
    image_id, other_image = await hand.image_of(job_id), await hand.image_of(other_id)
    await raw.execute("UPDATE spillway.jobs SET image_id = $2 WHERE id = $1", other_id, image_id)
    await raw.execute("DELETE FROM spillway.images WHERE id = $1", other_image)
    await raw.execute("UPDATE spillway.images SET created_at = created_at - interval '1 day' WHERE id = $1", image_id)
    for _ in range(2):
        for one_id in (job_id, other_id):
            await keeper.age(one_id, 50)
        await keeper.cleaner.expire()
        await keeper.cleaner.sweep_gone()
    sql: Any = load_queries("retention.sql")
    async with (
        other_connection(hand.line.env["SPILLWAY_DATABASE_URL"]) as connection,
        connection.transaction(),  # the other janitor's statement, which has not ended yet
    ):
        gone = [row["id"] async for row in sql.delete_expired(connection, gone_s=HOUR_S, rows_max=1)]
        await keeper.cleaner.delete_rows()
    left = [await keeper.state(one_id) for one_id in (job_id, other_id)]
    assert (len(gone), left) == (1, [None, None])

    async def image_is_gone() -> bool:
        await keeper.cleaner.delete_rows()
        return not await raw.fetchval("SELECT EXISTS (SELECT 1 FROM spillway.images WHERE id = $1)", image_id)

    await until(image_is_gone, what="the image goes too", timeout_s=10)


async def test_no_image_with_a_job_and_no_young_one_goes(keeper: Keeper) -> None:
    kept, young = await keeper.hand.image_of(await keeper.hand.ready()), uuid.uuid4()
    raw = keeper.hand.line.raw
    await raw.execute("UPDATE spillway.images SET created_at = created_at - interval '1 day' WHERE id = $1", kept)
    await raw.execute("INSERT INTO spillway.images (id, owner) VALUES ($1, 'ann')", young)
    for _ in range(int(await raw.fetchval("SELECT count(*) FROM spillway.images")) // ROWS_MAX + 2):
        await keeper.cleaner.delete_rows()
    assert await raw.fetchval("SELECT count(*) FROM spillway.images WHERE id = ANY ($1::uuid[])", [kept, young]) == 2


async def test_what_a_message_names_lives_as_long_as_the_message(keeper: Keeper) -> None:
    hand = keeper.hand
    named, free = await hand.ready(), await hand.ready()
    message_id, attachment_id = uuid.uuid4(), uuid.uuid4()
    raw = hand.line.raw
    await raw.execute(
        "INSERT INTO spillway.attachments (id, owner, job_id) VALUES ($1, 'ann', $2)", attachment_id, named
    )
    messages = MessageStore(hand.database, attachments_max=1)
    await messages.create(message_id=message_id, owner="ann", body="hello", attachment_ids=[attachment_id])
    for job_id in (named, free):
        await keeper.age(job_id, 5)
    await keeper.step()
    assert (await keeper.state(named), await keeper.state(free)) == ("ready", "expired")
    await raw.execute(
        "UPDATE spillway.messages SET created_at = created_at - interval '25 hours' WHERE id = $1", message_id
    )
    await keeper.step()
    assert await keeper.state(named) == "expired"
    assert await messages.find(message_id, owner="ann") is None
    assert await hand.keys_of(named, await hand.image_of(named)) == []


async def test_a_message_does_not_end_before_its_time(keeper: Keeper) -> None:
    messages = MessageStore(keeper.hand.database, attachments_max=1)
    message_id = uuid.uuid4()
    await messages.create(message_id=message_id, owner="ann", body="hello", attachment_ids=[])
    await keeper.step()
    assert await messages.find(message_id, owner="ann") is not None


async def test_the_oldest_failed_sources_go_first_when_they_exceed_their_budget(keeper: Keeper) -> None:
    hand = keeper.hand
    job_ids = [await hand.failed() for _ in range(3)]
    for hours, job_id in enumerate(reversed(job_ids)):
        await keeper.age(job_id, hours / 10)
    budget = Keep(
        ready_s=KEEP.ready_s,
        failed_s=KEEP.failed_s,
        cancelled_s=KEEP.cancelled_s,
        message_s=KEEP.message_s,
        gone_s=KEEP.gone_s,
        failed_source_bytes_max=2 * len(PHOTO),
    )
    await cleaner_of(hand, budget).purge_failed_sources()
    left = [await hand.line.objects.exists(staging_key(job_id)) for job_id in job_ids]
    assert left == [False, True, True]
    assert {await keeper.state(job_id) for job_id in job_ids} == {"failed"}
    no_bounds = Bounds(jobs_max=None, staging_bytes_max=None)
    outcomes = [
        await hand.jobs.replay(job_id, bounds=no_bounds, job_deadline_s=HOUR_S, who="test") for job_id in job_ids[:2]
    ]
    assert outcomes == [ReplayOutcome.SOURCE_MISSING, ReplayOutcome.QUEUED]
    await keeper.assert_books_are_right()


async def test_keys_past_their_lifetime_go(keeper: Keeper) -> None:
    job_id = await keeper.hand.queued()
    for key, left_s in (("old", -1), ("new", 3600)):
        await keeper.hand.line.raw.execute(
            """INSERT INTO spillway.idempotency_keys
            VALUES ('zoe', 'image', $1, $2, 'ab', now() + make_interval(secs => $3))""",
            key,
            job_id,
            left_s,
        )
    await keeper.cleaner.delete_rows()
    left = await keeper.hand.line.raw.fetch("SELECT key FROM spillway.idempotency_keys WHERE owner = 'zoe'")
    assert [row["key"] for row in left] == ["new"]


async def test_the_janitor_takes_all_these_steps_by_itself(servers: Servers, environment: Mapping[str, str]) -> None:
    env = {
        "SPILLWAY_KEY_LIFETIME_S": "1",
        "SPILLWAY_READY_KEEP_S": "2",
        "SPILLWAY_FAILED_KEEP_S": "2",
        "SPILLWAY_CANCELLED_KEEP_S": "2",
        "SPILLWAY_EXPIRED_ANSWERS_S": "3",
    }
    async with open_edge(servers, environment, env=env) as line:
        hand = await open_hand(line)
        job_ids = [await hand.ready(), await hand.failed(), await hand.cancelled()]
        images = [await hand.image_of(job_id) for job_id in job_ids]
        for status in (410, 404):
            for job_id in job_ids:

                async def answered(job_id: uuid.UUID = job_id, status: int = status) -> bool:
                    return (await hand.read(job_id)).status_code == status

                await until(answered, timeout_s=15, what=f"{status}")
        for job_id, image_id in zip(job_ids, images, strict=True):
            assert await hand.keys_of(job_id, image_id) == []
        gate = await line.raw.fetchrow("SELECT jobs_held, staging_bytes, failed_source_bytes FROM spillway.gate")
        assert gate is not None
        assert tuple(gate) == (0, 0, 0)
        await hand.database.close()
