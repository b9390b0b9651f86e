"""One delivery's life, straight: claim → attempt → settle → ack. The only place where an outcome becomes state.

A delivery whose claim finds nothing to do is acknowledged: the row decides when a job runs again. Nothing is requeued.
"""

import asyncio
import random
from dataclasses import dataclass
from typing import assert_never
from uuid import UUID

from app.core import telemetry
from app.core.cancels import is_cancelled
from app.core.clock import Monotonic
from app.core.crashpoints import Crasher
from app.core.jobstore import Claim, JobStore
from app.core.postgres import DatabaseUnavailableError
from app.core.rabbit import Delivery
from contracts.images import TransformParams
from contracts.jobs import JobState
from contracts.messages import PIPELINE_VERSION, JobMessage
from worker.backoff import backoff_s
from worker.hands import Hands, Held
from worker.lanes import Lanes
from worker.outcome import Done, HandBack, Lost, Outcome, Rejected, Retry
from worker.pipeline import Pipeline

log = telemetry.logger()

OUTCOMES = telemetry.counter("worker_outcomes", "Attempts by what came of them.", "outcome", "detail")
FENCED = telemetry.counter("worker_fenced_writes", "Settles refused because the claim was no longer ours.")
EMPTY_CLAIMS = telemetry.counter("worker_empty_claims", "Deliveries whose claim found nothing to do.")
PARKED = telemetry.counter("worker_parked_jobs", "Jobs of a pipeline version that this worker does not serve.")
UNREADABLE = telemetry.counter("worker_unreadable_messages", "Messages sent to the dead-letter queue unread.")
ATTEMPT_SECONDS = telemetry.histogram("worker_attempt_seconds", "Wall time of one attempt, from claim to settle.")

#: What a settle is called in the log, by the state it led to; the names are those of contracts.jobs.TRANSITIONS.
EVENTS = {
    JobState.READY: "job.ready",
    JobState.FAILED: "job.failed",
    JobState.CANCELLED: "job.cancelled",
    JobState.QUEUED: "job.retried",
}

#: Pause between two tries of a settle that got no answer; the token makes repeats harmless.
SETTLE_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSettings:
    """How attempts are claimed and settled."""

    worker_id: UUID
    params: TransformParams
    lease_s: float
    attempts_max: int
    retry_base_s: float
    retry_cap_s: float
    pipeline_versions: tuple[int, ...] = (PIPELINE_VERSION,)


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """What one finished attempt took: wall seconds, and CPU seconds of its child."""

    wall_s: float
    cpu_s: float


class Life:
    """Takes deliveries from claim to ack, with the job store, the pipeline and the process's hands."""

    def __init__(
        self,
        settings: LifeSettings,
        *,
        jobs: JobStore,
        pipeline: Pipeline,
        hands: Hands,
        clock: Monotonic,
        crasher: Crasher,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._pipeline = pipeline
        self._hands = hands
        self._clock = clock
        self._crasher = crasher
        self._lanes = Lanes()
        self._rng = random.SystemRandom()

    @property
    def worker_id(self) -> UUID:
        """The id of this process start, under which its claims stand."""
        return self._settings.worker_id

    @property
    def pipeline_versions(self) -> tuple[int, ...]:
        """The versions of the pipeline that this worker serves."""
        return self._settings.pipeline_versions

    async def run(self, delivery: Delivery) -> Outcome | AttemptCost | None:
        """Take one delivery to its end.

        Returns what an attempt took when it ended `ready`, its outcome when it did not, None without a claim.

        Raises:
            DatabaseUnavailableError: the claim got no answer; the delivery is not acknowledged.
        """
        if delivery.message is None:
            UNREADABLE.inc()
            log.error("message.unreadable", body_bytes=delivery.body_bytes)
            await delivery.reject()
            return None
        message = delivery.message
        async with self._lanes.enter():
            claim = await self._claim(delivery, message.job_id, alone=False)
            if claim is not None:
                return await self._carry(claim, delivery)
        if await self._jobs.is_suspect(message.job_id, pipeline_versions=self.pipeline_versions):
            async with self._lanes.enter_alone():
                claim = await self._claim(delivery, message.job_id, alone=True)
                if claim is not None:
                    return await self._carry(claim, delivery)
        if delivery.live:
            await self._park_or_pass(message)
            await delivery.ack()
        return None

    async def _park_or_pass(self, message: JobMessage) -> None:
        """Park a job of another version: it stays queued, and is announced again when a worker serves it.

        The row's version counts, not the message's: a stale message changes nothing.
        """
        parked = await self._jobs.park(message.job_id, pipeline_versions=self.pipeline_versions)
        if parked is None:
            EMPTY_CLAIMS.inc()
            return
        PARKED.inc()
        log.warning("job.parked", job_id=str(message.job_id), pipeline_version=parked, serves=self.pipeline_versions)

    async def _claim(self, delivery: Delivery, job_id: UUID, *, alone: bool) -> Claim | None:
        if not delivery.live:
            return None  # its session ended while it waited: the broker delivers it again
        with self._hands.claiming(job_id):
            claim = await self._jobs.claim(
                job_id,
                worker_id=self._settings.worker_id,
                lease_s=self._settings.lease_s,
                params=self._settings.params,
                pipeline_versions=self.pipeline_versions,
                alone=alone,
            )
        if claim is not None:
            log.debug("job.claimed", job_id=str(job_id), claim_token=claim.claim_token)
            self._crasher.reach("worker.claimed")
        return claim

    async def _carry(self, claim: Claim, delivery: Delivery) -> Outcome | AttemptCost:
        started_s = self._clock()
        with self._hands.hold(claim) as held:
            outcome = await self._attempt(held)
            state = await self._settle_until_answered(claim, outcome)
        self._crasher.reach("worker.settled")
        wall_s = self._clock() - started_s
        await self._record(claim, outcome, state=state, wall_s=wall_s)
        await delivery.ack()
        if isinstance(outcome, Done) and state is JobState.READY:
            return AttemptCost(wall_s, outcome.cpu_s)
        return outcome

    async def _attempt(self, held: Held) -> Outcome:
        if held.interrupted_by is not None:
            return held.interrupted_by
        held.attempt = asyncio.create_task(self._pipeline.run(held.claim))
        try:
            return await held.attempt
        except asyncio.CancelledError:
            # Set by `interrupt` while the attempt ran; without it, or beside it, the cancel was meant for this slot.
            interrupted_by: Outcome | None = held.interrupted_by
            if interrupted_by is None or is_cancelled():
                raise
            return interrupted_by
        except Exception:  # outermost guard of one job: an unforeseen fault costs an attempt, not the worker
            log.exception("job.attempt_broke", job_id=str(held.claim.job_id))
            return Retry("internal")

    async def _settle_until_answered(self, claim: Claim, outcome: Outcome) -> JobState | None:
        while True:
            try:
                return await self._settle(claim, outcome)
            except DatabaseUnavailableError:
                # Repeating is safe: the token guards it, and zero rows then means that an earlier try was carried out.
                await asyncio.sleep(SETTLE_PAUSE_S)

    async def _settle(self, claim: Claim, outcome: Outcome) -> JobState | None:
        token = claim.claim_token
        match outcome:
            case Done(variants=variants):
                return await self._jobs.complete(claim.job_id, claim_token=token, variants=variants)
            case Rejected(code=code):
                return await self._jobs.fail(claim.job_id, claim_token=token, code=code)
            case Retry():
                return await self._retry(claim, delay_s=self._backoff_s(claim.attempts_spent), attempt_spent=True)
            case HandBack():
                return await self._retry(claim, delay_s=0.0, attempt_spent=False)
            case Lost():
                return None
            case _:
                assert_never(outcome)

    async def _retry(self, claim: Claim, *, delay_s: float, attempt_spent: bool) -> JobState | None:
        return await self._jobs.retry(
            claim.job_id,
            claim_token=claim.claim_token,
            delay_s=delay_s,
            attempt_spent=attempt_spent,
            attempts_max=self._settings.attempts_max,
        )

    def _backoff_s(self, attempts_spent: int) -> float:
        base_s, cap_s = self._settings.retry_base_s, self._settings.retry_cap_s
        return backoff_s(attempts_spent, base_s=base_s, cap_s=cap_s, rng=self._rng)

    async def _record(self, claim: Claim, outcome: Outcome, *, state: JobState | None, wall_s: float) -> None:
        detail = getattr(outcome, "code", getattr(outcome, "reason", ""))
        OUTCOMES.labels(type(outcome).__name__.lower(), str(detail)).inc()
        ATTEMPT_SECONDS.observe(wall_s)
        if state is None:
            FENCED.inc()
        log.info(
            _event(outcome, state),
            job_id=str(claim.job_id),
            claim_token=claim.claim_token,
            outcome=type(outcome).__name__.lower(),
            detail=str(detail),
            state=state,
            wall_ms=round(wall_s * 1000),
        )


def _event(outcome: Outcome, state: JobState | None) -> str:
    if state is None:
        return "job.fenced"
    if state is JobState.QUEUED and isinstance(outcome, HandBack):
        return "job.handed_back"
    return EVENTS[state]
