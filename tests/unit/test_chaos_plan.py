"""The plan of a chaos run: what a seed decides, and what no plan ever does."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.chaos_plan import (
    CALM_AFTER_S,
    CALM_BEFORE_S,
    FAULTS_AT_ONCE_MAX,
    KINDS,
    OWNERS,
    SECONDS_MIN,
    Action,
    Fault,
    Plan,
    make_plan,
)

LONG_S, SHORT_S = 900, 120
IMAGES = 23
#: Kind, beginning and length in seconds.
FIRST_OF_7 = ("crash-api", 10.145, 5.416)
LAST_OF_7 = ("kill-worker", 92.115, 2.433)


def plan_of(seed: int, seconds: int) -> Plan:
    return make_plan(seed=seed, seconds=seconds, images_count=IMAGES)


def at_work(faults: tuple[Fault, ...], at_s: float) -> list[Fault]:
    return [fault for fault in faults if fault.begin_s <= at_s < fault.over_s]


def test_equal_seeds_give_equal_plans_and_others_give_others() -> None:
    assert plan_of(1, SHORT_S) == plan_of(1, SHORT_S)
    assert plan_of(1, SHORT_S).faults != plan_of(2, SHORT_S).faults
    assert plan_of(1, SHORT_S).arrivals != plan_of(2, SHORT_S).arrivals


def test_a_plan_does_not_change_from_one_version_of_python_to_the_next() -> None:
    plan = plan_of(7, SHORT_S)
    first, last = plan.faults[0], plan.faults[-1]
    assert (first.kind.name, first.begin_s, first.lasting_s) == FIRST_OF_7
    assert (last.kind.name, last.begin_s, last.lasting_s) == LAST_OF_7


@pytest.mark.parametrize("seed", [1, 7, 2026])
def test_fifteen_minutes_hold_sixty_faults_every_kind_three_times_and_two_thousand_jobs(seed: int) -> None:
    plan = plan_of(seed, LONG_S)
    counts = Counter(fault.kind.name for fault in plan.faults)
    assert len(plan.faults) >= 60
    assert counts.keys() == {kind.name for kind in KINDS}
    assert min(counts.values()) >= 3
    assert len(plan.arrivals) >= 2000
    assert {arrival.owner for arrival in plan.arrivals} == set(OWNERS)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), seconds=st.integers(SECONDS_MIN, 300))
def test_no_plan_has_more_than_two_faults_at_once_or_two_on_one_part(seed: int, seconds: int) -> None:
    faults = plan_of(seed, seconds).faults
    for fault in faults:
        beside = at_work(faults, fault.begin_s)
        assert len(beside) <= FAULTS_AT_ONCE_MAX
        assert len({other.target for other in beside}) == len(beside)
        assert not {"messages", "rabbit"} <= {other.target for other in beside}
        assert fault.begin_s >= CALM_BEFORE_S
        assert fault.begin_s + fault.lasting_s <= seconds - CALM_AFTER_S


def test_each_kind_has_a_name_of_its_own_and_every_action_is_used() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert {kind.action for kind in KINDS} == set(Action)


def test_the_crash_points_of_a_role_take_turns() -> None:
    faults = [fault for fault in plan_of(1, LONG_S).faults if fault.kind.name == "crash-worker"]
    assert {fault.crash_point for fault in faults} == {"worker.claimed", "worker.stored", "worker.settled"}


def test_a_run_without_room_for_a_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        plan_of(1, SECONDS_MIN - 1)
