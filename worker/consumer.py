"""The worker role: sessions with the broker, a fixed number of slots, and how both stop.

While a server is away the worker holds no deliveries: its session is closed until a probe of each server succeeds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.core import telemetry
from app.core.jobstore import JobStore
from app.core.postgres import DatabaseUnavailableError
from app.core.processes import ProcessReport
from app.core.rabbit import BrokerSession, BrokerSettings, BrokerUnavailableError, Delivery, pause_before_reconnect
from app.core.role import first_of, wait_or_stop
from worker.hands import Hands
from worker.life import AttemptCost, Life
from worker.outcome import HandBack

log = telemetry.logger()

#: Weight of the newest job in the moving means that capacity is estimated from.
MEAN_WEIGHT = 0.1
#: Pause between two probes of a server that is away.
PROBE_PAUSE_S = 0.5
#: What was interrupted at the end of the grace is settled within this long.
LAST_SETTLES_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How one worker process consumes: jobs in work, unacknowledged deliveries, time to finish on a stop."""

    concurrency: int
    prefetch: int
    stop_grace_s: float

    @property
    def slots(self) -> int:
        """Jobs claimed at once: a prefetch above the concurrency is used to fetch as many sources ahead, at most.

        The pixels of no more than `concurrency` jobs are in work, which the sandbox's children see to; without a
        source at hand a child would wait for the store and the database between two jobs.
        """
        return min(self.prefetch, 2 * self.concurrency)


class Consumer:
    """One worker process's sessions and slots."""

    def __init__(
        self, settings: ConsumerSettings, *, broker: BrokerSettings, life: Life, hands: Hands, jobs: JobStore
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._life = life
        self._hands = hands
        self._jobs = jobs
        # The broker's prefetch bounds it: it never sends more than that unacknowledged.
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue(maxsize=settings.prefetch)
        self._server_away = asyncio.Event()
        self._stopping = False
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._connected = False
        self._job_wall_s: float | None = None
        self._job_cpu_s: float | None = None

    def report(self) -> ProcessReport:
        """Return what this worker says of itself to the register."""
        return ProcessReport(
            broker_ok=self._connected,
            slots=self._settings.slots,
            prefetch=self._settings.prefetch,
            unacked=self._busy + self._deliveries.qsize(),
            job_wall_s=self._job_wall_s,
            job_cpu_s=self._job_cpu_s,
            pipeline_versions=self._life.pipeline_versions,
        )

    async def run(self, stop: asyncio.Event, *, probe: Callable[[], Awaitable[bool]]) -> None:
        """Consume until told to stop; then finish or hand back what is in hand, within the grace."""
        async with asyncio.TaskGroup() as group:  # a slot that breaks ends the process, which is then started anew
            slots = [group.create_task(self._slot()) for _ in range(self._settings.slots)]
            while not stop.is_set():
                if not await self._servers_answer(stop, probe):
                    break
                with contextlib.suppress(BrokerUnavailableError):
                    await self._session(stop)
                await pause_before_reconnect(stop)
            await self._finish_in_hand()  # what is still in hand when a stop finds this worker without a session
            for slot in slots:
                slot.cancel()

    async def _servers_answer(self, stop: asyncio.Event, probe: Callable[[], Awaitable[bool]]) -> bool:
        """Wait until database and store answer; then give back the claims whose answers were lost."""
        while not stop.is_set():
            if await _answers(probe, stop) and await self._hand_back_unheld():
                self._server_away.clear()
                return True
            await wait_or_stop(stop, PROBE_PAUSE_S)
        return False

    async def _hand_back_unheld(self) -> bool:
        with contextlib.suppress(DatabaseUnavailableError):
            await self._jobs.hand_back_unheld(worker_id=self._life.worker_id, held_ids=self._hands.held_ids())
            return True
        return False

    async def _session(self, stop: asyncio.Event) -> None:
        async with BrokerSession.open(self._broker) as session:
            self._forget_deliveries()
            await session.consume(prefetch=self._settings.prefetch, on_delivery=self._deliveries.put_nowait)
            self._connected = True
            log.info("worker.consuming", prefetch=self._settings.prefetch)
            try:
                await first_of(stop, session.closed, self._server_away)
                if stop.is_set():
                    await self._wind_down(session)
            finally:
                self._connected = False

    async def _wind_down(self, session: BrokerSession) -> None:
        """Take no more, and finish while the session still takes acknowledgements."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_stop_consuming(session))  # beside: a silent broker must not eat up the grace
            await self._finish_in_hand()

    async def _finish_in_hand(self) -> None:
        """Finish what runs within the grace, hand back the rest: neither costs an attempt, nor a death."""
        if self._stopping:
            return
        self._stopping = True
        if not await self._idle_within(self._settings.stop_grace_s):
            self._hands.interrupt_all(HandBack("stopping"))
            await self._idle_within(LAST_SETTLES_S)

    async def _idle_within(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self._idle.is_set()

    async def _slot(self) -> None:
        while True:
            delivery = await self._deliveries.get()
            if self._stopping or self._server_away.is_set() or not delivery.live:
                continue  # unacknowledged: it goes back to the queue when its session closes
            self._busy += 1
            self._idle.clear()
            try:
                self._learn(await self._life.run(delivery))
            except DatabaseUnavailableError:
                self._server_away.set()
            except Exception:  # outermost guard of one slot: without it the worker would go on with fewer, unseen
                # Its lease runs out and counts as a death, so that a job that always ends like this is final some time.
                log.exception("worker.slot_broke", body_bytes=delivery.body_bytes)
                await delivery.ack()
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()

    def _learn(self, result: object) -> None:
        if isinstance(result, AttemptCost):
            self._job_wall_s = _moving_mean(self._job_wall_s, result.wall_s)
            self._job_cpu_s = _moving_mean(self._job_cpu_s, result.cpu_s)
        elif isinstance(result, HandBack) and result.server_away:
            self._server_away.set()

    def _forget_deliveries(self) -> None:
        while not self._deliveries.empty():
            self._deliveries.get_nowait()


async def _answers(probe: Callable[[], Awaitable[bool]], stop: asyncio.Event) -> bool:
    """Return what the probe says, or False at once when told to stop: a slow server has long to answer it."""
    asking, stopping = asyncio.ensure_future(probe()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return asking.done() and asking.result()
    finally:
        asking.cancel()
        stopping.cancel()


async def _stop_consuming(session: BrokerSession) -> None:
    with contextlib.suppress(BrokerUnavailableError):
        await session.stop_consuming()


def _moving_mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + MEAN_WEIGHT * (value - mean)
