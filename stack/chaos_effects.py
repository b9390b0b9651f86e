"""Promises about effects: one per job, by the holder of the newest token, equal to a single run, never undone. Pure.

Invariant: what happened is read from the database's journal, the wire and the store; the workers' words only say which
process settled under which token.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from contracts.jobs import JobState
from contracts.keys import job_prefix, original_key
from stack.chaos_history import FaultSpan, JobRow, Picture, Step
from stack.chaos_view import ACCEPTED, UPLOAD, View

_WORKING = (JobState.PROCESSING, JobState.CANCELLING)
#: What a client may be told of a job that it was shown ready; nothing, when the answer names no state.
_AS_GOOD_AS_READY = ("", JobState.READY, JobState.EXPIRED)
#: Servers without whose answer an attempt cannot go on.
_SERVERS = ("postgres", "rabbit", "s3")
#: Actions that take a server away for everybody, from their beginning to their end.
_OUTAGES = ("kill", "freeze", "refuse")
#: An attempt that fails for the store may be settled this long after the fault, when the database is slow as well.
SETTLE_S_MAX = 20.0
#: What failed just before an outage may be settled this long into it.
OUTAGE_GRACE_S = 1.0


def duplicated(view: View) -> Iterator[str]:
    """Yield jobs that ended more than once in one life, keys with several jobs, and images with several originals."""
    for job_id, steps in view.steps_of.items():
        ends_count = 0
        for step in steps:
            if step.state_before == JobState.FAILED and step.state_after == JobState.QUEUED:
                ends_count = 0  # a replay: a new life
            ends_count += step.settles
            if step.settles and ends_count > 1:
                yield f"{job_id} ended {ends_count} times, at last {step.state_after}"
    yield from _several_jobs_for_a_key(view)


def _several_jobs_for_a_key(view: View) -> Iterator[str]:
    jobs: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for call in view.history.calls:
        if call.what == UPLOAD and call.key and call.status == ACCEPTED:
            jobs[call.owner, call.key].add(call.job_id)
    for (owner, key), found in jobs.items():
        if len(found) > 1:
            yield f"key {key} of {owner} stands for {len(found)} jobs: {', '.join(sorted(found))}"


def unfenced(view: View) -> Iterator[str]:
    """Yield settles that were carried out under another token than the newest."""
    for settle in view.history.settles:
        if not settle.state:
            continue
        steps = view.steps_of.get(settle.job_id, [])
        if not any(_made_by(step, settle.claim_token) and step.state_after == settle.state for step in steps):
            yield f"{settle.process} settled {settle.job_id} with token {settle.claim_token}, which was not the newest"


def _made_by(step: Step, claim_token: int) -> bool:
    return step.state_before in _WORKING and step.state_after not in _WORKING and step.claim_token == claim_token


def acked_early(view: View) -> Iterator[str]:
    """Yield settles of workers that held no delivery of the job any more: it had been acknowledged before."""
    received: defaultdict[tuple[str, UUID], list[tuple[float, float | None]]] = defaultdict(list)
    for row in view.history.deliveries:
        if row.job_id is not None:
            received[row.process, row.job_id].append((row.delivered_s, row.acked_s))
    for settle in view.history.settles:
        step = next((s for s in view.steps_of.get(settle.job_id, []) if _made_by(s, settle.claim_token)), None)
        if step is None or not settle.state:
            continue
        ours = [acked_s for at_s, acked_s in received[settle.process, settle.job_id] if at_s <= step.at_s]
        if ours and all(acked_s is not None and acked_s < step.at_s for acked_s in ours):
            yield f"{settle.process} acknowledged {settle.job_id} before it had settled it"


def undone(view: View) -> Iterator[str]:
    """Yield results that changed after a job was ready, in the database or before a client's eyes."""
    for job_id, steps in view.steps_of.items():
        for step in steps:
            if step.state_before == JobState.READY and step.state_after not in (JobState.EXPIRED, None):
                yield f"{job_id} was ready and changed (to {step.state_after})"
    yield from _undone_before_eyes(view)


def _undone_before_eyes(view: View) -> Iterator[str]:
    known_s: dict[str, float] = {}
    for call in sorted(view.history.calls, key=lambda call: call.begun_s):
        if call.begun_s >= known_s.get(call.job_id, math.inf) and call.state not in _AS_GOOD_AS_READY:
            yield f"{call.job_id} was shown ready, then {call.state}"
        if call.job_id and call.state == JobState.READY:
            ended_s = call.begun_s + call.took_s
            known_s[call.job_id] = min(ended_s, known_s.get(call.job_id, math.inf))


def replaced_by_older(view: View) -> Iterator[str]:
    """Yield images whose pointer went down, or does not stand on their newest ready version."""
    for move in view.history.pointer_steps:
        if move.version_after < move.version_before:
            yield f"image {move.image_id} went from version {move.version_before} to {move.version_after}"
    newest: defaultdict[UUID, list[JobRow]] = defaultdict(list)
    for job in view.history.jobs:
        if job.state == JobState.READY:
            newest[job.image_id].append(job)
    for pointer in view.history.pointers:
        ready = newest.get(pointer.image_id)
        if ready and pointer.ready_job_id != max(ready, key=lambda job: job.image_version).job_id:
            yield f"image {pointer.image_id} does not show its newest version"


def unequal_outputs(view: View) -> Iterator[str]:
    """Yield objects that are not what one undisturbed run makes, missing ones, and those that nobody needs."""
    objects = view.history.objects
    if not objects:
        return
    wanted: dict[str, str] = {}
    for job in view.history.jobs:
        picture = view.picture_of(job)
        if job.state == JobState.READY and picture is not None:
            yield from _unequal_row(job, picture)
            wanted |= {**job.variants, original_key(job.image_id): picture.sha256}
    for key, digest in wanted.items():
        if objects.get(key) != digest:
            yield f"{key} is {'not what it should be' if key in objects else 'not there'}"
    for key in objects.keys() - wanted.keys():
        if key.startswith("images/"):
            yield f"{key} belongs to nothing that is ready"


def _unequal_row(job: JobRow, picture: Picture) -> Iterator[str]:
    prefix = job_prefix(job.image_id, job.job_id)
    if {key.rpartition("/")[2]: digest for key, digest in job.variants.items()} != dict(picture.variants):
        yield f"{job.job_id}: the row's variants are not those of a single run"
    if not all(key.startswith(prefix) for key in job.variants):
        yield f"{job.job_id}: a variant has the key of another job"


def wasted_attempts(view: View) -> Iterator[str]:
    """Yield attempts that a valid picture's job spent on an outage, or on nothing that was done to the store."""
    for job in view.accepted_jobs:
        picture = view.picture_of(job)
        if picture is None or not picture.valid:
            continue
        for step in view.steps_of[job.job_id]:
            if step.attempts_after > step.attempts_before:
                yield from _wasted(view, step)


def _wasted(view: View, step: Step) -> Iterator[str]:
    near = view.faults_at(step.at_s - SETTLE_S_MAX, step.at_s, targets=_SERVERS)
    away = [fault for fault in near if _is_away(fault, step.at_s)]
    if not near:
        yield f"{step.job_id} spent an attempt, and no server was disturbed"
    elif len(away) == len(near):
        names = ", ".join(sorted({fault.target for fault in away}))
        yield f"{step.job_id} spent an attempt while {names} was away"


def _is_away(fault: FaultSpan, at_s: float) -> bool:
    return fault.action in _OUTAGES and fault.begun_s + OUTAGE_GRACE_S < at_s < fault.back_s
