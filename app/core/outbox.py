"""The outbox's door: announcements are leased, published elsewhere, then finished or returned by their token."""

from dataclasses import dataclass
from uuid import UUID

from app.core.postgres import Database, load_queries


@dataclass(frozen=True, slots=True)
class Announcement:
    """One outbox row under a relay's lease; `tries` counts this one."""

    id: int
    job_id: UUID
    tries: int
    pipeline_version: int  #: the job's


class Outbox:
    """Reads and settles announcements."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = load_queries("outbox.sql")

    async def lease(self, *, lease_token: UUID, lease_s: float, rows_max: int) -> list[Announcement]:
        """Take due announcements, oldest first; other relays skip them until the lease ends."""
        rows = await self._db.many(
            self._sql.lease_announcements, lease_token=lease_token, lease_s=lease_s, rows_max=rows_max
        )
        return sorted((Announcement(*row) for row in rows), key=lambda announcement: announcement.id)

    async def finish(self, ids: list[int], *, lease_token: UUID) -> int:
        """Delete confirmed announcements; returns how many were still ours."""
        return len(await self._db.many(self._sql.finish_announcements, ids=ids, lease_token=lease_token))

    async def give_back(self, ids: list[int], *, lease_token: UUID, base_s: float, cap_s: float) -> int:
        """Return announcements that the broker did not confirm, each after a pause that grows with its tries."""
        rows = await self._db.many(
            self._sql.return_announcements, ids=ids, lease_token=lease_token, base_s=base_s, cap_s=cap_s
        )
        return len(rows)
