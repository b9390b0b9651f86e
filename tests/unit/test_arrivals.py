from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import Phase, constant, poisson, poisson_count

PULSE = (
    Phase(name="base", duration_s=10.0, rate_per_s=6.0),
    Phase(name="pulse", duration_s=20.0, rate_per_s=20.0),
    Phase(name="recovery", duration_s=60.0, rate_per_s=6.0),
)


def test_the_same_seed_gives_the_same_hash_and_another_seed_another() -> None:
    first = poisson(PULSE, seed=7, images=64)
    assert first.sha256 == poisson(PULSE, seed=7, images=64).sha256
    assert first.sha256 != poisson(PULSE, seed=8, images=64).sha256


def test_the_hash_of_a_known_schedule_never_changes() -> None:
    """A changed hash means that old and new runs no longer saw the same load."""
    assert poisson(PULSE, seed=7, images=64).sha256.startswith("7783430c14dc5968")


def test_the_hash_covers_the_image_as_well_as_the_time() -> None:
    assert constant(10, rate_per_s=5, seed=1, images=3).sha256 != constant(10, rate_per_s=5, seed=1, images=4).sha256


def test_gaps_of_a_poisson_schedule_are_exponential() -> None:
    schedule = poisson((Phase(name="flat", duration_s=400.0, rate_per_s=50.0),), seed=3, images=8)
    gaps_s = np.diff(schedule.due_us) / 1e6
    assert gaps_s.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.03)
    counts = np.bincount((schedule.due_us // 1_000_000).astype(int), minlength=400)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.2), "index of dispersion"


def test_each_phase_has_its_own_rate_and_its_arrivals_lie_inside_it() -> None:
    schedule = poisson(PULSE, seed=11, images=64)
    begin_s = 0.0
    for index, phase in enumerate(PULSE):
        due_s = schedule.due_us[schedule.phase_index == index] / 1e6
        expected = phase.duration_s * phase.rate_per_s
        assert abs(len(due_s) - expected) < 4 * expected**0.5
        assert due_s.min() >= begin_s
        assert due_s.max() <= begin_s + phase.duration_s
        begin_s += phase.duration_s


def test_two_loads_from_one_seed_share_their_random_numbers() -> None:
    slow = poisson_count(100, rate_per_s=5, seed=2, images=10)
    fast = poisson_count(100, rate_per_s=10, seed=2, images=10)
    assert np.allclose(slow.due_us / 2, fast.due_us, atol=1)
    assert (slow.image == fast.image).all()


def test_a_constant_schedule_uses_every_image_equally_often() -> None:
    schedule = constant(200, rate_per_s=100, seed=1, images=50)
    assert np.bincount(schedule.image).tolist() == [4] * 50
    assert {int(b - a) for a, b in pairwise(schedule.due_us.tolist())} == {10_000}


@given(seed=st.integers(0, 2**32), rate_per_s=st.floats(0.5, 200), duration_s=st.floats(0.5, 20))
def test_due_times_are_sorted_and_inside_the_load(seed: int, rate_per_s: float, duration_s: float) -> None:
    schedule = poisson((Phase(name="flat", duration_s=duration_s, rate_per_s=rate_per_s),), seed=seed, images=5)
    assert (np.diff(schedule.due_us) >= 0).all()
    assert (schedule.due_us <= duration_s * 1e6 + 1).all()
    assert ((schedule.image >= 0) & (schedule.image < 5)).all()
