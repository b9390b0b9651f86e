"""The doctor's look at books, announcements and messages: numbers and rows that must agree at any moment.

Invariant: what is compared is read by one statement, so it is of one moment; broker and rows, which no statement can
read together, are compared several times, and a shortage counts only when every look finds it.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict

from app.core.backlog import Backlog
from app.core.rabbit import BrokerSession, BrokerSettings
from stack.doctor_finds import Difference, Kind
from stack.doctor_rows import DoctorRows

#: Looks at the broker that must all find too few messages; the janitor takes two.
BROKER_LOOKS = 3


def quiet_s_of(lease_s: float) -> float:
    """Return how long a published job may wait before its message can be missed, seconds; as the janitor has it."""
    return lease_s / 2


class BooksLook:
    """One look at the books of one database and the queues of one broker."""

    def __init__(
        self, rows: DoctorRows, backlog: Backlog, *, broker: BrokerSettings, lease_s: float, seen_s: float
    ) -> None:
        """`seen_s`: a worker not seen for so long is taken for dead; between two reports less than that passes."""
        self._rows = rows
        self._backlog = backlog
        self._broker = broker
        self._lease_s = lease_s
        self._seen_s = seen_s

    async def differences(self) -> AsyncIterator[Difference]:
        """Yield what does not agree."""
        for look in (self._gate, self._shares, self._announcements, self._messages):
            async for found in look():
                yield found

    async def _gate(self) -> AsyncIterator[Difference]:
        found = await self._rows.books()
        if found is None:
            detail = "the table has no row 0"
            yield Difference(kind=Kind.GATE_MISSING, subject="gate", detail=detail, evidence="missing")
            return
        books, sums = found
        of_rows = asdict(sums)
        for name, held in asdict(books).items():
            drift = of_rows[name] - held
            if drift:
                detail = f"the book says {held}, the rows say {of_rows[name]}"
                yield Difference(kind=Kind.BOOK_DIFFERS, subject=f"gate.{name}", detail=detail, evidence=f"{drift:+d}")

    async def _shares(self) -> AsyncIterator[Difference]:
        for owner, held, counted in await self._rows.shares():
            detail = f"the share says {held}, the rows say {counted}"
            evidence = f"{counted - held:+d}"
            yield Difference(kind=Kind.SHARE_DIFFERS, subject=owner, detail=detail, evidence=evidence)

    async def _announcements(self) -> AsyncIterator[Difference]:
        for announcement_id, job_id, state, since in await self._rows.needless_announcements(age_s=self._lease_s):
            yield Difference(
                kind=Kind.NEEDLESS_ANNOUNCEMENT,
                subject=str(job_id),
                detail=f"announcement {announcement_id}, and the job is {state}",
                evidence=str(announcement_id),
                since=since,
            )
        for job_id, version, since in await self._rows.never_announced(age_s=self._lease_s):
            yield Difference(
                kind=Kind.NEVER_ANNOUNCED,
                subject=str(job_id),
                detail="queued and due, and the outbox does not know it",
                evidence=str(version),
                since=since,
            )

    async def _messages(self) -> AsyncIterator[Difference]:
        waiting, since = await self._rows.waiting_in_the_broker(quiet_s=quiet_s_of(self._lease_s))
        if not waiting:
            return
        async with BrokerSession.open(self._broker) as session:
            missing = await self._missing(session)
            if missing:
                detail = f"at least {missing} of the messages for {waiting} waiting jobs are not in the broker"
                # Others may be announced and claimed meanwhile: that some are missing is all that can last.
                yield Difference(
                    kind=Kind.MESSAGES_MISSING, subject="messages", detail=detail, evidence="some", since=since
                )

    async def _missing(self, session: BrokerSession) -> int:
        """Return how many messages every look finds too few; what workers say they hold is as old as their reports."""
        missing: list[int] = []
        for look in range(BROKER_LOOKS):
            if look:
                await asyncio.sleep(self._seen_s)
            census = await self._backlog.census(seen_s=self._seen_s, lease_s=self._lease_s)
            held = await session.ready_messages() + census.unacked
            missing.append(census.in_delivery - held if census.waiting else 0)
            if missing[-1] <= 0:
                return 0
        return min(missing)
