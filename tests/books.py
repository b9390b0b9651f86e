"""A database of its own for tests of job state, and the invariant that holds after every one of them."""

import uuid
from dataclasses import dataclass
from typing import Any

import asyncpg

from app.core.backlog import Backlog
from app.core.jobstore import AdmitOutcome, Bounds, Claim, JobStore, Reservation, Source, StoredVariant
from app.core.jobviews import JobViews
from app.core.outbox import Outbox
from app.core.postgres import Database
from contracts.images import ImageFormat, TransformParams, VariantName

NO_BOUNDS = Bounds(jobs_max=None, staging_bytes_max=None)
SOURCE = Source(source_bytes=900, sha256="ab" * 32, format=ImageFormat.JPEG, width=10, height=20)
VARIANTS = (
    StoredVariant(name=VariantName.CROP, key="images/k", sha256="cd" * 32, size_bytes=5, width=128, height=128),
)
OWNER = "ann"
DAY_S = 86_400.0


async def expired(raw: asyncpg.Connection, job_id: uuid.UUID) -> bool:
    """End a job's time as the janitor does when its owner has asked for it; returns whether that changed anything."""
    await raw.execute("UPDATE spillway.jobs SET erase_asked_at = clock_timestamp() WHERE id = $1", job_id)
    rows = await raw.fetch("SELECT job_id FROM spillway.expire_due($1, $1, $1, 1000)", 1000 * DAY_S)
    return job_id in {row["job_id"] for row in rows}


@dataclass(frozen=True, slots=True)
class Books:
    """The stores under test and a plain connection to look behind them."""

    database: Database
    jobs: JobStore
    views: JobViews
    outbox: Outbox
    backlog: Backlog
    raw: asyncpg.Connection

    async def reserve(self, *, bounds: Bounds = NO_BOUNDS, lease_s: float = 30.0) -> Reservation | AdmitOutcome:
        reservation = Reservation(
            job_id=uuid.uuid4(), image_id=uuid.uuid4(), owner=OWNER, upload_token=uuid.uuid4(), held_bytes=1000
        )
        outcome = await self.jobs.admit(reservation, bounds=bounds, lease_s=lease_s, deadline_s=60.0)
        return reservation if outcome is AdmitOutcome.ADMITTED else outcome

    async def queued(self, *, job_deadline_s: float = DAY_S) -> uuid.UUID:
        """Return the id of a job that was just accepted."""
        reservation = await self.reserve()
        assert isinstance(reservation, Reservation)
        assert await self.jobs.accept(
            job_id=reservation.job_id,
            upload_token=reservation.upload_token,
            source=SOURCE,
            job_deadline_s=job_deadline_s,
        )
        return reservation.job_id

    async def claimed(self, job_id: uuid.UUID | None = None, *, lease_s: float = 30.0) -> Claim:
        """Return a claim on a job (a new one unless given)."""
        claim = await self.jobs.claim(
            job_id or await self.queued(), worker_id=uuid.uuid4(), lease_s=lease_s, params=TransformParams()
        )
        assert claim is not None
        return claim

    async def row(self, job_id: uuid.UUID) -> dict[str, Any]:
        row = await self.raw.fetchrow("SELECT * FROM spillway.jobs WHERE id = $1", job_id)
        assert row is not None
        return dict(row)

    async def gate(self) -> dict[str, int]:
        row = await self.raw.fetchrow("SELECT jobs_held, staging_bytes, failed_source_bytes FROM spillway.gate")
        assert row is not None
        return dict(row)

    async def announcements(self, job_id: uuid.UUID) -> int:
        return int(await self.raw.fetchval("SELECT count(*) FROM spillway.outbox WHERE job_id = $1", job_id))

    async def assert_balanced(self) -> None:
        """The books equal the sums of the flags on the rows."""
        sums = await self.raw.fetchrow(
            """SELECT count(*) FILTER (WHERE holds_place) AS jobs_held,
                coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'staging'), 0)::bigint AS staging_bytes,
                coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'failed_source'), 0)::bigint AS failed_source_bytes
            FROM spillway.jobs"""
        )
        assert sums is not None
        assert dict(sums) == await self.gate()
        drifted = await self.raw.fetch(
            """SELECT owner FROM spillway.owners o WHERE o.jobs_held <> (
                SELECT count(*) FROM spillway.jobs j WHERE j.owner = o.owner AND j.holds_place)"""
        )
        assert drifted == []

    async def empty(self) -> None:
        """Start from nothing."""
        await self.raw.execute(
            """TRUNCATE spillway.jobs, spillway.outbox, spillway.images, spillway.processes, spillway.owners;
            UPDATE spillway.gate SET jobs_held = 0, staging_bytes = 0, failed_source_bytes = 0"""
        )
