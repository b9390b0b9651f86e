"""The doctor's statements on rows give way: what somebody else has moved meanwhile is not touched."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from contracts.errors import FailureCode
from contracts.jobs import JobState
from stack.doctor import Order, examine
from stack.doctor_finds import Kind
from stack.doctor_rows import Books as BookNumbers
from stack.doctor_rows import DoctorRows
from stack.servers import Servers
from tests.books import Books
from tests.integration.test_doctor import own_line, settings_of
from tests.integration.test_lock_order import other_transaction, queued, wait_for_a_waiter
from tests.line import until


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


async def test_a_gate_is_written_anew_between_those_who_move_the_books(books: Books, migrated_url: str) -> None:
    """Whoever was there before is summed up, whoever comes later finds the row: nobody's move is lost."""
    early, late = await queued(books, "ann"), await books.claimed(await queued(books, "bob"))
    await queued(books, "ann")
    await books.raw.execute("DELETE FROM spillway.gate")
    rows = DoctorRows(books.database)
    assert await rows.books() is None
    async with other_transaction(migrated_url) as other:
        assert await other.fetchval("SELECT spillway.cancel($1, 'ann')", early)
        mending = asyncio.ensure_future(rows.write_gate_anew())
        await wait_for_a_waiter(books)
        ending = asyncio.ensure_future(
            books.jobs.fail(late.job_id, claim_token=late.claim_token, code=FailureCode.INVALID_IMAGE)
        )

        async def both_wait() -> bool:
            return bool(await books.raw.fetchval("SELECT count(*) = 2 FROM pg_locks WHERE NOT granted"))

        await until(both_wait, what="the mend waits, and a settle behind it", timeout_s=5.0)
    await asyncio.gather(mending, ending)
    assert (await books.gate())["jobs_held"] == 1
    await books.assert_balanced()


async def test_a_doctor_finds_that_the_gate_is_missing_and_brings_it_back(
    servers: Servers, environment: Mapping[str, str]
) -> None:
    async with own_line(servers, environment) as line:
        look = partial(examine, settings_of(line), tell=lambda _: None)
        await line.raw.execute("DELETE FROM spillway.gate")
        for mend in (False, False, True):
            finding = await look(Order(mend=mend, older_than_s=1.0))
            assert [difference.kind for difference in finding.differences] == [Kind.GATE_MISSING]
            assert bool(finding.left) is not mend
        assert (await look(Order(older_than_s=1.0))).differences == ()
        assert await line.raw.fetchval("SELECT jobs_held + staging_bytes + failed_source_bytes FROM spillway.gate") == 0


async def test_a_gate_that_is_there_is_not_written_anew(books: Books) -> None:
    await books.queued()
    await books.raw.execute("UPDATE spillway.gate SET jobs_held = jobs_held + 2")
    await DoctorRows(books.database).write_gate_anew()
    assert (await books.gate())["jobs_held"] == 3
    await books.raw.execute("UPDATE spillway.gate SET jobs_held = jobs_held - 2")


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
