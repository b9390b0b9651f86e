"""What is kept for how long: the statements of the janitor's retention sweeps. State first, objects next, rows last."""

from dataclasses import dataclass
from uuid import UUID

from app.core.postgres import Database, load_queries
from app.core.registry import AUDIT_ROWS_MAX, DEAD_LETTER_ROWS_MAX
from app.core.settings import AUDIT_KEEP_S, Settings

#: Sorts before every id that is drawn.
_BEFORE_ALL = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long things live, seconds; `failed_source_bytes_max` bounds the sources of failed jobs together."""

    ready_s: float
    failed_s: float
    cancelled_s: float
    message_s: float
    gone_s: float  #: an expired job answers 410 this long, then 404
    failed_source_bytes_max: int
    audit_s: float = AUDIT_KEEP_S  #: what was done by hand, and what the broker gave up on


def keep_settings(settings: Settings) -> Keep:
    """Return the retention's part of the settings."""
    return Keep(
        ready_s=settings.ready_keep_s,
        failed_s=settings.failed_keep_s,
        cancelled_s=settings.cancelled_keep_s,
        message_s=settings.message_keep_s,
        gone_s=settings.expired_answers_s,
        failed_source_bytes_max=settings.failed_source_bytes_max,
        audit_s=settings.audit_keep_s,
    )


@dataclass(frozen=True, slots=True)
class Gone:
    """A cancelled or expired job whose objects are to go; `image_gone`: no other job needs the image's original."""

    job_id: UUID
    image_id: UUID
    image_gone: bool


class Retention:
    """Bounded, idempotent sweeps, at most `rows_max` rows each."""

    def __init__(self, database: Database, *, keep: Keep, lease_s: float, rows_max: int) -> None:
        self._db = database
        self._sql = load_queries("retention.sql")
        self._keep = keep
        self._lease_s = lease_s
        self._rows_max = rows_max
        self._images_after = _BEFORE_ALL

    async def expire_due(self) -> list[UUID]:
        """Expire final jobs past their time; never one that a living message names."""
        rows = await self._db.many(
            self._sql.expire_due,
            ready_s=self._keep.ready_s,
            failed_s=self._keep.failed_s,
            cancelled_s=self._keep.cancelled_s,
            rows_max=self._rows_max,
        )
        return [row["job_id"] for row in rows]

    async def expire_messages(self) -> list[UUID]:
        """Delete messages past their time; what they named expires with them."""
        rows = await self._db.many(self._sql.expire_messages, keep_s=self._keep.message_s, rows_max=self._rows_max)
        return [row["message_id"] for row in rows]

    async def gone_to_sweep(self) -> list[Gone]:
        """Return jobs whose objects may be there: at once, a lease later for a late writer, and before the row goes."""
        return [Gone(*row) for row in await self._db.many(self._sql.gone_to_sweep, rows_max=self._rows_max)]

    async def note_objects_gone(self, job_ids: list[UUID]) -> int:
        """Note that the objects of these jobs were deleted, and when to look again; returns how many."""
        rows = await self._db.many(
            self._sql.note_objects_gone, job_ids=job_ids, lease_s=self._lease_s, gone_s=self._keep.gone_s
        )
        return len(rows)

    async def delete_expired(self) -> int:
        """Delete rows of expired jobs after their last sweep and their time of answering 410; returns how many."""
        rows = await self._db.many(self._sql.delete_expired, gone_s=self._keep.gone_s, rows_max=self._rows_max)
        await self._delete_left_images()
        return len(rows)

    async def _delete_left_images(self) -> None:
        """Delete images that lost their last jobs to two sweeps at once: a page of ids each time, round and round."""
        page = await self._db.one(
            self._sql.delete_left_images, after_id=self._images_after, lease_s=self._lease_s, rows_max=self._rows_max
        )
        more = page is not None and page["looked_at"] == self._rows_max
        self._images_after = page["last_id"] if page is not None and more else _BEFORE_ALL

    async def delete_expired_keys(self) -> int:
        """Delete keys past their lifetime; returns how many."""
        return len(await self._db.many(self._sql.delete_expired_keys, rows_max=self._rows_max))

    async def claim_purges(self) -> list[UUID]:
        """Mark the oldest failed jobs' sources over the budget, for good; return all that are marked and booked."""
        rows = await self._db.many(
            self._sql.claim_purges, bytes_max=self._keep.failed_source_bytes_max, rows_max=self._rows_max
        )
        return [row["job_id"] for row in rows]

    async def delete_old_audit(self) -> int:
        """Delete audit entries past their time or their number; returns how many."""
        rows = await self._db.many(
            self._sql.delete_old_audit, keep_s=self._keep.audit_s, kept_rows=AUDIT_ROWS_MAX, rows_max=self._rows_max
        )
        return len(rows)

    async def delete_old_dead_letters(self) -> int:
        """Delete dead letters past their time or their number, those last seen longest ago first; returns how many."""
        rows = await self._db.many(
            self._sql.delete_old_dead_letters,
            keep_s=self._keep.audit_s,
            kept_rows=DEAD_LETTER_ROWS_MAX,
            rows_max=self._rows_max,
        )
        return len(rows)
