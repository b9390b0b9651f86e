"""The wait before another attempt: drawn from the whole range, which doubles up to the cap."""

import random

import pytest

from worker.backoff import backoff_s

DRAWS = 4000


@pytest.mark.parametrize(
    ("attempts_spent", "ceiling_s"), [(0, 1.0), (1, 2.0), (2, 4.0), (5, 32.0), (6, 60.0), (7, 60.0), (10_000, 60.0)]
)
def test_waits_fill_the_range_from_nothing_to_the_ceiling(attempts_spent: int, ceiling_s: float) -> None:
    rng = random.SystemRandom()
    waits = [backoff_s(attempts_spent, base_s=1.0, cap_s=60.0, rng=rng) for _ in range(DRAWS)]
    assert min(waits) >= 0.0
    assert max(waits) <= ceiling_s
    for quarter in range(4):
        inside = [wait_s for wait_s in waits if quarter <= 4 * wait_s / ceiling_s < quarter + 1]
        assert len(inside) == pytest.approx(DRAWS / 4, rel=0.15), "full jitter: no part of the range is preferred"
