"""The janitor's retention: messages and jobs past their time, what they left in the store, and at last their rows.

Invariant: state first, objects next, rows last. Every step is bounded and may be repeated, by any number of janitors,
and after a death at any point; what is gone already is no error.
"""

import asyncio
from uuid import UUID

from app.core import telemetry
from app.core.backlog import Backlog
from app.core.objects import DELETE_KEYS_MAX, ObjectStore
from app.core.retention import Gone, Retention
from contracts.keys import inbox_key, job_prefix, original_key, staging_key

log = telemetry.logger()

EXPIRED = telemetry.counter("janitor_expired", "What was kept as long as was said.", "kind")
SWEPT = telemetry.counter("janitor_swept_objects", "Objects of cancelled and expired jobs deleted.")
PURGED = telemetry.counter("janitor_purged_sources", "Sources of failed jobs deleted for their budget of bytes.")

#: Prefixes listed at once.
LISTINGS_AT_ONCE = 4
#: Keys of a job outside its prefix: staging, inbox and the image's original.
_OTHER_KEYS = 3
#: A job has three variants for each pipeline digest; one with more keys than fit one delete is swept again.
KEYS_OF_JOB_MAX = DELETE_KEYS_MAX // LISTINGS_AT_ONCE - _OTHER_KEYS


class Cleaner:
    """The steps of one janitor."""

    def __init__(self, *, retention: Retention, backlog: Backlog, objects: ObjectStore) -> None:
        self._retention = retention
        self._backlog = backlog
        self._objects = objects

    async def expire(self) -> None:
        """End the time of messages and jobs: from now on they answer 410, or 404."""
        for message_id in await self._retention.expire_messages():
            EXPIRED.labels("message").inc()
            log.info("message.expired", message_id=str(message_id))
        for job_id in await self._retention.expire_due():
            EXPIRED.labels("job").inc()
            log.info("job.expired", job_id=str(job_id))

    async def sweep_gone(self) -> None:
        """Delete what cancelled and expired jobs left, then give bytes back: in this order a crash repeats it."""
        found = await self._retention.gone_to_sweep()
        for start in range(0, len(found), LISTINGS_AT_ONCE):
            # Noted batch by batch: what a store that fails now and then let through is not done again.
            swept = await self._delete_objects(found[start : start + LISTINGS_AT_ONCE])
            await self._backlog.give_bytes_back(swept)
            await self._retention.note_objects_gone(swept)

    async def purge_failed_sources(self) -> None:
        """Delete the oldest failed jobs' sources over the budget, and what lies where a source was found missing.

        Marked first: a replay from then on says that the source is missing. A crash in between repeats the rest.
        """
        job_ids = await self._retention.claim_purges()
        if not job_ids:
            return
        await self._objects.delete([staging_key(job_id) for job_id in job_ids])
        await self._backlog.give_bytes_back(job_ids)
        PURGED.inc(len(job_ids))
        log.info("janitor.sources_purged", jobs=len(job_ids))

    async def delete_rows(self) -> None:
        """Delete rows that have answered long enough, keys past their lifetime, and what was noted long ago."""
        await self._retention.delete_expired()
        await self._retention.delete_expired_keys()
        await self._retention.delete_old_audit()
        await self._retention.delete_old_dead_letters()

    async def _delete_objects(self, batch: list[Gone]) -> list[UUID]:
        """Return the jobs of a batch of which nothing is left."""
        listed = await asyncio.gather(
            *(self._objects.list_keys(job_prefix(job.image_id, job.job_id), keys_max=KEYS_OF_JOB_MAX) for job in batch)
        )
        keys = [key for found in listed for key in found]
        keys += [key(job.job_id) for job in batch for key in (staging_key, inbox_key)]
        keys += [original_key(job.image_id) for job in batch if job.image_gone]
        await self._objects.delete(keys)
        SWEPT.inc(sum(len(found) for found in listed))
        return [job.job_id for job, found in zip(batch, listed, strict=True) if len(found) < KEYS_OF_JOB_MAX]
