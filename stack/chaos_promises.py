"""Promises to clients: nothing lost, what is good becomes ready, the bound, answers, recovery. Pure; see `checker`."""

from collections.abc import Iterator

from contracts.jobs import FINAL, JobState
from stack.chaos_view import View

#: No answer takes longer, whatever was frozen or away meanwhile.
ANSWER_S_MAX = 30.0
#: From the end of a fault to the next settled job.
RECOVERY_S_MAX = 30.0
#: A connection that breaks this long after a fault at the API may still be its doing: a child starts anew.
API_AFTERMATH_S = 10.0

_UNANSWERED = 0
_SERVER_ERRORS = range(500, 600)
_UNAVAILABLE = 503


def lost(view: View) -> Iterator[str]:
    """Yield accepted jobs that are gone or not final."""
    for job_id in sorted(view.accepted_ids):
        job = view.jobs.get(job_id)
        if job is None:
            yield f"{job_id} was accepted and is gone"
        elif job.state not in FINAL:
            yield f"{job_id} is still {job.state} (claim {job.claim_token}, {job.deaths} deaths)"


def failed_valid(view: View) -> Iterator[str]:
    """Yield valid pictures whose job is final and not ready, but those that their owner wanted cancelled."""
    for job in view.accepted_jobs:
        picture = view.picture_of(job)
        if picture is None or not picture.valid or job.state not in FINAL:
            continue
        asked = job.state == JobState.CANCELLED and str(job.job_id) in view.cancel_asked
        if job.state != JobState.READY and not asked:
            yield f"{job.job_id} of a valid image ended {job.state} ({job.error_code})"


def wrongly_ended(view: View) -> Iterator[str]:
    """Yield jobs of pictures that nobody can decode, unless they failed with the right code; and unknown sources."""
    for job in view.accepted_jobs:
        picture = view.picture_of(job)
        if picture is None:
            yield f"{job.job_id} was made of a file that nobody sent"
        elif picture.refused:
            yield f"{job.job_id} was accepted, though its file is no image"
        elif not picture.valid and job.state == JobState.READY:
            yield f"{job.job_id} of a broken image ended ready"
        elif not picture.valid and job.state == JobState.FAILED and job.error_code != picture.failure:
            yield f"{job.job_id} of a broken image failed with {job.error_code} in place of {picture.failure}"


def over_bound(view: View) -> Iterator[str]:
    """Yield the peak of held places when it is above the bound."""
    bound = view.history.jobs_bound
    if bound is not None and view.overlap_peak > bound:
        yield f"{view.overlap_peak} places were held at once, at most {bound} may be"


def off_balance(view: View) -> Iterator[str]:
    """Yield books that are not the sums of the rows, and bytes held by what needs none."""
    books = view.history.books
    if books is not None:
        pairs = {
            "jobs held": (books.jobs_held, books.rows_held),
            "bytes in staging": (books.staging_bytes, books.rows_staging_bytes),
            "bytes of failed sources": (books.failed_source_bytes, books.rows_failed_source_bytes),
            "owners off": (books.owners_off, 0),
        }
        for what, (booked, summed) in pairs.items():
            if booked != summed:
                yield f"{what}: {booked} in the books, {summed} by the rows"
    for job in view.history.jobs:
        if job.state in FINAL and job.holds_place:
            yield f"{job.job_id} is {job.state} and holds a place"


def ill_answered(view: View) -> Iterator[str]:
    """Yield answers that no client should get: 5xx but 503, too late, or none without a fault at the API."""
    for call in view.history.calls:
        if call.status in _SERVER_ERRORS and call.status != _UNAVAILABLE:
            yield f"{call.what} was answered {call.status} {call.code}"
        elif call.took_s > ANSWER_S_MAX:
            yield f"{call.what} took {call.took_s:.1f} s"
        elif call.status == _UNANSWERED:
            until_s = call.begun_s + call.took_s
            if not view.faults_at(call.begun_s - API_AFTERMATH_S, until_s, targets=("api",)):
                yield f"{call.what} got no answer ({call.code}) with no fault at the API"


def slow_to_recover(view: View) -> Iterator[str]:
    """Yield faults after whose end no job was settled in time."""
    for fault in view.history.faults:
        took_s = view.recovery_s(fault)
        if fault.ended_s <= view.history.load_ended_s and took_s > RECOVERY_S_MAX:
            yield f"{fault.kind} on {fault.target}: the next job was settled {took_s:.1f} s after its end"


def died(view: View) -> Iterator[str]:
    """Yield processes that ended though nobody had ended them."""
    for gone in view.history.exits:
        yield f"{gone.process} ended with {gone.code}, and no fault was on it"
