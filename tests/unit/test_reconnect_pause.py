"""Sessions with the broker are opened anew after a pause that no two processes share."""

import random

import pytest

from app.core.rabbit import RECONNECT_S_MAX, RECONNECT_S_MIN, reconnect_pause_s

DRAWS = 4000


def test_the_pause_is_drawn_evenly_from_its_range() -> None:
    rng = random.SystemRandom()
    shares = [(reconnect_pause_s(rng) - RECONNECT_S_MIN) / (RECONNECT_S_MAX - RECONNECT_S_MIN) for _ in range(DRAWS)]
    assert 0.0 <= min(shares) <= max(shares) <= 1.0
    for quarter in range(4):
        inside = [share for share in shares if quarter <= 4 * share < quarter + 1]
        assert len(inside) == pytest.approx(DRAWS / 4, rel=0.15)
