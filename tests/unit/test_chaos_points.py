"""The named crash points: each is in the code once, and off they do nothing."""

import re
from collections import Counter

import pytest

from app.core.crashpoints import CRASH_POINTS, Crasher
from stack.docs import ROOT, product_modules

REACH = re.compile(r'\.reach\("([a-z]+\.[a-z]+)"\)')


def test_every_crash_point_is_reached_in_one_place_of_the_role_that_it_names() -> None:
    places = [
        (point, path.as_posix())
        for path in product_modules(ROOT)
        for point in REACH.findall((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert Counter(point for point, _ in places) == dict.fromkeys(CRASH_POINTS, 1)
    packages = {point.partition(".")[0]: path.partition("/")[0] for point, path in places}
    assert packages == {"api": "app", "relay": "worker", "worker": "worker", "janitor": "worker"}


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_point_that_is_not_armed_does_nothing(point: str) -> None:
    other = CRASH_POINTS[0] if point != CRASH_POINTS[0] else CRASH_POINTS[1]
    for armed in (None, other):
        crasher = Crasher(armed)
        for reached in CRASH_POINTS:
            if reached == point:
                crasher.reach(reached)
