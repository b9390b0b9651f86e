"""Bulk work that waits for places: how long, how it is stopped, and that nothing is skipped or done twice."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import typer

from stack.bulk import Ending, Waiting, take_each
from stack.cli_options import moment_of


class Clock:
    """A clock that moves by so much each time it is read."""

    def __init__(self, step_s: float) -> None:
        self._now_s = 0.0
        self._step_s = step_s

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


def waiting(*, wait_s: float = 0.0, step_s: float = 0.0, stop: asyncio.Event | None = None) -> Waiting:
    return Waiting(wait_s=wait_s, stop=stop or asyncio.Event(), clock=Clock(step_s), rng=random.SystemRandom())


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


class Places:
    """Takes items; says that there is no place as often as it is told before each."""

    def __init__(self, *, refusals: int) -> None:
        self.taken: list[int] = []
        self.asked = 0
        self._refusals = refusals

    async def take(self, item: int) -> bool:
        self.asked += 1
        if self.asked % (self._refusals + 1):
            return False
        self.taken.append(item)
        return True


async def test_each_is_taken_once_in_turn_however_often_there_was_no_place() -> None:
    places = Places(refusals=2)
    assert await take_each(numbers(2), places.take, waiting=waiting(wait_s=0.5)) is Ending.DONE
    assert (places.taken, places.asked) == ([0, 1], 6)


async def test_without_patience_the_first_no_is_the_end() -> None:
    places = Places(refusals=1)
    assert await take_each(numbers(2), places.take, waiting=waiting()) is Ending.NO_PLACE
    assert (places.taken, places.asked) == ([], 1)


async def test_the_wait_for_one_place_is_bounded() -> None:
    places = Places(refusals=1000)
    assert await take_each(numbers(1), places.take, waiting=waiting(wait_s=10.0, step_s=9.9)) is Ending.NO_PLACE
    assert places.asked == 2


async def test_who_is_stopped_takes_nothing_more() -> None:
    stop = asyncio.Event()
    places = Places(refusals=0)

    async def take_and_stop(item: int) -> bool:
        stop.set()
        return await places.take(item)

    assert await take_each(numbers(3), take_and_stop, waiting=waiting(stop=stop)) is Ending.STOPPED
    assert places.taken == [0]


async def test_a_stop_ends_a_wait_at_once() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    places = Places(refusals=1000)
    assert await take_each(numbers(1), places.take, waiting=waiting(wait_s=3600.0, stop=stop)) is Ending.STOPPED
    assert places.asked == 1


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_moment_is_in_utc_unless_it_says_otherwise(text: str, moment: datetime) -> None:
    assert moment_of(text) == moment


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "0001-01-01T00:00:00+23:59"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        moment_of(text)
