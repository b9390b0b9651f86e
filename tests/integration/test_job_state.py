"""Every arrow of the state machine on the real database: what it needs, what it moves, and that no other exists."""

import asyncio
import contextlib
import itertools
import uuid
from functools import partial

import asyncpg
import pytest

from app.core.jobstore import AdmitOutcome, Bounds, ReplayOutcome, Reservation
from contracts.errors import FailureCode
from contracts.images import TransformParams
from contracts.jobs import TRANSITIONS, JobState
from contracts.limits import DEATHS_MAX
from contracts.messages import PIPELINE_VERSION
from tests.books import DAY_S, NO_BOUNDS, OWNER, SOURCE, VARIANTS, Books, expired


async def test_the_database_knows_the_arrows_of_the_contract_and_no_others(books: Books) -> None:
    rows = await books.raw.fetch("SELECT state, next_state FROM spillway.arrows")
    assert {(row["state"], row["next_state"]) for row in rows} == {(t.state, t.next_state) for t in TRANSITIONS}


async def test_the_guard_lets_every_known_arrow_pass_and_no_other(books: Books) -> None:
    known = {(t.state, t.next_state) for t in TRANSITIONS}
    await books.raw.execute(
        """CREATE TEMP TABLE bare (state text);
        CREATE TRIGGER guard BEFORE UPDATE OF state ON bare FOR EACH ROW
            WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION spillway.guard_arrow()"""
    )
    passed = set()
    for before, after in itertools.permutations(JobState, 2):
        await books.raw.execute("TRUNCATE bare")
        await books.raw.execute("INSERT INTO bare VALUES ($1)", before)
        with contextlib.suppress(asyncpg.CheckViolationError):
            await books.raw.execute("UPDATE bare SET state = $1", after)
            passed.add((before, after))
    assert passed == known


async def test_the_guard_stands_before_the_jobs(books: Books) -> None:
    job_id = await books.queued()
    with pytest.raises(asyncpg.CheckViolationError, match="no arrow from queued to ready"):
        await books.raw.execute("UPDATE spillway.jobs SET state = 'ready' WHERE id = $1", job_id)


async def test_a_place_is_held_exactly_while_a_job_is_unfinished(books: Books) -> None:
    job_id = await books.queued()
    with pytest.raises(asyncpg.CheckViolationError, match="jobs_place_while_unfinished"):
        await books.raw.execute("UPDATE spillway.jobs SET holds_place = false WHERE id = $1", job_id)


async def test_admit_never_exceeds_the_bound_under_concurrent_clients(books: Books) -> None:
    bounds = Bounds(jobs_max=10, staging_bytes_max=None)
    outcomes = await asyncio.gather(*(books.reserve(bounds=bounds) for _ in range(64)))
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 10
    assert outcomes.count(AdmitOutcome.BACKLOG_FULL) == 54


async def test_admit_refuses_bytes_beyond_the_staging_bound(books: Books) -> None:
    bounds = Bounds(jobs_max=None, staging_bytes_max=2500)
    outcomes = [await books.reserve(bounds=bounds) for _ in range(3)]
    assert outcomes[2] is AdmitOutcome.STAGING_FULL
    assert (await books.gate())["staging_bytes"] == 2000


async def test_accept_makes_job_image_and_announcement_at_once_and_books_the_true_bytes(books: Books) -> None:
    job_id = await books.queued()
    row = await books.row(job_id)
    assert row["state"] == "queued"
    assert await books.announcements(job_id) == 1
    assert await books.raw.fetchval("SELECT count(*) FROM spillway.images WHERE id = $1", row["image_id"]) == 1
    assert (await books.gate())["staging_bytes"] == SOURCE.source_bytes


async def test_accept_needs_the_upload_token_and_happens_once(books: Books) -> None:
    reservation = await books.reserve()
    assert isinstance(reservation, Reservation)

    async def accept(token: uuid.UUID) -> bool:
        return await books.jobs.accept(
            job_id=reservation.job_id, upload_token=token, source=SOURCE, job_deadline_s=DAY_S
        )

    assert not await accept(uuid.uuid4())
    assert await accept(reservation.upload_token)
    assert not await accept(reservation.upload_token)
    assert await books.announcements(reservation.job_id) == 1


async def test_a_dropped_upload_gives_its_place_back_at_once_and_its_bytes_when_the_object_is_gone(
    books: Books,
) -> None:
    reservation = await books.reserve()
    assert isinstance(reservation, Reservation)
    assert await books.jobs.drop_upload(job_id=reservation.job_id, upload_token=reservation.upload_token)
    assert await books.gate() == {"jobs_held": 0, "staging_bytes": 1000, "failed_source_bytes": 0}
    assert [job_id for job_id, _ in await books.backlog.staging_to_clear()] == [reservation.job_id]
    assert await books.backlog.give_bytes_back([reservation.job_id]) == 1
    assert await books.backlog.give_bytes_back([reservation.job_id]) == 0
    assert (await books.gate())["staging_bytes"] == 0
    assert await books.backlog.dropped_to_delete(lease_s=60.0) == []
    assert await books.backlog.dropped_to_delete(lease_s=0.0) == [reservation.job_id]
    assert await books.backlog.delete_dropped([reservation.job_id]) == 1


async def test_uploads_whose_lease_ran_out_are_dropped_and_renewed_ones_are_not(books: Books) -> None:
    stale, kept = await books.reserve(lease_s=0.0), await books.reserve(lease_s=0.0)
    assert isinstance(stale, Reservation)
    assert isinstance(kept, Reservation)
    assert await books.jobs.renew_uploads({kept.job_id: kept.upload_token}, lease_s=30.0) == {kept.job_id}
    assert await books.backlog.drop_stale_uploads() == [stale.job_id]
    assert await books.jobs.renew_uploads({stale.job_id: stale.upload_token}, lease_s=30.0) == set()
    assert await books.jobs.upload_state(job_id=stale.job_id, upload_token=stale.upload_token) is JobState.DROPPED


async def test_a_renewal_never_passes_the_upload_deadline(books: Books) -> None:
    reservation = await books.reserve()
    assert isinstance(reservation, Reservation)
    await books.jobs.renew_uploads({reservation.job_id: reservation.upload_token}, lease_s=10_000.0)
    row = await books.row(reservation.job_id)
    assert row["upload_lease_until"] == row["upload_deadline_at"]


async def test_only_one_of_many_claims_wins_and_its_token_rises_with_each_claim(books: Books) -> None:
    job_id = await books.queued()
    claims = await asyncio.gather(
        *(books.jobs.claim(job_id, worker_id=uuid.uuid4(), lease_s=30.0, params=TransformParams()) for _ in range(20))
    )
    won = [claim for claim in claims if claim is not None]
    assert [claim.claim_token for claim in won] == [1]
    await books.jobs.retry(job_id, claim_token=1, delay_s=0.0, attempt_spent=False, attempts_max=5)
    assert (await books.claimed(job_id)).claim_token == 2


async def test_the_parameters_are_fixed_at_the_first_claim(books: Books) -> None:
    job_id = await books.queued()
    first = await books.jobs.claim(job_id, worker_id=uuid.uuid4(), lease_s=9.0, params=TransformParams(webp_effort=2))
    assert first is not None
    await books.jobs.retry(job_id, claim_token=1, delay_s=0.0, attempt_spent=True, attempts_max=5)
    assert (await books.claimed(job_id)).params.webp_effort == 2


async def test_complete_publishes_the_result_and_gives_the_place_back(books: Books) -> None:
    claim = await books.claimed()
    state = await books.jobs.complete(claim.job_id, claim_token=claim.claim_token, variants=VARIANTS)
    assert state is JobState.READY
    view = await books.views.find_job(claim.job_id, owner=OWNER)
    assert view is not None
    assert view.variants == VARIANTS
    assert (await books.gate())["jobs_held"] == 0
    row = await books.row(claim.job_id)
    assert row["released_at"] >= row["admitted_at"]


async def test_a_late_worker_changes_nothing(books: Books) -> None:
    claim = await books.claimed()
    await books.jobs.retry(claim.job_id, claim_token=1, delay_s=0.0, attempt_spent=False, attempts_max=5)
    second = await books.claimed(claim.job_id)
    before = await books.row(claim.job_id)
    assert await books.jobs.complete(claim.job_id, claim_token=1, variants=VARIANTS) is None
    assert await books.jobs.fail(claim.job_id, claim_token=1, code=FailureCode.INTERNAL) is None
    assert await books.jobs.retry(claim.job_id, claim_token=1, delay_s=0.0, attempt_spent=True, attempts_max=5) is None
    assert await books.jobs.extend_leases({claim.job_id: 1}, lease_s=99.0) == {}
    assert await books.row(claim.job_id) == before
    assert await books.jobs.complete(claim.job_id, claim_token=second.claim_token, variants=VARIANTS) is JobState.READY


async def test_an_older_versions_result_never_replaces_a_newer_one(books: Books) -> None:
    older, newer = await books.claimed(), await books.claimed()
    image_id = older.image_id
    await books.raw.execute(
        "UPDATE spillway.jobs SET image_id = $1, image_version = 2 WHERE id = $2", image_id, newer.job_id
    )
    for claim in (newer, older):
        await books.jobs.complete(claim.job_id, claim_token=claim.claim_token, variants=VARIANTS)
    row = await books.raw.fetchrow("SELECT ready_version, ready_job_id FROM spillway.images WHERE id = $1", image_id)
    assert row is not None
    assert tuple(row) == (2, newer.job_id)


async def test_retries_are_counted_and_the_last_one_ends_the_job(books: Books) -> None:
    job_id = await books.queued()
    for attempt in (1, 2):
        claim = await books.claimed(job_id)
        state = await books.jobs.retry(
            job_id, claim_token=claim.claim_token, delay_s=0.0, attempt_spent=True, attempts_max=2
        )
        assert (await books.row(job_id))["attempts_spent"] == attempt
    assert state is JobState.FAILED
    assert (await books.row(job_id))["error_code"] == "retries_exhausted"
    assert await books.announcements(job_id) == 0


async def test_a_retry_waits_in_the_outbox_until_it_is_due(books: Books) -> None:
    claim = await books.claimed()
    await books.jobs.retry(claim.job_id, claim_token=1, delay_s=60.0, attempt_spent=True, attempts_max=5)
    assert await books.outbox.lease(lease_token=uuid.uuid4(), lease_s=9.0, rows_max=10) == []
    again = await books.jobs.claim(claim.job_id, worker_id=uuid.uuid4(), lease_s=9.0, params=TransformParams())
    assert again is None


async def test_a_hand_back_costs_nothing(books: Books) -> None:
    claim = await books.claimed()
    await books.jobs.retry(claim.job_id, claim_token=1, delay_s=0.0, attempt_spent=False, attempts_max=1)
    row = await books.row(claim.job_id)
    assert (row["state"], row["attempts_spent"], row["deaths"]) == ("queued", 0, 0)


async def test_claims_whose_answer_was_lost_are_handed_back_without_a_death(books: Books) -> None:
    worker_id = uuid.uuid4()
    held, forgotten = [await books.queued() for _ in range(2)]
    for job_id in (held, forgotten):
        await books.jobs.claim(job_id, worker_id=worker_id, lease_s=30.0, params=TransformParams())
    await books.claimed()  # another worker's
    assert await books.jobs.hand_back_unheld(worker_id=worker_id, held_ids=[held]) == [forgotten]
    row = await books.row(forgotten)
    assert (row["state"], row["deaths"], row["attempts_spent"]) == ("queued", 0, 0)


async def test_a_job_past_its_deadline_ends_failed_queued_or_retried(books: Books) -> None:
    queued = await books.queued(job_deadline_s=0.0)
    claim = await books.claimed(await books.queued(job_deadline_s=0.0))
    state = await books.jobs.retry(claim.job_id, claim_token=1, delay_s=0.0, attempt_spent=True, attempts_max=5)
    assert state is JobState.FAILED
    assert await books.backlog.fail_overdue() == [queued]
    for job_id in (queued, claim.job_id):
        assert (await books.row(job_id))["error_code"] == "deadline_exceeded"


async def test_expired_leases_are_rescued_until_the_third_death_convicts(books: Books) -> None:
    job_id = await books.queued()
    for death in range(1, DEATHS_MAX + 1):
        claim = await books.claimed(job_id, lease_s=0.0)
        assert claim.deaths == death - 1
        (rescued,) = await books.backlog.rescue()
        assert (rescued.job_id, rescued.deaths) == (job_id, death)
        expected = JobState.FAILED if death == DEATHS_MAX else JobState.QUEUED
        assert rescued.state is expected
    row = await books.row(job_id)
    assert (row["error_code"], row["attempts_spent"], row["deaths"]) == ("worker_lost", 0, DEATHS_MAX)


async def test_a_job_that_a_worker_died_of_is_only_for_one_that_does_nothing_beside_it(books: Books) -> None:
    """Whoever waits to be alone waits without a claim: a death meanwhile would count for the job that waits."""
    claim = await books.claimed(lease_s=0.0)
    versions = [PIPELINE_VERSION]
    assert not await books.jobs.is_suspect(claim.job_id, pipeline_versions=versions)  # it is in work
    await books.backlog.rescue()
    assert await books.jobs.is_suspect(claim.job_id, pipeline_versions=versions)
    claimed = partial(books.jobs.claim, claim.job_id, worker_id=uuid.uuid4(), lease_s=30.0, params=TransformParams())
    assert await claimed(alone=False) is None
    assert (await books.row(claim.job_id))["state"] == "queued"
    again = await claimed(alone=True)
    assert again is not None
    assert (again.deaths, again.hand_backs) == (1, 0)


async def test_a_live_lease_is_never_rescued(books: Books) -> None:
    claim = await books.claimed(lease_s=0.0)
    assert await books.jobs.extend_leases({claim.job_id: 1}, lease_s=30.0) == {claim.job_id: JobState.PROCESSING}
    assert await books.backlog.rescue() == []


async def test_several_janitors_rescue_each_job_once(books: Books) -> None:
    for _ in range(30):
        await books.claimed(lease_s=0.0)
    results = await asyncio.gather(*(books.backlog.rescue() for _ in range(8)))
    rescued = [item.job_id for result in results for item in result]
    assert len(rescued) == len(set(rescued)) == 30


async def test_a_queued_job_is_cancelled_at_once(books: Books) -> None:
    job_id = await books.queued()
    assert await books.jobs.cancel(job_id, owner="somebody else") is None
    assert await books.jobs.cancel(job_id, owner=OWNER) is JobState.CANCELLED
    assert await books.announcements(job_id) == 0
    assert await books.jobs.cancel(job_id, owner=OWNER) is None


async def test_a_late_ready_of_a_cancelled_job_becomes_cancelled(books: Books) -> None:
    claim = await books.claimed()
    assert await books.jobs.cancel(claim.job_id, owner=OWNER) is JobState.CANCELLING
    assert await books.jobs.extend_leases({claim.job_id: 1}, lease_s=9.0) == {claim.job_id: JobState.CANCELLING}
    assert await books.jobs.complete(claim.job_id, claim_token=1, variants=VARIANTS) is JobState.CANCELLED
    assert (await books.row(claim.job_id))["variants"] is None


async def test_a_worker_that_dies_while_cancelling_leaves_a_cancelled_job(books: Books) -> None:
    claim = await books.claimed(lease_s=0.0)
    await books.jobs.cancel(claim.job_id, owner=OWNER)
    (rescued,) = await books.backlog.rescue()
    assert rescued.state is JobState.CANCELLED


async def test_a_failed_jobs_source_moves_to_its_own_book_and_back_with_a_replay(books: Books) -> None:
    claim = await books.claimed()
    await books.jobs.fail(claim.job_id, claim_token=1, code=FailureCode.INVALID_IMAGE)
    assert await books.gate() == {"jobs_held": 0, "staging_bytes": 0, "failed_source_bytes": 900}
    full = Bounds(jobs_max=1, staging_bytes_max=None)
    await books.queued()
    refused = await books.jobs.replay(claim.job_id, bounds=full, job_deadline_s=DAY_S, who="test")
    assert refused is ReplayOutcome.BACKLOG_FULL
    replayed = await books.jobs.replay(claim.job_id, bounds=NO_BOUNDS, job_deadline_s=DAY_S, who="test")
    assert replayed is ReplayOutcome.QUEUED
    assert await books.gate() == {"jobs_held": 2, "staging_bytes": 1800, "failed_source_bytes": 0}
    again = await books.jobs.replay(claim.job_id, bounds=NO_BOUNDS, job_deadline_s=DAY_S, who="test")
    assert again is ReplayOutcome.NOT_FAILED
    assert (await books.claimed(claim.job_id)).claim_token == 2


async def test_a_ready_job_cannot_be_replayed_but_expires_once(books: Books) -> None:
    claim = await books.claimed()
    await books.jobs.complete(claim.job_id, claim_token=1, variants=VARIANTS)
    answer = await books.jobs.replay(claim.job_id, bounds=NO_BOUNDS, job_deadline_s=DAY_S, who="test")
    assert answer is ReplayOutcome.NOT_FAILED
    assert await expired(books.raw, claim.job_id)
    assert not await expired(books.raw, claim.job_id)


async def test_reservations_are_shown_to_nobody_and_jobs_to_their_owner_only(books: Books) -> None:
    reservation = await books.reserve()
    assert isinstance(reservation, Reservation)
    assert await books.views.find_job(reservation.job_id, owner=OWNER) is None
    job_id = await books.queued()
    assert await books.views.find_job(job_id, owner=OWNER) is not None
    assert await books.views.find_job(job_id, owner="somebody else") is None
