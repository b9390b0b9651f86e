"""Who may run beside whom: a job with a death behind it runs alone, so that the next death convicts it only.

Invariant: while one runs alone nobody else of this process holds a claim, and nobody holds one to wait for anything: a
claim that stands when the process dies counts a death. So whoever wants to claim enters first.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Lanes:
    """A road that many share, and that one may have to itself."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._running = 0
        self._reserved = False

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Wait for the right to run beside others, hold it for the block."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._reserved)
            self._running += 1
        try:
            yield
        finally:
            await asyncio.shield(self._leave())

    @asynccontextmanager
    async def enter_alone(self) -> AsyncIterator[None]:
        """Wait, while no newcomer enters, until all others have left; have the road alone for the block."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._reserved)
            self._reserved = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._running == 0)
            yield
        finally:
            await asyncio.shield(self._reopen())

    async def _leave(self) -> None:
        async with self._changed:
            self._running -= 1
            self._changed.notify_all()

    async def _reopen(self) -> None:
        async with self._changed:
            self._reserved = False
            self._changed.notify_all()
