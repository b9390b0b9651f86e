"""Erasing an image: every job of it ends and expires first, then every copy goes.

Invariant: state first, objects next. A crash in between leaves expired jobs that the janitor sweeps, and it sweeps
them once more a lease later, after a worker that was asleep could still have written.
"""

from uuid import UUID

from app.core.jobstore import EraseOutcome, JobStore
from app.core.jobviews import JobViews
from app.core.objects import DELETE_KEYS_MAX, ObjectStore
from contracts.keys import image_prefix, inbox_key, staging_key

#: An image has four objects for each of its jobs at most; more listings than this are a fault.
LISTINGS_MAX = 16


class Erasure:
    """Erases images for their owners."""

    def __init__(self, *, jobs: JobStore, views: JobViews, store: ObjectStore) -> None:
        self._jobs = jobs
        self._views = views
        self._store = store

    async def erase(self, image_id: UUID, *, owner: str) -> EraseOutcome | None:
        """Cancel what is unfinished and delete everything; None when the owner has no such image.

        `ERASED` only when no copy is left; `STOPPING` while a worker holds a job. Either may be asked for again.

        Raises:
            DatabaseUnavailableError: ask again.
            StoreUnavailableError: nothing is shown any more, but copies may be left: ask again, or leave the rest
                to the janitor.
        """
        outcome = await self._jobs.erase_image(image_id, owner=owner)
        if outcome is EraseOutcome.ERASED:
            await self._delete_copies(image_id, await self._views.jobs_of_image(image_id, owner=owner))
        return outcome

    async def _delete_copies(self, image_id: UUID, job_ids: list[UUID]) -> None:
        uploads = [key(job_id) for job_id in job_ids for key in (staging_key, inbox_key)]
        for start in range(0, len(uploads), DELETE_KEYS_MAX):
            await self._store.delete(uploads[start : start + DELETE_KEYS_MAX])
        for _ in range(LISTINGS_MAX):
            found = await self._store.list_keys(image_prefix(image_id), keys_max=DELETE_KEYS_MAX)
            if not found:
                return
            await self._store.delete(found)
