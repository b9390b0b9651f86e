"""How many admits and settles a second the gate row carries: the price of a bound that is exact.

Each client reserves a place and gives it back, one statement after the other, on a database of its own. Both move the
hottest row of the system; nothing else is in the way. Client and database share the machine.
"""

import asyncio
import time
import uuid
from dataclasses import dataclass

from app.core.jobstore import AdmitOutcome, Bounds, JobStore, Reservation
from app.core.postgres import PoolSettings, open_database

CLIENTS = (1, 8, 64)
DURATION_S = 2.0
#: More clients than this wait for one another in the pool, as they do in a role.
CONNECTIONS_MAX = 32

_BOUNDS = Bounds(jobs_max=1_000_000, staging_bytes_max=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRate:
    """Admit-and-settle pairs a second with so many clients at once."""

    clients_count: int
    pairs_per_s: float


async def measure_gate(database_url: str, *, duration_s: float = DURATION_S) -> list[GateRate]:
    """Return the rates at 1, 8 and 64 clients on a migrated, otherwise idle database."""
    database = await open_database(
        PoolSettings(
            url=database_url,
            application_name="spillway-gate-rate",
            connections_max=CONNECTIONS_MAX,
            acquire_timeout_s=10.0,
            statement_timeout_s=5.0,
        )
    )
    try:
        jobs = JobStore(database)
        return [await _measure(jobs, clients_count=count, duration_s=duration_s) for count in CLIENTS]
    finally:
        await database.close()


async def _measure(jobs: JobStore, *, clients_count: int, duration_s: float) -> GateRate:
    until_s = time.monotonic() + duration_s
    started_s = time.monotonic()
    counts = await asyncio.gather(*(_pairs(jobs, until_s=until_s) for _ in range(clients_count)))
    return GateRate(clients_count=clients_count, pairs_per_s=sum(counts) / (time.monotonic() - started_s))


async def _pairs(jobs: JobStore, *, until_s: float) -> int:
    pairs_count = 0
    while time.monotonic() < until_s:
        reservation = Reservation(
            job_id=uuid.uuid4(), image_id=uuid.uuid4(), owner="gate-rate", upload_token=uuid.uuid4(), held_bytes=1
        )
        outcome = await jobs.admit(reservation, bounds=_BOUNDS, lease_s=60.0, deadline_s=60.0)
        if outcome is not AdmitOutcome.ADMITTED:
            raise RuntimeError(f"the gate of an idle database said {outcome}")
        await jobs.drop_upload(job_id=reservation.job_id, upload_token=reservation.upload_token)
        pairs_count += 1
    return pairs_count
