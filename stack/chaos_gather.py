"""Puts the history of a run together: what its clients saw and what was done to it, and what the servers tell.

Invariant: called when everything is at rest, or has been given up waiting for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.keys import image_prefix, staging_key
from stack.chaos_collect import Watch, settles_of
from stack.chaos_history import Call, FaultSpan, History, JobRow, Picture
from stack.chaos_rig import Rig
from stack.state import LOG_FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What only the one who ran it knows."""

    jobs_bound: int | None
    load_ended_s: float
    pictures: tuple[Picture, ...]
    calls: tuple[Call, ...]
    faults: tuple[FaultSpan, ...]
    whole_store: bool = True  #: the store holds nothing but this run's: what belongs to nothing is looked for


async def gather(watch: Watch, rig: Rig, seen: Seen) -> History:
    """Return everything that the checker judges."""
    jobs = await watch.jobs()
    return History(
        jobs_bound=seen.jobs_bound,
        load_ended_s=seen.load_ended_s,
        pictures=seen.pictures,
        calls=seen.calls,
        faults=seen.faults,
        jobs=jobs,
        settles=tuple(settles_of(rig.servers.folder / LOG_FOLDER, {job.job_id for job in jobs})),
        steps=await watch.steps(),
        pointer_steps=await watch.pointer_steps(),
        deliveries=rig.deliveries.rows(),
        pointers=await watch.pointers(),
        books=await watch.books(),
        objects=await watch.stored(_prefixes(jobs, whole_store=seen.whole_store)),
        exits=tuple(rig.exits),
    )


def _prefixes(jobs: Sequence[JobRow], *, whole_store: bool) -> list[str]:
    if whole_store:
        return ["images/", "staging/"]
    return [prefix for job in jobs for prefix in (image_prefix(job.image_id), staging_key(job.job_id))]
