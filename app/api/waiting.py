"""Clients that wait for a job to change: one poll per process for all of them.

Invariant: however many wait, a step asks for each job once, in chunks; nobody waits longer than told, and nobody at
all once the process was told to stop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from app.api.body import Receive
from app.api.wire import Wire

#: Pause between two looks at the jobs that somebody waits for.
POLL_INTERVAL_S = 0.5
#: Jobs asked for with one statement.
CHUNK_JOBS = 1000

Versions = Callable[[list[UUID]], Awaitable[dict[UUID, int]]]


class Waiters:
    """Everybody who waits in this process, by job."""

    def __init__(self, versions: Versions, *, waiters_max: int) -> None:
        self._versions = versions
        self._waiters_max = waiters_max
        self._waiting: dict[UUID, dict[asyncio.Future[None], int]] = {}
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
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone = asyncio.create_task(_gone(receive, wire))
        self._add(job_id, changed, version)
        try:
            await asyncio.wait((changed, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._remove(job_id, changed)
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
        return True

    async def poll(self) -> None:
        """Look at every job that is waited for, and wake whoever knows another version.

        Raises:
            DatabaseUnavailableError: nothing is known, so nobody is woken.
        """
        job_ids = list(self._waiting)
        for start in range(0, len(job_ids), CHUNK_JOBS):
            asked = job_ids[start : start + CHUNK_JOBS]
            found = await self._versions(asked)
            for job_id in asked:
                for changed, version in self._waiting.get(job_id, {}).items():
                    if found.get(job_id) != version and not changed.done():
                        changed.set_result(None)

    def release(self) -> None:
        """Let everybody go, and hold nobody any more: the process is about to stop."""
        self._released = True
        for waiting in self._waiting.values():
            for changed in waiting:
                if not changed.done():
                    changed.set_result(None)

    def _add(self, job_id: UUID, changed: asyncio.Future[None], version: int) -> None:
        self._waiting.setdefault(job_id, {})[changed] = version
        self._count += 1

    def _remove(self, job_id: UUID, changed: asyncio.Future[None]) -> None:
        waiting = self._waiting[job_id]
        del waiting[changed]
        self._count -= 1
        if not waiting:
            del self._waiting[job_id]


async def _gone(receive: Receive, wire: Wire) -> None:
    while not wire.ended and (await receive())["type"] != "http.disconnect":
        pass
