"""The registry's statements: what they show, how a replay takes its place, and that a source goes once and for good."""

import asyncio
import uuid
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from app.core.jobstore import AdmitOutcome, Bounds, ReplayOutcome, Reservation
from app.core.postgres import load_queries
from app.core.registry import DeadReason, FailedFilter, RegisteredJob, Registry
from app.core.retention import Keep, Retention
from contracts.errors import FailureCode
from contracts.jobs import JobState
from tests.books import DAY_S, NO_BOUNDS, OWNER, SOURCE, Books
from tests.line import until

RETENTION: Any = load_queries("retention.sql")
READ = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables"
KEPT_ROWS = 20_000
READ_ROWS_MAX = 500
WHO = "token 1"

#: Failed jobs with their sources, as many as are asked for.
FAILED = """
WITH made AS (
    INSERT INTO spillway.jobs (id, image_id, owner, state, holds_place, held_bytes, bytes_book, admitted_at,
        released_at, upload_token, upload_lease_until, upload_deadline_at, source_bytes, source_sha256, source_format,
        accepted_at, deadline_at, pipeline_version, claim_token, error_code, finished_at)
    SELECT gen_random_uuid(), gen_random_uuid(), 'ann', 'failed', false, 1, 'failed_source', now(), now(),
        gen_random_uuid(), now(), now(), 1, 'ab', 'jpeg', now(), now(), 1, 1, 'internal',
        now() - n * interval '1 second'
    FROM generate_series(1, $1::integer) AS n
    RETURNING held_bytes
)
UPDATE spillway.gate SET failed_source_bytes = failed_source_bytes + (SELECT sum(held_bytes) FROM made) WHERE id = 0
"""


@pytest.fixture
async def registry(books: Books) -> Registry:
    """The registry of empty books, with nothing noted yet."""
    await books.raw.execute("TRUNCATE spillway.audit, spillway.dead_letters")
    return Registry(books.database)


def retention_of(books: Books, *, bytes_max: int, audit_s: float = DAY_S) -> Retention:
    keep = Keep(
        ready_s=DAY_S,
        failed_s=DAY_S,
        cancelled_s=DAY_S,
        message_s=DAY_S,
        gone_s=DAY_S,
        failed_source_bytes_max=bytes_max,
        audit_s=audit_s,
    )
    return Retention(books.database, keep=keep, lease_s=30.0, rows_max=100)


async def failed(books: Books, *, owner: str = OWNER, code: FailureCode = FailureCode.INTERNAL) -> uuid.UUID:
    """A failed job with its source: a kilobyte was reserved, 900 bytes came."""
    reservation = Reservation(
        job_id=uuid.uuid4(), image_id=uuid.uuid4(), owner=owner, upload_token=uuid.uuid4(), held_bytes=1000
    )
    outcome = await books.jobs.admit(reservation, bounds=NO_BOUNDS, lease_s=30.0, deadline_s=60.0)
    assert outcome is AdmitOutcome.ADMITTED
    assert await books.jobs.accept(
        job_id=reservation.job_id, upload_token=reservation.upload_token, source=SOURCE, job_deadline_s=DAY_S
    )
    claim = await books.claimed(reservation.job_id)
    assert await books.jobs.fail(claim.job_id, claim_token=claim.claim_token, code=code) is JobState.FAILED
    return claim.job_id


async def replayed(books: Books, job_id: uuid.UUID, *, bounds: Bounds = NO_BOUNDS) -> ReplayOutcome:
    return await books.jobs.replay(job_id, bounds=bounds, job_deadline_s=DAY_S, who=WHO)


async def failed_at(books: Books, job_id: uuid.UUID) -> datetime:
    moment: datetime = (await books.row(job_id))["finished_at"]
    return moment


async def test_failed_jobs_are_found_by_owner_code_time_and_version(books: Books, registry: Registry) -> None:
    ours = await failed(books, code=FailureCode.INVALID_IMAGE)
    theirs = await failed(books, owner="bob", code=FailureCode.WORKER_LOST)
    await books.queued()
    moment = await failed_at(books, theirs)
    wanted = {
        FailedFilter(): [theirs, ours],
        FailedFilter(owner="bob"): [theirs],
        FailedFilter(code=FailureCode.INVALID_IMAGE): [ours],
        FailedFilter(since=moment): [theirs],
        FailedFilter(until=moment): [ours],
        FailedFilter(pipeline_version=1): [theirs, ours],
        FailedFilter(pipeline_version=2): [],
        FailedFilter(owner="bob", until=moment): [],
    }
    for given, expected in wanted.items():
        found = await registry.failed(given, before=None, rows_max=10)
        assert [job.job_id for job in found] == expected, given
        in_turn = await registry.failed_in_turn(given, after=None, rows_max=10)
        assert [job.job_id for job in in_turn] == expected[::-1], given
        assert await registry.count_failed(given) == len(expected), given


async def test_pages_show_every_failed_job_once_in_either_order(books: Books, registry: Registry) -> None:
    job_ids = [await failed(books) for _ in range(5)]
    newest: list[RegisteredJob] = []
    oldest: list[RegisteredJob] = []
    while page := await registry.failed(FailedFilter(), before=newest[-1].cursor if newest else None, rows_max=2):
        newest += page
    while page := await registry.failed_in_turn(
        FailedFilter(), after=oldest[-1].cursor if oldest else None, rows_max=2
    ):
        oldest += page
    assert [job.job_id for job in oldest] == job_ids
    assert [job.job_id for job in newest] == job_ids[::-1]


async def test_a_replay_starts_with_fresh_counts_and_tells_afterwards_who_asked_and_what_was(
    books: Books, registry: Registry
) -> None:
    claim = await books.claimed()
    await books.jobs.retry(claim.job_id, claim_token=1, delay_s=0, attempt_spent=True, attempts_max=5)
    claim = await books.claimed(claim.job_id)
    await books.jobs.fail(claim.job_id, claim_token=2, code=FailureCode.INTERNAL)
    ended_at = await failed_at(books, claim.job_id)
    assert await replayed(books, claim.job_id) is ReplayOutcome.QUEUED
    row = await books.row(claim.job_id)
    assert (row["state"], row["attempts_spent"], row["deaths"], row["error_code"]) == ("queued", 0, 0, None)
    assert await books.announcements(claim.job_id) == 1
    (entry,) = await registry.audit_of(claim.job_id)
    assert (entry.who, entry.action, entry.state_before) == (WHO, "replay", JobState.FAILED)
    assert (entry.error_code_before, entry.attempts_before) == (FailureCode.INTERNAL, 1)
    assert entry.finished_before == ended_at
    # The token that fences goes on rising: whoever still works on the life before is refused.
    assert (await books.claimed(claim.job_id)).claim_token == 3


async def test_a_refused_replay_changes_and_notes_nothing(books: Books, registry: Registry) -> None:
    job_id = await failed(books)
    await books.queued()
    before = (await books.row(job_id), await books.gate())
    bounds = {
        ReplayOutcome.BACKLOG_FULL: Bounds(jobs_max=1, staging_bytes_max=None),
        ReplayOutcome.STAGING_FULL: Bounds(jobs_max=9, staging_bytes_max=1799),
        ReplayOutcome.OWNER_LIMIT: Bounds(jobs_max=9, staging_bytes_max=None, owner_jobs_max=1),
    }
    for expected, given in bounds.items():
        assert await replayed(books, job_id, bounds=given) is expected
    assert (await books.row(job_id), await books.gate()) == before
    assert await registry.audit_of(job_id) == []
    just_enough = Bounds(jobs_max=2, staging_bytes_max=1800, owner_jobs_max=2)
    assert await replayed(books, job_id, bounds=just_enough) is ReplayOutcome.QUEUED


async def test_many_replays_at_once_take_no_more_places_than_there_are(books: Books) -> None:
    job_ids = [await failed(books) for _ in range(12)]
    bounds = Bounds(jobs_max=5, staging_bytes_max=None)
    outcomes = await asyncio.gather(*(replayed(books, job_id, bounds=bounds) for job_id in job_ids))
    assert outcomes.count(ReplayOutcome.QUEUED) == 5
    assert outcomes.count(ReplayOutcome.BACKLOG_FULL) == 7


async def test_one_job_replayed_by_many_at_once_is_queued_once(books: Books, registry: Registry) -> None:
    job_id = await failed(books)
    outcomes = await asyncio.gather(*(replayed(books, job_id) for _ in range(8)))
    assert sorted(outcomes) == [ReplayOutcome.NOT_FAILED] * 7 + [ReplayOutcome.QUEUED]
    assert await books.announcements(job_id) == 1
    assert len(await registry.audit_of(job_id)) == 1


async def test_the_last_releases_replay_goes_on_working(books: Books, registry: Registry) -> None:
    job_id = await failed(books)
    replay = "SELECT spillway.replay($1::uuid, $2::integer, $3::double precision)"
    assert await books.raw.fetchval(replay, job_id, 0, DAY_S) == "backlog_full"
    assert await books.raw.fetchval(replay, job_id, None, DAY_S) == "queued"
    assert await books.raw.fetchval(replay, uuid.uuid4(), None, DAY_S) == "not_failed"
    (entry,) = await registry.audit_of(job_id)
    assert entry.who == "unknown"


async def test_a_cancel_by_hand_reaches_any_owners_job_and_is_noted(books: Books, registry: Registry) -> None:
    waiting, working = await books.queued(), (await books.claimed()).job_id
    assert await registry.cancel(waiting, who=WHO) is JobState.CANCELLED
    assert await registry.cancel(working, who=WHO) is JobState.CANCELLING
    assert await registry.cancel(waiting, who=WHO) is None
    assert await registry.cancel(uuid.uuid4(), who=WHO) is None
    entries = [(await registry.audit_of(job_id))[0] for job_id in (waiting, working)]
    assert [entry.state_before for entry in entries] == [JobState.QUEUED, JobState.PROCESSING]
    assert {entry.action for entry in entries} == {"cancel"}


async def test_a_source_that_was_found_missing_is_in_no_book_of_failed_jobs(books: Books, registry: Registry) -> None:
    job_id = await failed(books, code=FailureCode.SOURCE_MISSING)
    assert await books.gate() == {"jobs_held": 0, "staging_bytes": 900, "failed_source_bytes": 0}
    assert await replayed(books, job_id) is ReplayOutcome.SOURCE_MISSING
    # What may still lie under its key is the janitor's to delete; then its bytes go too.
    assert await retention_of(books, bytes_max=10**9).claim_purges() == [job_id]
    await books.backlog.give_bytes_back([job_id])
    assert await books.gate() == {"jobs_held": 0, "staging_bytes": 0, "failed_source_bytes": 0}
    assert await retention_of(books, bytes_max=10**9).claim_purges() == []
    found = await registry.find(job_id)
    assert found is not None
    assert found.outlook is ReplayOutcome.SOURCE_MISSING


async def test_a_source_marked_to_go_is_not_replayed_and_its_purge_is_taken_up_again(books: Books) -> None:
    job_ids = [await failed(books) for _ in range(3)]
    assert await retention_of(books, bytes_max=1800).claim_purges() == job_ids[:1]
    # The janitor dies here. A replay must not find the source that may be half gone, nor the next sweep forget it.
    assert await replayed(books, job_ids[0]) is ReplayOutcome.SOURCE_MISSING
    assert await retention_of(books, bytes_max=10**9).claim_purges() == job_ids[:1]
    await books.backlog.give_bytes_back(job_ids[:1])
    assert (await books.gate())["failed_source_bytes"] == 1800
    assert await retention_of(books, bytes_max=1800).claim_purges() == []
    assert await replayed(books, job_ids[1]) is ReplayOutcome.QUEUED


async def test_a_replay_that_comes_first_keeps_its_source(books: Books, migrated_url: str) -> None:
    """The janitor has chosen the source, the replay has the row: whoever is later sees what the other did."""
    job_id, newer = await failed(books), await failed(books)
    other = await asyncpg.connect(migrated_url)
    try:
        async with other.transaction():
            replay = "SELECT spillway.replay($1, NULL, NULL, NULL, $2, 'test')"
            assert await other.fetchval(replay, job_id, DAY_S) == "queued"
            assert await retention_of(books, bytes_max=900).claim_purges() == []
    finally:
        await other.close()
    assert (await books.row(job_id))["source_gone_at"] is None
    assert await retention_of(books, bytes_max=900).claim_purges() == []
    assert await retention_of(books, bytes_max=0).claim_purges() == [newer]


async def test_a_replay_waits_for_a_mark_that_is_being_made_and_then_sees_it(books: Books, migrated_url: str) -> None:
    job_id = await failed(books)
    other = await asyncpg.connect(migrated_url)
    try:
        async with other.transaction():
            assert await other.fetchval("SELECT spillway.claim_purges(0, 10)") == job_id
            replaying = asyncio.ensure_future(replayed(books, job_id))

            async def waits() -> bool:
                return bool(await books.raw.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"))

            await until(waits, what="the replay waits for the row", timeout_s=5.0)
    finally:
        await other.close()
    assert await replaying is ReplayOutcome.SOURCE_MISSING


async def test_the_audit_is_kept_for_its_time_and_no_more_rows_than_said(books: Books, registry: Registry) -> None:
    job_ids = [await failed(books) for _ in range(3)]
    for job_id in job_ids:
        assert await replayed(books, job_id) is ReplayOutcome.QUEUED
    assert await retention_of(books, bytes_max=10**9).delete_old_audit() == 0
    await books.raw.execute("UPDATE spillway.audit SET at = at - interval '2 days' WHERE job_id = $1", job_ids[0])
    assert await retention_of(books, bytes_max=10**9).delete_old_audit() == 1
    assert [len(await registry.audit_of(job_id)) for job_id in job_ids] == [0, 1, 1]
    gone = [row async for row in RETENTION.delete_old_audit(books.raw, keep_s=DAY_S, kept_rows=1, rows_max=100)]
    assert len(gone) == 1
    assert [len(await registry.audit_of(job_id)) for job_id in job_ids] == [0, 0, 1]


async def test_equal_dead_letters_are_one_row_and_only_so_many_are_kept(books: Books, registry: Registry) -> None:
    async def note(letter: str, reason: DeadReason = DeadReason.UNREADABLE) -> int:
        return await books.backlog.note_dead_letter(body_sha256=letter * 64, body_bytes=7, reason=reason, job_id=None)

    assert [await note("a"), await note("b"), await note("a"), await note("a", DeadReason.REJECTED)] == [1, 1, 2, 1]
    found = await registry.dead_letters(rows_max=10)
    seen = [(letter.body_sha256[0], letter.reason.value, letter.seen_count) for letter in found]
    assert seen == [("a", "rejected", 1), ("a", "unreadable", 2), ("b", "unreadable", 1)]
    assert found[1].first_seen_at < found[1].last_seen_at
    gone = [row async for row in RETENTION.delete_old_dead_letters(books.raw, keep_s=DAY_S, kept_rows=2, rows_max=9)]
    assert [row["body_sha256"][0] for row in gone] == ["b"]
    assert await retention_of(books, bytes_max=0, audit_s=0.000001).delete_old_dead_letters() == 2


async def test_sweeps_with_nothing_to_do_read_next_to_nothing_of_many_failed_jobs(books: Books) -> None:
    await books.raw.execute(FAILED, KEPT_ROWS)
    await books.raw.execute(
        """INSERT INTO spillway.audit (who, action, job_id, owner, state_before, attempts_before, deaths_before)
        SELECT 'test', 'replay', gen_random_uuid(), 'ann', 'failed', 0, 0 FROM generate_series(1, $1::integer)""",
        KEPT_ROWS,
    )
    await books.raw.execute("ANALYZE")

    async def rows_read() -> int:
        await books.raw.execute("SELECT pg_stat_force_next_flush()")
        await books.raw.execute("SELECT pg_stat_clear_snapshot()")
        return int(await books.raw.fetchval(READ))

    sweeps: dict[str, tuple[Any, dict[str, float]]] = {
        "claim_purges": (RETENTION.claim_purges, {"bytes_max": KEPT_ROWS}),
        "delete_old_audit": (RETENTION.delete_old_audit, {"keep_s": DAY_S, "kept_rows": KEPT_ROWS}),
        "delete_old_dead_letters": (RETENTION.delete_old_dead_letters, {"keep_s": DAY_S, "kept_rows": 1000}),
    }
    read = {}
    for name, (sweep, params) in sweeps.items():
        before = await rows_read()
        assert [row async for row in sweep(books.raw, rows_max=100, **params)] == []
        read[name] = await rows_read() - before
    assert {name: rows for name, rows in read.items() if rows > READ_ROWS_MAX} == {}
    over = [row async for row in RETENTION.claim_purges(books.raw, bytes_max=KEPT_ROWS - 500, rows_max=100)]
    assert len(over) == 100
