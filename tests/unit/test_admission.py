"""Decisions of admission on numbers alone."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admission import (
    FULL_OWNERS_MAX,
    Admission,
    bounds_of,
    owner_retry_after_s,
    poll_after_s,
    refusal_code,
    retry_after_s,
)
from app.core.jobstore import AdmitOutcome, Bounds
from app.core.processes import Snapshot
from app.core.settings import Settings
from contracts.errors import ErrorCode, ServiceError
from contracts.limits import JOBS_BOUND_FLOOR, POLL_AFTER_S, RETRY_AFTER_S_MAX

SETTINGS = Settings(admission_staging_bytes_max=1000)


def snapshot(*, held: int = 0, staging: int = 0, slots: int = 0, rate_per_s: float = 0.0) -> Snapshot:
    return Snapshot(
        jobs_held=held,
        staging_bytes=staging,
        failed_source_bytes=0,
        slots=slots,
        jobs_per_s=rate_per_s,
        workers=0,
        relays=0,
        janitors=0,
    )


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def admission(clock: Clock, **settings: object) -> Admission:
    chosen = SETTINGS.model_copy(update=settings)
    return Admission(chosen, monotonic_s=clock, rng=random.SystemRandom())


def code(error: ServiceError | None) -> ErrorCode | None:
    return None if error is None else error.code


@pytest.mark.parametrize(
    ("slots", "rate_per_s", "jobs_max"), [(0, 0.0, JOBS_BOUND_FLOOR), (2, 1.0, 32), (20, 0.0, 80), (2, 11.0, 110)]
)
def test_the_count_bound_sizes_itself_and_never_falls_under_its_floor(
    slots: int, rate_per_s: float, jobs_max: int
) -> None:
    bounds = bounds_of("count", snapshot=snapshot(slots=slots, rate_per_s=rate_per_s), settings=SETTINGS)
    assert bounds == Bounds(jobs_max=jobs_max, staging_bytes_max=1000)


def test_a_bound_that_was_set_is_taken_as_it_is() -> None:
    settings = SETTINGS.model_copy(update={"admission_jobs_max": 5})
    assert bounds_of("count", snapshot=snapshot(rate_per_s=100.0), settings=settings).jobs_max == 5


def test_none_bounds_bytes_alone() -> None:
    assert bounds_of("none", snapshot=snapshot(), settings=SETTINGS) == Bounds(jobs_max=None, staging_bytes_max=1000)


def test_the_snapshot_refuses_at_the_bound_and_not_before() -> None:
    bounds = Bounds(jobs_max=10, staging_bytes_max=1000)
    assert refusal_code(snapshot(held=9), bounds=bounds, held_bytes=1) is None
    assert refusal_code(snapshot(held=10), bounds=bounds, held_bytes=1) is ErrorCode.BACKLOG_FULL
    assert refusal_code(snapshot(staging=900), bounds=bounds, held_bytes=100) is None
    assert refusal_code(snapshot(staging=900), bounds=bounds, held_bytes=101) is ErrorCode.STAGING_FULL
    assert refusal_code(snapshot(held=8), bounds=bounds, held_bytes=1, taken_jobs=2) is ErrorCode.BACKLOG_FULL


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.floats(0, 1000), st.floats(0, 10**4))
def test_every_wait_is_whole_and_within_its_bounds(held: int, jobs_max: int, rate_per_s: float, ahead: float) -> None:
    wait_s = retry_after_s(
        snapshot(held=held, rate_per_s=rate_per_s),
        bounds=Bounds(jobs_max=jobs_max, staging_bytes_max=None),
        ahead_jobs=ahead,
        rng=random.SystemRandom(),
    )
    assert isinstance(wait_s, int)
    assert 1 <= wait_s <= math.ceil(RETRY_AFTER_S_MAX * 1.25)


def test_three_hundred_refusals_are_told_different_times() -> None:
    clock = Clock()
    gate = admission(clock, admission_jobs_max=50)
    gate.update(snapshot(held=50, rate_per_s=5.0))
    waits = []
    for _ in range(300):
        error = gate.refuse(owner="ann", held_bytes=1)
        assert error is not None
        waits.append(error.retry_after_s)
        clock.now_s += 0.001
    assert len(set(waits)) >= 5
    assert max(wait for wait in waits if wait is not None) <= math.ceil(10.2 * 1.25)


def test_promises_run_off_with_the_system() -> None:
    clock = Clock()
    gate = admission(clock, admission_jobs_max=50)
    gate.update(snapshot(held=50, rate_per_s=5.0))
    for _ in range(100):
        gate.refuse(owner="ann", held_bytes=1)
    clock.now_s += 60
    gate.update(snapshot(held=50, rate_per_s=5.0))
    error = gate.refuse(owner="ann", held_bytes=1)
    assert error is not None
    assert error.retry_after_s is not None
    assert error.retry_after_s <= 2


def test_without_a_snapshot_the_database_counts_as_away() -> None:
    clock = Clock()
    gate = admission(clock)
    assert code(gate.refuse(owner="ann", held_bytes=1)) is ErrorCode.DEPENDENCY_UNAVAILABLE
    gate.update(snapshot())
    assert gate.refuse(owner="ann", held_bytes=1) is None
    clock.now_s += 60
    assert code(gate.refuse(owner="ann", held_bytes=1)) is ErrorCode.DEPENDENCY_UNAVAILABLE
    assert gate.snapshot is None


def test_an_admit_that_failed_closes_the_gate_until_the_next_snapshot() -> None:
    gate = admission(Clock())
    gate.update(snapshot())
    assert code(gate.note_outcome(AdmitOutcome.BACKLOG_FULL, owner="ann", held_bytes=1)) is ErrorCode.BACKLOG_FULL
    assert code(gate.refuse(owner="ann", held_bytes=1)) is ErrorCode.BACKLOG_FULL
    gate.update(snapshot())
    assert gate.refuse(owner="ann", held_bytes=1) is None


def test_full_staging_closes_the_gate_for_uploads_as_large_and_not_for_smaller_ones() -> None:
    gate = admission(Clock())
    gate.update(snapshot())
    gate.note_outcome(AdmitOutcome.STAGING_FULL, owner="ann", held_bytes=500)
    assert code(gate.refuse(owner="ann", held_bytes=500)) is ErrorCode.STAGING_FULL
    assert gate.refuse(owner="ann", held_bytes=499) is None


def test_an_outage_closes_the_gate_until_the_next_snapshot() -> None:
    gate = admission(Clock())
    gate.update(snapshot())
    assert gate.note_outage().code is ErrorCode.DEPENDENCY_UNAVAILABLE
    assert code(gate.refuse(owner="ann", held_bytes=1)) is ErrorCode.DEPENDENCY_UNAVAILABLE
    gate.update(snapshot())
    assert gate.refuse(owner="ann", held_bytes=1) is None


def test_a_burst_does_not_all_ask_the_database() -> None:
    gate = admission(Clock(), admission_jobs_max=10)
    gate.update(snapshot(held=7))
    asked = 0
    while gate.refuse(owner="ann", held_bytes=1) is None:
        gate.note_try()
        asked += 1
    assert asked == 3


def test_the_poll_hint_is_the_time_to_work_off_what_is_held() -> None:
    assert poll_after_s(None) == POLL_AFTER_S
    assert poll_after_s(snapshot(held=50)) == POLL_AFTER_S
    assert poll_after_s(snapshot(held=50, rate_per_s=10.0)) == 5
    assert poll_after_s(snapshot(held=0, rate_per_s=10.0)) == 1


def test_an_owner_at_its_share_is_refused_alone_and_until_the_next_snapshot() -> None:
    gate = admission(Clock(), admission_owner_jobs_max=2)
    gate.update(snapshot(held=2))
    assert gate.bounds.owner_jobs_max == 2
    refusal = gate.note_outcome(AdmitOutcome.OWNER_LIMIT, owner="ann", held_bytes=1)
    assert code(refusal) is ErrorCode.OWNER_LIMIT
    assert refusal is not None
    assert refusal.retry_after_s is not None
    assert code(gate.refuse(owner="ann", held_bytes=1)) is ErrorCode.OWNER_LIMIT
    assert gate.refuse(owner="ben", held_bytes=1) is None
    gate.update(snapshot(held=2))
    assert gate.refuse(owner="ann", held_bytes=1) is None


def test_owners_at_their_share_are_remembered_within_bounds() -> None:
    gate = admission(Clock(), admission_owner_jobs_max=1)
    gate.update(snapshot())
    for number in range(FULL_OWNERS_MAX + 10):
        gate.note_outcome(AdmitOutcome.OWNER_LIMIT, owner=f"owner {number}", held_bytes=1)
    refused = [gate.refuse(owner=f"owner {number}", held_bytes=1) for number in range(FULL_OWNERS_MAX + 10)]
    assert len([error for error in refused if error]) == FULL_OWNERS_MAX


@pytest.mark.parametrize("outcome", [AdmitOutcome.KEY_TAKEN, AdmitOutcome.OWNER_LIMIT])
def test_what_took_no_place_counts_for_nobody_else(outcome: AdmitOutcome) -> None:
    gate = admission(Clock(), admission_jobs_max=10)
    gate.update(snapshot(held=9))
    for _ in range(5):
        assert gate.refuse(owner="ben", held_bytes=1) is None
        gate.note_try()
        assert code(gate.refuse(owner="ben", held_bytes=1)) is ErrorCode.BACKLOG_FULL
        gate.note_outcome(outcome, owner="ann", held_bytes=1)


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.floats(0, 1000))
def test_an_owners_wait_is_whole_and_within_its_bounds(held: int, owner_jobs_max: int, rate_per_s: float) -> None:
    wait_s = owner_retry_after_s(
        snapshot(held=held, rate_per_s=rate_per_s), owner_jobs_max=owner_jobs_max, rng=random.SystemRandom()
    )
    assert isinstance(wait_s, int)
    assert 1 <= wait_s <= math.ceil(RETRY_AFTER_S_MAX * 1.25)
