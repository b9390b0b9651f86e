"""The outbox on the real database: leases, tokens, and announcements that come again."""

import asyncio
import uuid

from tests.books import Books


async def test_two_relays_never_hold_the_same_announcement(books: Books) -> None:
    for _ in range(40):
        await books.queued()
    batches = await asyncio.gather(
        *(books.outbox.lease(lease_token=uuid.uuid4(), lease_s=30.0, rows_max=10) for _ in range(6))
    )
    ids = [row.id for batch in batches for row in batch]
    assert len(ids) == len(set(ids)) == 40


async def test_only_the_lease_holder_finishes_and_the_job_then_counts_as_published(books: Books) -> None:
    job_id = await books.queued()
    token = uuid.uuid4()
    (row,) = await books.outbox.lease(lease_token=token, lease_s=30.0, rows_max=10)
    assert await books.outbox.finish([row.id], lease_token=uuid.uuid4()) == 0
    assert await books.outbox.finish([row.id], lease_token=token) == 1
    assert (await books.row(job_id))["published_at"] is not None


async def test_a_dead_relays_announcements_are_free_after_its_lease(books: Books) -> None:
    await books.queued()
    assert len(await books.outbox.lease(lease_token=uuid.uuid4(), lease_s=0.0, rows_max=10)) == 1
    (row,) = await books.outbox.lease(lease_token=uuid.uuid4(), lease_s=30.0, rows_max=10)
    assert row.tries == 2


async def test_one_announcement_that_cannot_be_sent_waits_longer_each_time_and_holds_back_no_other(
    books: Books,
) -> None:
    await books.queued()
    token = uuid.uuid4()
    (bad,) = await books.outbox.lease(lease_token=token, lease_s=30.0, rows_max=10)
    await books.outbox.give_back([bad.id], lease_token=token, base_s=30.0, cap_s=60.0)
    others = [await books.queued() for _ in range(3)]
    rows = await books.outbox.lease(lease_token=token, lease_s=30.0, rows_max=10)
    assert [row.job_id for row in rows] == others


async def test_lost_messages_are_announced_again_at_growing_intervals(books: Books) -> None:
    job_id = await books.queued()
    token = uuid.uuid4()
    (row,) = await books.outbox.lease(lease_token=token, lease_s=30.0, rows_max=10)
    await books.outbox.finish([row.id], lease_token=token)
    census = await books.backlog.census(seen_s=6.0, lease_s=30.0)
    assert (census.waiting, census.in_delivery, census.unacked) == (1, 1, 0)
    assert await books.backlog.announce_again(quiet_s=60.0, rows_max=10) == []
    assert await books.backlog.announce_again(quiet_s=0.0, rows_max=10) == [job_id]
    assert await books.backlog.announce_again(quiet_s=0.0, rows_max=10) == []
    assert await books.announcements(job_id) == 1


async def test_a_dead_letter_is_announced_only_when_its_row_still_waits(books: Books) -> None:
    job_id = await books.queued()
    assert not await books.backlog.announce_one(job_id)  # its own announcement is still on its way
    token = uuid.uuid4()
    (row,) = await books.outbox.lease(lease_token=token, lease_s=30.0, rows_max=10)
    await books.outbox.finish([row.id], lease_token=token)
    assert await books.backlog.announce_one(job_id)
    claim = await books.claimed()
    assert not await books.backlog.announce_one(claim.job_id)
    assert not await books.backlog.announce_one(uuid.uuid4())
