"""The jobs in a worker's hands: who may still write, who must stop, and the heartbeat that keeps their leases."""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from app.core.jobstore import Claim, JobStore
from app.core.postgres import DatabaseUnavailableError
from app.core.role import wait_or_stop
from contracts.jobs import JobState
from worker.outcome import HandBack, Lost, Outcome

#: Leases are extended this many times before they would run out.
BEATS_PER_LEASE = 3
#: After a heartbeat that failed the next one comes this soon: whoever renews first keeps its jobs.
FAILED_BEAT_PAUSE_S = 1.0


@dataclass(slots=True)
class Held:
    """One claimed job: its attempt, once that runs, and why it was interrupted, if it was."""

    claim: Claim
    attempt: asyncio.Task[Outcome] | None = None
    interrupted_by: Outcome | None = None

    def interrupt(self, outcome: Outcome) -> None:
        """Stop the attempt at its next await; `outcome` is what it then counts as."""
        if self.interrupted_by is None:
            self.interrupted_by = outcome
        if self.attempt is not None:
            self.attempt.cancel()


class Hands:
    """All jobs that this worker process holds."""

    def __init__(self, jobs: JobStore, *, lease_s: float) -> None:
        self._jobs = jobs
        self._lease_s = lease_s
        self._held: dict[UUID, Held] = {}
        self._claiming: set[UUID] = set()
        self._stopped_by: Outcome | None = None

    def __len__(self) -> int:
        return len(self._held)

    def held_ids(self) -> list[UUID]:
        """Return the ids in hand, those being claimed at this moment included."""
        return [*self._held, *self._claiming]

    @contextmanager
    def claiming(self, job_id: UUID) -> Iterator[None]:
        """Mark a claim on its way, so that nobody takes its row for a forgotten one."""
        self._claiming.add(job_id)
        try:
            yield
        finally:
            self._claiming.discard(job_id)

    @contextmanager
    def hold(self, claim: Claim) -> Iterator[Held]:
        """Keep a job in hand, and its lease alive, for the block."""
        older = self._held.get(claim.job_id)
        if older is not None:
            # Its claim ended without its knowing: the answer was lost, or the job was rescued while this process slept.
            older.interrupt(Lost())
        held = self._held[claim.job_id] = Held(claim, interrupted_by=self._stopped_by)
        try:
            yield held
        finally:
            if self._held.get(claim.job_id) is held:
                del self._held[claim.job_id]

    def interrupt_all(self, outcome: Outcome) -> None:
        """Stop every attempt in hand, and those whose claim is still on its way."""
        self._stopped_by = outcome
        for held in list(self._held.values()):
            held.interrupt(outcome)

    async def beat_until(self, stop: asyncio.Event) -> None:
        """Extend all leases with one statement a beat, until told to stop."""
        pause_s = self._lease_s / BEATS_PER_LEASE
        while not await wait_or_stop(stop, pause_s):
            pause_s = self._lease_s / BEATS_PER_LEASE if await self._beat() else FAILED_BEAT_PAUSE_S

    async def _beat(self) -> bool:
        asked = {job_id: held.claim.claim_token for job_id, held in self._held.items()}
        if not asked:
            return True
        with contextlib.suppress(DatabaseUnavailableError):
            kept = await self._jobs.extend_leases(asked, lease_s=self._lease_s)
            for job_id, claim_token in asked.items():
                self._judge(job_id, claim_token, kept.get(job_id))
            return True
        return False

    def _judge(self, job_id: UUID, claim_token: int, state: JobState | None) -> None:
        held = self._held.get(job_id)
        if held is None or held.claim.claim_token != claim_token:
            return
        if state is None:
            held.interrupt(Lost())
        elif state is JobState.CANCELLING:
            held.interrupt(HandBack("cancelled"))
