"""The register of live processes, and what admission and readiness read from it in one statement."""

import hashlib
import os
import platform
import uuid
from dataclasses import asdict, dataclass
from typing import Literal
from uuid import UUID

from app.core.postgres import Database, load_queries

Role = Literal["api", "relay", "worker", "janitor"]

#: A process counts as alive this many report intervals after it was last seen.
MISSED_REPORTS_MAX = 3
#: Dead processes stay in the register this long, for people who look.
KEEP_DEAD_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """What a process says of itself. `job_wall_s` and `job_cpu_s` are moving means, None before the first job."""

    broker_ok: bool = False
    slots: int = 0
    prefetch: int = 0
    unacked: int = 0
    job_wall_s: float | None = None
    job_cpu_s: float | None = None
    pipeline_versions: tuple[int, ...] = ()  #: those that a worker serves


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The system at one moment: books, capacity (jobs a second, 0 when never measured), live processes."""

    jobs_held: int
    staging_bytes: int
    failed_source_bytes: int
    slots: int
    jobs_per_s: float
    workers: int
    relays: int
    janitors: int
    read_only: bool = False  #: the database answers and takes no writes


class ProcessRegister:
    """One process's own entry, and the sums over all."""

    def __init__(self, database: Database, *, role: Role, report_interval_s: float) -> None:
        self._db = database
        self._sql = load_queries("processes.sql")
        self._role = role
        self.process_id: UUID = uuid.uuid4()
        #: A process not seen for this long is taken for dead.
        self.seen_s = report_interval_s * MISSED_REPORTS_MAX

    async def report(self, report: ProcessReport) -> None:
        """Write this process's entry."""
        await self._db.value(
            self._sql.report_process,
            id=self.process_id,
            role=self._role,
            host=host_id(),
            host_cores=float(len(os.sched_getaffinity(0))),
            **asdict(report),
        )

    async def forget(self) -> None:
        """Leave the register."""
        await self._db.value(self._sql.forget_process, id=self.process_id)

    async def forget_dead(self) -> int:
        """Delete entries of processes long dead; returns how many."""
        return len(await self._db.many(self._sql.forget_dead_processes, keep_s=KEEP_DEAD_S))

    async def estimate_capacity(self) -> tuple[int, float]:
        """Recompute and return (slots, jobs a second) from the live workers' reports."""
        row = await self._db.one(self._sql.estimate_capacity, seen_s=self.seen_s)
        return (0, 0.0) if row is None else (row["slots"], row["jobs_per_s"])

    async def snapshot(self) -> Snapshot:
        """Return the system's state as admission and readiness need it."""
        row = await self._db.one(self._sql.snapshot, seen_s=self.seen_s)
        if row is None:
            raise LookupError("the gate row is missing: `spillway doctor --mend` writes it anew")
        return Snapshot(**dict(row))


def host_id() -> str:
    """Return a stable name for this host that tells nothing of it."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]
