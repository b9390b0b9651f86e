"""The doctor's statements on rows give way: what somebody else has moved meanwhile is not touched."""

import asyncio
from dataclasses import replace

from contracts.jobs import JobState
from stack.doctor_rows import Books as BookNumbers
from stack.doctor_rows import DoctorRows
from tests.books import Books
from tests.integration.test_lock_order import other_transaction, wait_for_a_waiter


async def test_the_books_are_not_touched_when_somebody_moved_them_meanwhile(books: Books, migrated_url: str) -> None:
    await books.queued()
    await books.raw.execute("UPDATE spillway.gate SET jobs_held = jobs_held + 2")
    rows = DoctorRows(books.database)
    drift = BookNumbers(jobs_held=-2, staging_bytes=0, failed_source_bytes=0)
    async with other_transaction(migrated_url) as other:
        await other.execute("UPDATE spillway.gate SET jobs_held = jobs_held WHERE id = 0")
        mending = asyncio.ensure_future(rows.mend_books(drift))
        await wait_for_a_waiter(books)
    assert await mending is False
    assert (await books.gate())["jobs_held"] == 3
    assert await rows.mend_books(replace(drift, jobs_held=-1)) is False, "not the drift that there is"
    assert await rows.mend_books(drift) is True
    assert await rows.mend_books(drift) is False, "a second doctor was a moment late"
    await books.assert_balanced()


async def test_a_share_is_not_touched_when_somebody_moved_it_meanwhile(books: Books, migrated_url: str) -> None:
    await books.queued()
    await books.raw.execute("UPDATE spillway.owners SET jobs_held = jobs_held + 2 WHERE owner = 'ann'")
    rows = DoctorRows(books.database)
    async with other_transaction(migrated_url) as other:
        await other.execute("UPDATE spillway.owners SET jobs_held = jobs_held WHERE owner = 'ann'")
        mending = asyncio.ensure_future(rows.mend_share("ann", drift_jobs=-2))
        await wait_for_a_waiter(books)
    assert await mending is False
    assert await rows.mend_share("ann", drift_jobs=-2) is True
    assert await rows.mend_share("ann", drift_jobs=-2) is False
    await books.assert_balanced()


async def test_an_announcement_stays_when_its_job_waits_again(books: Books) -> None:
    claim = await books.claimed()
    rows = DoctorRows(books.database)
    state = await books.jobs.retry(
        claim.job_id, claim_token=claim.claim_token, delay_s=0, attempt_spent=False, attempts_max=5
    )
    assert state is JobState.QUEUED
    announcement_id = await books.raw.fetchval("SELECT id FROM spillway.outbox WHERE job_id = $1", claim.job_id)
    assert await rows.delete_announcement(announcement_id) is False
    assert await books.announcements(claim.job_id) == 1
