"""The states of a job and every allowed transition; the database's CHECKs and the docs restate this table."""

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    """Where a job is; the row in PostgreSQL is the only truth."""

    UPLOADING = "uploading"  #: a reservation: place and bytes are held, the body is on its way; shown to nobody
    DROPPED = "dropped"  #: the reservation ended without a job; never shown
    QUEUED = "queued"  #: durably accepted, waiting for a worker (or for its retry's due time)
    PROCESSING = "processing"  #: claimed by one worker under a lease and a fencing token
    CANCELLING = "cancelling"  #: asked to stop; the worker has not confirmed yet
    READY = "ready"  #: variants and original are published
    FAILED = "failed"  #: final, with a code of the closed set
    CANCELLED = "cancelled"  #: final, by its owner's wish
    EXPIRED = "expired"  #: retention is over; answers 410 until the row goes too


#: States in which nothing more happens to the work itself (a replay of a failed job starts anew).
FINAL = frozenset({JobState.READY, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})


class Event(StrEnum):
    """What can happen to a job."""

    ACCEPT = "accept"
    DROP = "drop"
    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    HAND_BACK = "hand_back"
    RESCUE = "rescue"
    BURY = "bury"
    OVERDUE = "overdue"
    CANCEL = "cancel"
    STOP = "stop"
    REPLAY = "replay"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class Transition:
    """One arrow: `state` and `event` give `next_state`; `statement` is the SQL block that makes it so.

    `log_event` is the dotted name under which the role that did it logs it.
    """

    state: JobState
    event: Event
    next_state: JobState
    statement: str
    log_event: str


_S, _E = JobState, Event

TRANSITIONS: tuple[Transition, ...] = (
    Transition(_S.UPLOADING, _E.ACCEPT, _S.QUEUED, "accept", "job.accepted"),
    Transition(_S.UPLOADING, _E.DROP, _S.DROPPED, "drop_upload", "job.dropped"),
    Transition(_S.QUEUED, _E.CLAIM, _S.PROCESSING, "claim", "job.claimed"),
    Transition(_S.QUEUED, _E.CANCEL, _S.CANCELLED, "cancel", "job.cancelled"),
    Transition(_S.QUEUED, _E.OVERDUE, _S.FAILED, "fail_overdue", "job.overdue"),
    Transition(_S.PROCESSING, _E.COMPLETE, _S.READY, "complete", "job.ready"),
    Transition(_S.PROCESSING, _E.FAIL, _S.FAILED, "fail", "job.failed"),
    Transition(_S.PROCESSING, _E.RETRY, _S.QUEUED, "retry", "job.retried"),
    Transition(_S.PROCESSING, _E.HAND_BACK, _S.QUEUED, "retry", "job.handed_back"),
    Transition(_S.PROCESSING, _E.RESCUE, _S.QUEUED, "rescue", "job.rescued"),
    Transition(_S.PROCESSING, _E.BURY, _S.FAILED, "rescue", "job.worker_lost"),
    Transition(_S.PROCESSING, _E.CANCEL, _S.CANCELLING, "cancel", "job.cancelling"),
    Transition(_S.CANCELLING, _E.STOP, _S.CANCELLED, "complete", "job.cancelled"),
    Transition(_S.CANCELLING, _E.RESCUE, _S.CANCELLED, "rescue", "job.cancelled"),
    Transition(_S.FAILED, _E.REPLAY, _S.QUEUED, "replay", "job.replayed"),
    Transition(_S.READY, _E.EXPIRE, _S.EXPIRED, "expire_due", "job.expired"),
    Transition(_S.FAILED, _E.EXPIRE, _S.EXPIRED, "expire_due", "job.expired"),
    Transition(_S.CANCELLED, _E.EXPIRE, _S.EXPIRED, "expire_due", "job.expired"),
)
