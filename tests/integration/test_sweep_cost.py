"""A sweep that finds nothing to do reads next to nothing, however much is kept; one that finds much takes a little."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from app.core.postgres import load_queries
from tests.books import Books

KEPT_ROWS = 20_000
READ_ROWS_MAX = 500
DAY_S = 86_400.0
ROWS_MAX = 100

RETENTION: Any = load_queries("retention.sql")
JANITOR: Any = load_queries("janitor.sql")
OUTBOX: Any = load_queries("outbox.sql")
VERSIONS: Any = load_queries("versions.sql")

#: Ready jobs, half of them past their time and named by a message; as many expired ones that still answer 410. Each has
#: its image.
JOBS = """
WITH made AS (
INSERT INTO spillway.jobs (id, image_id, owner, state, holds_place, held_bytes, bytes_book, admitted_at, released_at,
    upload_token, upload_lease_until, upload_deadline_at, source_bytes, source_sha256, source_format, accepted_at,
    deadline_at, pipeline_version, claim_token, variants, finished_at, expired_at, sweep_due_at, named_at)
SELECT gen_random_uuid(), gen_random_uuid(), 'ann', CASE WHEN n % 3 = 0 THEN 'expired' ELSE 'ready' END, false, 0,
    'none', now(), now(), gen_random_uuid(), now(), now(), 1, 'ab', 'jpeg', now(), now(), 1, 1, '[]',
    now() - CASE WHEN n % 3 = 1 THEN interval '30 days' ELSE interval '0' END,
    CASE WHEN n % 3 = 0 THEN now() END, CASE WHEN n % 3 = 0 THEN now() + interval '1 day' END,
    CASE WHEN n % 3 = 1 THEN now() END
FROM generate_series(1, $1::integer) AS n
RETURNING id, image_id
)
INSERT INTO spillway.images (id, owner, ready_version, ready_job_id) SELECT image_id, 'ann', 1, id FROM made
"""
KEYS = """
INSERT INTO spillway.idempotency_keys (owner, operation, key, job_id, expires_at)
SELECT 'ann', 'image', n::text, gen_random_uuid(), now() + interval '1 day' FROM generate_series(1, $1::integer) AS n
"""
MESSAGES = """
INSERT INTO spillway.messages (id, owner, body)
SELECT gen_random_uuid(), 'ann', 'text' FROM generate_series(1, $1::integer)
"""
READ = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables"

SWEEPS: dict[str, tuple[Any, dict[str, float]]] = {
    "expire_due": (RETENTION.expire_due, {"ready_s": DAY_S, "failed_s": DAY_S, "cancelled_s": DAY_S}),
    "expire_messages": (RETENTION.expire_messages, {"keep_s": DAY_S}),
    "gone_to_sweep": (RETENTION.gone_to_sweep, {}),
    "delete_expired": (RETENTION.delete_expired, {"gone_s": DAY_S}),
    "delete_expired_keys": (RETENTION.delete_expired_keys, {}),
    "rescue": (JANITOR.rescue, {"deaths_max": 3}),
    "drop_stale_uploads": (JANITOR.drop_stale_uploads, {}),
    "fail_overdue": (JANITOR.fail_overdue, {}),
    "staging_to_clear": (JANITOR.staging_to_clear, {}),
    "dropped_to_delete": (JANITOR.dropped_to_delete, {"lease_s": 30.0}),
    "announce_parked": (VERSIONS.announce_parked, {"seen_s": 6.0}),
    "claim_superseded": (VERSIONS.claim_superseded, {"keep_s": 60.0}),
}


@pytest.fixture
async def full(books: Books) -> AsyncIterator[Books]:
    for fill in (JOBS, KEYS, MESSAGES):
        await books.raw.execute(fill, KEPT_ROWS)
    await books.raw.execute("ANALYZE")
    yield books
    await books.raw.execute("TRUNCATE spillway.idempotency_keys, spillway.messages CASCADE")


async def rows_read(books: Books) -> int:
    await books.raw.execute("SELECT pg_stat_force_next_flush()")
    await books.raw.execute("SELECT pg_stat_clear_snapshot()")
    return int(await books.raw.fetchval(READ))


async def test_a_sweep_with_nothing_to_do_reads_next_to_nothing(full: Books) -> None:
    read = {}
    for name, (sweep, params) in SWEEPS.items():
        before = await rows_read(full)
        assert [row async for row in sweep(full.raw, rows_max=ROWS_MAX, **params)] == []
        read[name] = await rows_read(full) - before
    assert {name: rows for name, rows in read.items() if rows > READ_ROWS_MAX} == {}


async def test_a_look_for_images_without_jobs_reads_a_page(full: Books) -> None:
    before = await rows_read(full)
    page = await RETENTION.delete_left_images(full.raw, after_id=UUID(int=0), lease_s=0.0, rows_max=ROWS_MAX)
    assert (page["looked_at"], page["deleted"]) == (ROWS_MAX, 0)
    assert await rows_read(full) - before <= READ_ROWS_MAX


async def test_messages_past_their_time_go_a_bounded_number_at_a_time(full: Books) -> None:
    await full.raw.execute("UPDATE spillway.messages SET created_at = created_at - interval '2 days'")
    gone = [row async for row in RETENTION.expire_messages(full.raw, keep_s=DAY_S, rows_max=ROWS_MAX)]
    left = await full.raw.fetchval("SELECT count(*) FROM spillway.messages")
    assert (len(gone), left) == (ROWS_MAX, KEPT_ROWS - ROWS_MAX)
