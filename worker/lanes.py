"""Who may run beside whom: a job with a death behind it runs alone, so that the next death convicts it only."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Lanes:
    """A shared side for ordinary jobs and an exclusive one, which newcomers of the shared side let pass first."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._running = 0
        self._alone = False
        self._waiting_alone = 0

    @asynccontextmanager
    async def enter(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait for the right to run, hold it for the block."""
        await (self._enter_alone() if alone else self._enter_shared())
        try:
            yield
        finally:
            await asyncio.shield(self._leave(alone=alone))

    async def _enter_shared(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone and not self._waiting_alone)
            self._running += 1

    async def _enter_alone(self) -> None:
        async with self._changed:
            self._waiting_alone += 1
            try:
                await self._changed.wait_for(lambda: not self._alone and not self._running)
                self._alone = True
            finally:
                self._waiting_alone -= 1
                self._changed.notify_all()

    async def _leave(self, *, alone: bool) -> None:
        async with self._changed:
            if alone:
                self._alone = False
            else:
                self._running -= 1
            self._changed.notify_all()
