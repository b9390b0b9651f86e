"""Job rows by id, key, owner, gate last: statements that meet on the same rows wait for each other, never in a ring."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from app.core.jobstore import AdmitOutcome, Reservation
from app.core.postgres import DatabaseUnavailableError
from tests.books import NO_BOUNDS, SOURCE, Books
from tests.line import until

OWNERS = ("ann", "bob")

Sweep = Callable[[], Awaitable[list[Any]]]


@asynccontextmanager
async def other_transaction(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Takes its locks one by one, in the order in which one of our functions takes them within its statement."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def wait_for_a_waiter(books: Books) -> None:
    async def waits() -> bool:
        return bool(await books.raw.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"))

    await until(waits, what="a statement waits for a lock", timeout_s=5.0)


async def reserved(books: Books, owner: str, *, lease_s: float = 30.0) -> Reservation:
    reservation = Reservation(
        job_id=uuid.uuid4(), image_id=uuid.uuid4(), owner=owner, upload_token=uuid.uuid4(), held_bytes=1000
    )
    outcome = await books.jobs.admit(reservation, bounds=NO_BOUNDS, lease_s=lease_s, deadline_s=60.0)
    assert outcome is AdmitOutcome.ADMITTED
    return reservation


async def queued(books: Books, owner: str, *, job_deadline_s: float = 60.0) -> uuid.UUID:
    reservation = await reserved(books, owner)
    assert await books.jobs.accept(
        job_id=reservation.job_id,
        upload_token=reservation.upload_token,
        source=SOURCE,
        job_deadline_s=job_deadline_s,
    )
    return reservation.job_id


async def stale_uploads(books: Books) -> Sweep:
    for owner in OWNERS:
        await reserved(books, owner, lease_s=0.0)
    return books.backlog.drop_stale_uploads


async def overdue_jobs(books: Books) -> Sweep:
    for owner in OWNERS:
        await queued(books, owner, job_deadline_s=0.0)
    return books.backlog.fail_overdue


async def dead_workers_jobs(books: Books) -> Sweep:
    for owner in OWNERS:
        claim = await books.claimed(await queued(books, owner), lease_s=0.0)
        await books.jobs.cancel(claim.job_id, owner=owner)
    return books.backlog.rescue


@pytest.mark.parametrize("made", [stale_uploads, overdue_jobs, dead_workers_jobs])
async def test_a_sweep_that_ends_jobs_of_two_owners_meets_an_admit(
    books: Books, migrated_url: str, made: Callable[[Books], Awaitable[Sweep]]
) -> None:
    sweep = await made(books)
    async with other_transaction(migrated_url) as admit:
        await admit.execute("UPDATE spillway.owners SET jobs_held = jobs_held WHERE owner = 'bob'")
        sweeping = asyncio.ensure_future(sweep())
        await wait_for_a_waiter(books)
        await admit.execute("UPDATE spillway.gate SET jobs_held = jobs_held WHERE id = 0")
    assert len(await sweeping) == len(OWNERS)


async def test_a_relay_that_finishes_an_announcement_meets_the_end_of_its_job(books: Books, migrated_url: str) -> None:
    job_id = await books.queued()
    token = uuid.uuid4()
    (row,) = await books.outbox.lease(lease_token=token, lease_s=30.0, rows_max=10)
    async with other_transaction(migrated_url) as settle:
        await settle.execute("SELECT 1 FROM spillway.jobs WHERE id = $1 FOR UPDATE", job_id)
        finishing = asyncio.ensure_future(books.outbox.finish([row.id], lease_token=token))
        await wait_for_a_waiter(books)
        await settle.execute("DELETE FROM spillway.outbox WHERE job_id = $1", job_id)
    assert await finishing == 0


async def test_a_heartbeat_over_two_jobs_meets_a_message_that_names_both(books: Books, migrated_url: str) -> None:
    first, second = sorted([await books.claimed(), await books.claimed()], key=lambda claim: claim.job_id)
    async with other_transaction(migrated_url) as naming:
        await naming.execute("SELECT 1 FROM spillway.jobs WHERE id = $1 FOR UPDATE", first.job_id)
        held = {claim.job_id: claim.claim_token for claim in (second, first)}
        beating = asyncio.ensure_future(books.jobs.extend_leases(held, lease_s=30.0))
        await wait_for_a_waiter(books)
        await naming.execute("SELECT 1 FROM spillway.jobs WHERE id = $1 FOR UPDATE", second.job_id)
    assert len(await beating) == len(held)


async def test_a_ring_all_the_same_is_an_outage_whose_outcome_is_known(books: Books, migrated_url: str) -> None:
    """The server undoes one side: nothing was done, and no process ends of it."""
    first, second = sorted([await books.claimed(), await books.claimed()], key=lambda claim: claim.job_id)
    async with other_transaction(migrated_url) as other:
        await other.execute("SELECT 1 FROM spillway.jobs WHERE id = $1 FOR UPDATE", second.job_id)
        held = {claim.job_id: claim.claim_token for claim in (first, second)}
        beating = asyncio.ensure_future(books.jobs.extend_leases(held, lease_s=30.0))
        await wait_for_a_waiter(books)
        # Whoever began to wait first looks for a ring first, and is undone.
        await other.execute("SELECT 1 FROM spillway.jobs WHERE id = $1 FOR UPDATE", first.job_id)
        with pytest.raises(DatabaseUnavailableError) as undone:
            await beating
    assert not undone.value.outcome_unknown
