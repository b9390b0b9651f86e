"""Who may run beside whom: a job with a death behind it runs alone, so that the next death convicts it only.

Invariant: while one runs alone nobody else of this process holds a claim, not even to wait for it: a claim that stands
when the process dies counts a death. So whoever wants to claim enters first.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Lane:
    """One job's right to run, beside others until it asks to be alone."""

    def __init__(self, lanes: "Lanes") -> None:
        self._lanes = lanes
        self.alone = False

    async def be_alone(self) -> bool:
        """Wait until all others have left, while nobody else enters; False when another one is first in that."""
        return await self._lanes.clear_for(self)


class Lanes:
    """A side that many share, and on which one may ask to be alone."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._running = 0
        self._reserved = False

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[Lane]:
        """Wait for the right to run, hold it for the block."""
        lane = Lane(self)
        async with self._changed:
            await self._changed.wait_for(lambda: not self._reserved)
            self._running += 1
        try:
            yield lane
        finally:
            await asyncio.shield(self._leave(lane))

    async def clear_for(self, lane: Lane) -> bool:
        """Keep newcomers out and wait until only this one is left; False when another one does so already."""
        async with self._changed:
            if self._reserved:
                return False
            self._reserved = lane.alone = True
            await self._changed.wait_for(lambda: self._running == 1)
            return True

    async def _leave(self, lane: Lane) -> None:
        async with self._changed:
            self._running -= 1
            if lane.alone:
                self._reserved = False
            self._changed.notify_all()
