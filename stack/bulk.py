"""Many things done one after the other, each of which needs a place: waits for places, and can be stopped.

Invariant: what is done is done; whoever stops, or gives up waiting, leaves nothing half done and can begin again.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from app.core.clock import Monotonic

_Item = TypeVar("_Item")

#: Places are asked for again after a pause drawn from this range, seconds, so that those who wait do not ask in step.
PAUSE_S_MIN = 0.2
PAUSE_S_MAX = 1.0


class Ending(StrEnum):
    """How it ended."""

    DONE = "done"  #: there was nothing left
    NO_PLACE = "no_place"  #: no place came free for as long as was to be waited
    STOPPED = "stopped"  #: somebody asked for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How one waits: `wait_s` for each place, until `stop`."""

    wait_s: float
    stop: asyncio.Event
    clock: Monotonic
    rng: random.Random


async def take_each(
    items: AsyncIterator[_Item], take: Callable[[_Item], Awaitable[bool]], *, waiting: Waiting
) -> Ending:
    """Take each item; `take` answers False when there was no place for it, and is asked again."""
    async for item in items:
        if waiting.stop.is_set():
            return Ending.STOPPED
        since_s = waiting.clock()
        while not await take(item):
            left_s = waiting.wait_s - (waiting.clock() - since_s)
            if left_s <= 0:
                return Ending.NO_PLACE
            await _pause(waiting, left_s=left_s)
            if waiting.stop.is_set():
                return Ending.STOPPED
    return Ending.DONE


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM set an event instead of breaking into whatever is being done."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _pause(waiting: Waiting, *, left_s: float) -> None:
    pause_s = min(left_s, waiting.rng.uniform(PAUSE_S_MIN, PAUSE_S_MAX))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await waiting.stop.wait()
