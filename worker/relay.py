"""The relay role: outbox → RabbitMQ. Rows are leased, published outside any transaction, and deleted when confirmed.

A crash in between publishes twice, which the claim makes harmless. A row that cannot be published waits longer after
each try and never holds back the others.
"""

import asyncio
import contextlib
import uuid
from dataclasses import dataclass

from app.core import telemetry
from app.core.crashpoints import Crasher
from app.core.outbox import Announcement, Outbox
from app.core.postgres import DatabaseUnavailableError, Listener
from app.core.processes import ProcessReport
from app.core.rabbit import BrokerSession, BrokerSettings, BrokerUnavailableError, pause_before_reconnect
from contracts.messages import JobMessage

log = telemetry.logger()

PUBLISHED = telemetry.counter("relay_published", "Announcements that the broker confirmed.")
UNCONFIRMED = telemetry.counter("relay_unconfirmed", "Announcements without a confirm in time; they are tried again.")

#: Pause before an unconfirmed announcement is tried again: doubles with its tries up to the cap.
UNCONFIRMED_BASE_S = 1.0
UNCONFIRMED_CAP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How the outbox is drained."""

    batch_rows: int
    poll_s: float
    lease_s: float


class Relay:
    """One relay process; any number may run."""

    def __init__(
        self, settings: RelaySettings, *, broker: BrokerSettings, outbox: Outbox, listener: Listener, crasher: Crasher
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._outbox = outbox
        self._listener = listener
        self._crasher = crasher
        self._connected = False
        #: Of the last batch nothing was confirmed, though the broker takes messages.
        self._in_vain = False

    def report(self) -> ProcessReport:
        """Return what this relay says of itself to the register."""
        return ProcessReport(broker_ok=self._connected)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until told to stop; a batch in hand is finished first."""
        while not stop.is_set():
            with contextlib.suppress(BrokerUnavailableError):
                await self._session(stop)
            await pause_before_reconnect(stop)

    async def _session(self, stop: asyncio.Event) -> None:
        async with BrokerSession.open(self._broker) as session:
            # Before any row is taken: under an alarm every publish would hang, be tried again, and arrive in the end.
            await session.assure_publishing()
            if self._in_vain:
                self._in_vain = False
                await session.remake_lost_queues()
            self._connected = True
            log.info("relay.publishing")
            try:
                while not stop.is_set() and not session.closed.is_set():
                    if not await self._drain_once(session):
                        await self._wait(stop)
            finally:
                self._connected = False

    async def _drain_once(self, session: BrokerSession) -> bool:
        """Publish one batch; returns whether there may be more at once."""
        lease_token = uuid.uuid4()
        try:
            batch = await self._outbox.lease(
                lease_token=lease_token, lease_s=self._settings.lease_s, rows_max=self._settings.batch_rows
            )
            if not batch:
                return False
            self._crasher.reach("relay.leased")
            confirmed = await session.publish([_message_of(announcement) for announcement in batch])
            self._in_vain = not any(confirmed)
            if not self._in_vain:
                self._crasher.reach("relay.published")
            await self._settle(batch, confirmed, lease_token=lease_token)
        except DatabaseUnavailableError:
            return False
        return all(confirmed)

    async def _settle(self, batch: list[Announcement], confirmed: list[bool], *, lease_token: uuid.UUID) -> None:
        done = [row.id for row, ok in zip(batch, confirmed, strict=True) if ok]
        undone = [row.id for row, ok in zip(batch, confirmed, strict=True) if not ok]
        PUBLISHED.inc(len(done))
        if done:
            await self._outbox.finish(done, lease_token=lease_token)
        if undone:
            UNCONFIRMED.inc(len(undone))
            log.warning("relay.unconfirmed", rows=len(undone))
            await self._outbox.give_back(
                undone, lease_token=lease_token, base_s=UNCONFIRMED_BASE_S, cap_s=UNCONFIRMED_CAP_S
            )

    async def _wait(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        waking = asyncio.create_task(self._listener.wait(self._settings.poll_s))
        try:
            await asyncio.wait((stopping, waking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            waking.cancel()
            await asyncio.gather(stopping, waking, return_exceptions=True)


def _message_of(announcement: Announcement) -> JobMessage:
    return JobMessage(job_id=announcement.job_id, pipeline_version=announcement.pipeline_version)
