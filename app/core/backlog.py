"""The janitor's statements: bounded sweeps that any number of janitors may run at once, and what they count."""

from dataclasses import dataclass
from uuid import UUID

from app.core.postgres import Database, load_queries
from app.core.registry import DeadReason
from contracts.jobs import JobState
from contracts.limits import DEATHS_MAX


@dataclass(frozen=True, slots=True)
class Rescued:
    """One job whose lease had run out, where it went, and its deaths."""

    job_id: UUID
    state: JobState
    deaths: int


@dataclass(frozen=True, slots=True)
class Census:
    """What the broker should hold: published jobs waiting, published jobs not final, what workers say they hold.

    `overtaken` is true when a job published a lease later was claimed before one that still waits.
    """

    waiting: int
    in_delivery: int
    unacked: int
    overtaken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What a scrape shows: unfinished jobs by state, the admission books, capacity, ages.

    Ages are seconds, 0 if there is none: of the oldest job that no worker has started, of the oldest due announcement,
    and of the oldest snapshot of a client.
    """

    uploading: int
    queued: int
    processing: int
    cancelling: int
    jobs_held: int
    staging_bytes: int
    jobs_per_s: float
    unstarted_s: float
    unpublished_s: float
    snapshot_s: float


class Backlog:
    """Sweeps over jobs, at most `rows_max` rows each."""

    def __init__(self, database: Database, *, rows_max: int) -> None:
        self._db = database
        self._sql = load_queries("janitor.sql")
        self._rows_max = rows_max

    async def rescue(self) -> list[Rescued]:
        """Requeue, bury or cancel the jobs whose lease has run out."""
        rows = await self._db.many(self._sql.rescue, deaths_max=DEATHS_MAX, rows_max=self._rows_max)
        return [Rescued(row["job_id"], JobState(row["next_state"]), row["deaths"]) for row in rows]

    async def drop_stale_uploads(self) -> list[UUID]:
        """Drop the reservations whose lease has run out; their places go back."""
        return [row["job_id"] for row in await self._db.many(self._sql.drop_stale_uploads, rows_max=self._rows_max)]

    async def fail_overdue(self) -> list[UUID]:
        """End queued jobs past their deadline."""
        return [row["job_id"] for row in await self._db.many(self._sql.fail_overdue, rows_max=self._rows_max)]

    async def staging_to_clear(self) -> list[tuple[UUID, JobState]]:
        """Return jobs whose staging object is no longer needed."""
        rows = await self._db.many(self._sql.staging_to_clear, rows_max=self._rows_max)
        return [(row["id"], JobState(row["state"])) for row in rows]

    async def give_bytes_back(self, job_ids: list[UUID]) -> int:
        """Take the bytes of these jobs, whose staging objects are gone, from the book; returns how many jobs."""
        return int(await self._db.value(self._sql.give_bytes_back, job_ids=job_ids))

    async def dropped_to_delete(self, *, lease_s: float) -> list[UUID]:
        """Return dropped reservations swept once, a lease ago."""
        rows = await self._db.many(self._sql.dropped_to_delete, lease_s=lease_s, rows_max=self._rows_max)
        return [row["id"] for row in rows]

    async def delete_dropped(self, job_ids: list[UUID]) -> int:
        """Delete the rows of dropped reservations; returns how many."""
        return len(await self._db.many(self._sql.delete_dropped, job_ids=job_ids))

    async def census(self, *, seen_s: float, lease_s: float) -> Census:
        """Count what should be in delivery."""
        row = await self._db.one(self._sql.delivery_census, seen_s=seen_s, lease_s=lease_s)
        return Census(0, 0, 0, overtaken=False) if row is None else Census(*row)

    async def announce_again(self, *, quiet_s: float, rows_max: int) -> list[UUID]:
        """Write the oldest unclaimed published jobs to the outbox once more, each at doubling intervals."""
        rows = await self._db.many(self._sql.announce_again, quiet_s=quiet_s, rows_max=rows_max)
        return [row["job_id"] for row in rows]

    async def announce_one(self, job_id: UUID) -> bool:
        """Announce a job again whose message the broker gave up on; False when the row has nothing to do."""
        return bool(await self._db.value(self._sql.announce_one, job_id=job_id))

    async def note_dead_letter(
        self, *, body_sha256: str, body_bytes: int, reason: DeadReason, job_id: UUID | None
    ) -> int:
        """Write down what the broker gave up on, without its bytes; returns how often an equal one has been seen."""
        seen = await self._db.value(
            self._sql.note_dead_letter,
            body_sha256=body_sha256,
            body_bytes=body_bytes,
            reason=reason.value,
            job_id=job_id,
        )
        return int(seen)

    async def gauges(self) -> Gauges:
        """Return what a scrape shows.

        Raises:
            LookupError: the gate's row is missing.
        """
        row = await self._db.one(self._sql.gauges)
        if row is None:
            raise LookupError("the gate row is missing: `spillway doctor --mend` writes it anew")
        return Gauges(**dict(row))
