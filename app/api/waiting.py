"""Clients that wait for a job to change: one poll per process for all of them.

Invariant: however many wait, a step asks for each job once, in chunks; nobody waits longer than told, and nobody at
all once the process was told to stop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from uuid import UUID

from app.api.body import Receive
from app.api.wire import Wire

#: Pause between two looks at the jobs that somebody waits for.
POLL_INTERVAL_S = 0.5
#: Jobs asked for with one statement.
CHUNK_JOBS = 1000

#: A job and the version of it that somebody knows.
Known = tuple[UUID, int]
Changed = Callable[[Sequence[Known]], Awaitable[list[Known]]]


class Waiters:
    """Everybody who waits in this process, by what they know."""

    def __init__(self, changed: Changed, *, waiters_max: int) -> None:
        self._changed = changed
        self._waiters_max = waiters_max
        self._waiting: dict[Known, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._released = False

    def __len__(self) -> int:
        return self._count

    async def wait(self, job_id: UUID, *, version: int, wait_s: float, receive: Receive, wire: Wire) -> bool:
        """Return once the job's version is another one, `wait_s` is over, or the client or this process goes.

        False, at once, when too many wait already or the process is about to stop.
        """
        if self._released or self._count >= self._waiters_max:
            return False
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone = asyncio.create_task(_gone(receive, wire))
        self._add((job_id, version), woken)
        try:
            await asyncio.wait((woken, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._remove((job_id, version), woken)
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
        return True

    async def poll(self) -> None:
        """Look at every job that is waited for, and wake whoever knows another version.

        Raises:
            DatabaseUnavailableError: nothing is known, so nobody is woken.
        """
        known = list(self._waiting)
        for start in range(0, len(known), CHUNK_JOBS):
            for changed in await self._changed(known[start : start + CHUNK_JOBS]):
                _wake(self._waiting.get(changed, ()))

    def release(self) -> None:
        """Let everybody go, and hold nobody any more: the process is about to stop."""
        self._released = True
        for waiting in self._waiting.values():
            _wake(waiting)

    def _add(self, known: Known, woken: asyncio.Future[None]) -> None:
        self._waiting.setdefault(known, set()).add(woken)
        self._count += 1

    def _remove(self, known: Known, woken: asyncio.Future[None]) -> None:
        waiting = self._waiting[known]
        waiting.discard(woken)
        self._count -= 1
        if not waiting:
            del self._waiting[known]


def _wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    for woken in waiting:
        if not woken.done():
            woken.set_result(None)


async def _gone(receive: Receive, wire: Wire) -> None:
    while not wire.ended and (await receive())["type"] != "http.disconnect":
        pass
