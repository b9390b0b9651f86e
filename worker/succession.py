"""The janitor's steps for versions: parked jobs that somebody serves now, and objects that newer results have replaced.

Invariant: neither the original nor anything that the image's pointer names is deleted. What goes lies under the prefix
of a job whose version the pointer has left for good; the row says so first, and a crash in between repeats the rest.
"""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from app.core import telemetry
from app.core.objects import DELETE_KEYS_MAX, ObjectStore
from app.core.versions import Superseded, Versions
from contracts.keys import job_prefix

log = telemetry.logger()

UNPARKED = telemetry.counter("janitor_unparked", "Parked jobs announced, since a worker of their version is there.")
PARKED = telemetry.gauge("parked_jobs", "Queued jobs that wait for a worker of their pipeline version.")
SUPERSEDED = telemetry.counter("janitor_superseded_objects", "Objects deleted whose image has a newer result.")

#: Prefixes listed at once.
LISTINGS_AT_ONCE = 4
#: A job with more keys than this is swept again.
KEYS_OF_JOB_MAX = DELETE_KEYS_MAX // LISTINGS_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessionSettings:
    """A worker seen within `seen_s` is alive; replaced objects are kept `superseded_s`; rows bound one step."""

    seen_s: float
    superseded_s: float
    rows_max: int


class Succession:
    """The steps of one janitor."""

    def __init__(self, settings: SuccessionSettings, *, versions: Versions, objects: ObjectStore) -> None:
        self._settings = settings
        self._versions = versions
        self._objects = objects

    async def announce_parked(self) -> None:
        """Announce the parked jobs that a live worker serves."""
        announced = await self._versions.announce_parked(seen_s=self._settings.seen_s, rows_max=self._settings.rows_max)
        for job_id in announced:
            UNPARKED.inc()
            log.info("job.unparked", job_id=str(job_id))
        PARKED.set(await self._versions.count_parked())

    async def sweep_superseded(self) -> None:
        """Delete what newer results have replaced, once no link to it is valid any more."""
        found = await self._versions.claim_superseded(
            keep_s=self._settings.superseded_s, rows_max=self._settings.rows_max
        )
        for start in range(0, len(found), LISTINGS_AT_ONCE):
            swept = await self._delete_objects(found[start : start + LISTINGS_AT_ONCE])
            await self._versions.note_results_gone(swept)

    async def _delete_objects(self, batch: list[Superseded]) -> list[UUID]:
        """Return the jobs of a batch of which nothing is left."""
        listed = await asyncio.gather(
            *(self._objects.list_keys(job_prefix(job.image_id, job.job_id), keys_max=KEYS_OF_JOB_MAX) for job in batch)
        )
        keys = [key for found in listed for key in found]
        await self._objects.delete(keys)
        SUPERSEDED.inc(len(keys))
        return [job.job_id for job, found in zip(batch, listed, strict=True) if len(found) < KEYS_OF_JOB_MAX]
