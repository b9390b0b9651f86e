"""The table of transitions is the state machine that the design promises."""

from collections import Counter

import pytest

from contracts.jobs import FINAL, TRANSITIONS, Event, JobState

ARROWS = {(arrow.state, arrow.event): arrow.next_state for arrow in TRANSITIONS}
S = JobState
#: States that hold a place in the admission books.
UNFINISHED = frozenset({S.UPLOADING, S.QUEUED, S.PROCESSING, S.CANCELLING})


def next_states(state: JobState) -> set[JobState]:
    return {arrow.next_state for arrow in TRANSITIONS if arrow.state is state}


def reachable(start: JobState) -> set[JobState]:
    seen = {start}
    while True:
        more = {following for state in seen for following in next_states(state)} - seen
        if not more:
            return seen
        seen |= more


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        (S.UPLOADING, {S.QUEUED, S.DROPPED}),
        (S.DROPPED, set()),
        (S.QUEUED, {S.PROCESSING, S.CANCELLED, S.FAILED}),
        (S.PROCESSING, {S.READY, S.FAILED, S.CANCELLING, S.QUEUED}),
        (S.CANCELLING, {S.CANCELLED}),
        (S.READY, {S.EXPIRED}),
        (S.FAILED, {S.QUEUED, S.EXPIRED}),
        (S.CANCELLED, {S.EXPIRED}),
        (S.EXPIRED, set()),
    ],
)
def test_a_state_leads_where_the_design_says_and_nowhere_else(state: JobState, allowed: set[JobState]) -> None:
    assert next_states(state) == allowed


def test_a_state_and_an_event_have_one_answer() -> None:
    pairs = Counter((arrow.state, arrow.event) for arrow in TRANSITIONS)
    assert [pair for pair, count in pairs.items() if count > 1] == []


def test_no_transition_stays_where_it_is() -> None:
    assert [arrow for arrow in TRANSITIONS if arrow.state is arrow.next_state] == []


def test_every_state_is_reached_from_a_reservation() -> None:
    assert reachable(S.UPLOADING) == set(JobState)


def test_every_event_happens_somewhere() -> None:
    assert {event for _, event in ARROWS} == set(Event)


def test_every_state_holds_a_place_or_is_over() -> None:
    assert UNFINISHED | FINAL | {S.DROPPED} == set(JobState)
    assert UNFINISHED.isdisjoint(FINAL | {S.DROPPED})


@pytest.mark.parametrize("state", sorted(UNFINISHED))
def test_every_unfinished_job_can_end(state: JobState) -> None:
    assert reachable(state) & (FINAL | {S.DROPPED})


def test_finished_work_starts_again_only_by_a_replay_of_a_failed_job() -> None:
    revived = [arrow for arrow in TRANSITIONS if arrow.state in FINAL and arrow.next_state in UNFINISHED]
    assert [(arrow.state, arrow.event, arrow.next_state) for arrow in revived] == [(S.FAILED, Event.REPLAY, S.QUEUED)]


def test_a_cancelled_wish_never_ends_ready() -> None:
    assert S.READY not in reachable(S.CANCELLING)


def test_a_job_that_was_accepted_is_never_dropped() -> None:
    assert S.DROPPED not in reachable(S.QUEUED)


def test_what_is_expired_stays_expired() -> None:
    assert reachable(S.EXPIRED) == {S.EXPIRED}


def test_log_events_are_dotted_past_facts_of_jobs() -> None:
    assert all(arrow.log_event.startswith("job.") for arrow in TRANSITIONS)
    assert len({(arrow.log_event, arrow.next_state) for arrow in TRANSITIONS}) == len(
        {arrow.log_event for arrow in TRANSITIONS}
    )
