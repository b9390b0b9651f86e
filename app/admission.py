"""Accept or refuse: pure decisions on the numbers of a snapshot, and the one small state that a process keeps of them.

Invariant: what is decided here only ever refuses. Whether an upload gets a place is decided exactly by `admit` in the
database, so a snapshot that is old by a fraction of a second can under-admit and never over-admit.
"""

import math
import random
from dataclasses import dataclass, field
from typing import Literal

from app.core.clock import Monotonic
from app.core.jobstore import AdmitOutcome, Bounds
from app.core.processes import Snapshot
from app.core.settings import Settings
from contracts.errors import ErrorCode, ServiceError
from contracts.limits import (
    BACKLOG_SLOTS_FACTOR,
    BACKLOG_TARGET_S,
    JOBS_BOUND_FLOOR,
    POLL_AFTER_S,
    RETRY_AFTER_JITTER,
    RETRY_AFTER_S_MAX,
    RETRY_AFTER_S_MIN,
)

Policy = Literal["none", "count"]

#: Jobs a second taken for granted of each slot (and with no slot at all, of the system) before anything is measured.
ASSUMED_JOBS_PER_S = 1.0
#: Returns are promised no further ahead than this: a longer horizon would move the backlog to the clients.
PROMISE_HORIZON_S = 10.0
#: A snapshot older than this, or than four of its intervals, tells nothing any more.
SNAPSHOT_AGE_S_MAX = 3.0
#: Owners at their share that a process remembers until its next snapshot; the others are asked about again.
FULL_OWNERS_MAX = 1000
#: Least wait said when the database does not answer.
OUTAGE_RETRY_AFTER_S = 4.0

_MESSAGES = {
    ErrorCode.BACKLOG_FULL: "The service has all the work it can finish in time.",
    ErrorCode.OWNER_LIMIT: "You have as much unfinished work here as one owner may have.",
    ErrorCode.STAGING_FULL: "The room for files that wait for processing is full.",
    ErrorCode.DEPENDENCY_UNAVAILABLE: "The database does not answer.",
}


def bounds_of(policy: Policy, *, snapshot: Snapshot, settings: Settings) -> Bounds:
    """Return what `admit` enforces under a policy.

    `none` bounds no jobs; every policy bounds the staging bytes and each owner's share.
    """
    return Bounds(
        jobs_max=None if policy == "none" else settings.admission_jobs_max or _self_sized_jobs(snapshot),
        staging_bytes_max=settings.admission_staging_bytes_max,
        owner_jobs_max=settings.admission_owner_jobs_max,
    )


def refusal_code(snapshot: Snapshot, *, bounds: Bounds, held_bytes: int, taken_jobs: int = 0) -> ErrorCode | None:
    """Return why an upload of `held_bytes` cannot be admitted, or None; `taken_jobs` were asked for since then."""
    if bounds.jobs_max is not None and snapshot.jobs_held + taken_jobs >= bounds.jobs_max:
        return ErrorCode.BACKLOG_FULL
    if bounds.staging_bytes_max is not None and snapshot.staging_bytes + held_bytes > bounds.staging_bytes_max:
        return ErrorCode.STAGING_FULL
    return None


def retry_after_s(snapshot: Snapshot, *, bounds: Bounds, ahead_jobs: float, rng: random.Random) -> int:
    """Return whole seconds until a place should be free for one more, behind `ahead_jobs` that were told to return.

    Spread by a quarter either way, so that clients refused together do not come back together.
    """
    over_jobs = 0 if bounds.jobs_max is None else max(0, snapshot.jobs_held - bounds.jobs_max)
    return spread_s((over_jobs + 1 + ahead_jobs) / drain_rate_per_s(snapshot), rng=rng)


def owner_retry_after_s(snapshot: Snapshot, *, owner_jobs_max: int, rng: random.Random) -> int:
    """Return whole seconds until one of an owner's `owner_jobs_max` jobs, spread over all that are held, has ended."""
    return spread_s(snapshot.jobs_held / owner_jobs_max / drain_rate_per_s(snapshot), rng=rng)


def spread_s(wait_s: float, *, rng: random.Random) -> int:
    """Return a wait in whole seconds, within the bounds of every `Retry-After`, spread by a quarter either way."""
    bounded_s = min(max(wait_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)
    return math.ceil(bounded_s * rng.uniform(1 - RETRY_AFTER_JITTER, 1 + RETRY_AFTER_JITTER))


def drain_rate_per_s(snapshot: Snapshot) -> float:
    """Return jobs a second that leave the system: measured, or assumed before anything was."""
    return snapshot.jobs_per_s or ASSUMED_JOBS_PER_S * max(1, snapshot.slots)


def poll_after_s(snapshot: Snapshot | None) -> int:
    """Return whole seconds until an unfinished job is worth a look: the time to work off all that is held."""
    if snapshot is None or not snapshot.jobs_per_s:
        return POLL_AFTER_S
    return math.ceil(min(max(snapshot.jobs_held / snapshot.jobs_per_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX))


def _self_sized_jobs(snapshot: Snapshot) -> int:
    by_capacity_jobs = int(snapshot.jobs_per_s * BACKLOG_TARGET_S)
    return max(JOBS_BOUND_FLOOR, BACKLOG_SLOTS_FACTOR * snapshot.slots, by_capacity_jobs)


@dataclass(slots=True, kw_only=True)
class _Since:
    """What has happened since the newest snapshot."""

    full: bool = False
    full_owners: set[str] = field(default_factory=set)
    too_many_bytes: int | None = None
    taken_jobs: int = 0
    unavailable: bool = False


@dataclass(slots=True)
class _Promises:
    """How many refused clients were told to come back and have not yet had their turn; drains with the system."""

    jobs: float = 0.0
    at_s: float = 0.0

    def add(self, *, now_s: float, rate_per_s: float) -> float:
        """Count one more and return how many are ahead of it."""
        ahead_jobs = max(0.0, self.jobs - (now_s - self.at_s) * rate_per_s)
        self.jobs, self.at_s = min(ahead_jobs + 1, PROMISE_HORIZON_S * rate_per_s), now_s
        return ahead_jobs


class Admission:
    """What one process knows of the books: the newest snapshot, and what has happened since."""

    def __init__(self, settings: Settings, *, monotonic_s: Monotonic, rng: random.Random) -> None:
        self._settings = settings
        self._now_s = monotonic_s
        self._rng = rng
        self._age_s_max = max(SNAPSHOT_AGE_S_MAX, 4 * settings.admission_snapshot_s)
        self._snapshot: Snapshot | None = None
        self._bounds = Bounds(jobs_max=None, staging_bytes_max=None)
        self._taken_at_s = 0.0
        self._promises = _Promises()
        self._since = _Since()

    def update(self, snapshot: Snapshot) -> None:
        """Take in a fresh snapshot: what was counted as full or away since the last one is asked anew."""
        self._snapshot, self._taken_at_s = snapshot, self._now_s()
        self._bounds = bounds_of(self._settings.admission_policy, snapshot=snapshot, settings=self._settings)
        self._since = _Since()

    @property
    def bounds(self) -> Bounds:
        """What `admit` is to enforce now."""
        return self._bounds

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, or None when it is too old to tell anything or the database has failed since."""
        if self._snapshot is None or self._since.unavailable or self._now_s() - self._taken_at_s > self._age_s_max:
            return None
        return self._snapshot

    @property
    def books(self) -> tuple[Snapshot, Bounds] | None:
        """The newest snapshot, however old, with its bounds; None before the first."""
        return None if self._snapshot is None else (self._snapshot, self._bounds)

    def refuse(self, *, owner: str, held_bytes: int) -> ServiceError | None:
        """Return the refusal of an upload, without a lock or a statement; None when `admit` is to be asked."""
        snapshot = self.snapshot
        if snapshot is None:
            return self.outage()
        if owner in self._since.full_owners:
            return self._owner_refusal(snapshot)
        if self._since.full:
            return self._refusal(ErrorCode.BACKLOG_FULL, snapshot)
        if self._since.too_many_bytes is not None and held_bytes >= self._since.too_many_bytes:
            return self._refusal(ErrorCode.STAGING_FULL, snapshot)
        code = refusal_code(snapshot, bounds=self._bounds, held_bytes=held_bytes, taken_jobs=self._since.taken_jobs)
        return None if code is None else self._refusal(code, snapshot)

    def refuse_crowd(self) -> ServiceError:
        """Return the refusal of an upload by a process that has as many in hand as it may."""
        return self._refusal(ErrorCode.BACKLOG_FULL, self.snapshot)

    def note_try(self) -> None:
        """Count a place as taken by an `admit` that is being asked, so that a burst does not queue at the gate row."""
        self._since.taken_jobs += 1

    def note_outcome(self, outcome: AdmitOutcome, *, owner: str, held_bytes: int) -> ServiceError | None:
        """Return the refusal that `admit` answered; None for a place, and for a key that somebody else had first.

        Until its next snapshot this process counts the gate as full; after an owner's share, for that owner only;
        after a key, for nobody.
        """
        if outcome is AdmitOutcome.ADMITTED:
            return None
        if outcome in (AdmitOutcome.KEY_TAKEN, AdmitOutcome.OWNER_LIMIT):
            self._since.taken_jobs = max(0, self._since.taken_jobs - 1)
        if outcome is AdmitOutcome.KEY_TAKEN:
            return None
        if outcome is AdmitOutcome.OWNER_LIMIT:
            if len(self._since.full_owners) < FULL_OWNERS_MAX:
                self._since.full_owners.add(owner)
            return self._owner_refusal(self._snapshot)
        if outcome is AdmitOutcome.BACKLOG_FULL:
            self._since.full = True
        else:
            self._since.too_many_bytes = min(held_bytes, self._since.too_many_bytes or held_bytes)
        return self._refusal(ErrorCode(outcome.value), self._snapshot)

    def note_outage(self) -> ServiceError:
        """Return the refusal for a database that did not answer; it counts as away until the next snapshot."""
        self._since.unavailable = True
        return self.outage()

    def outage(self) -> ServiceError:
        """Return the refusal for a database that does not answer."""
        return self._error(ErrorCode.DEPENDENCY_UNAVAILABLE, spread_s(OUTAGE_RETRY_AFTER_S, rng=self._rng))

    def _refusal(self, code: ErrorCode, snapshot: Snapshot | None) -> ServiceError:
        if snapshot is None:
            return self._error(code, spread_s(OUTAGE_RETRY_AFTER_S, rng=self._rng))
        ahead_jobs = self._promises.add(now_s=self._now_s(), rate_per_s=drain_rate_per_s(snapshot))
        wait_s = retry_after_s(snapshot, bounds=self._bounds, ahead_jobs=ahead_jobs, rng=self._rng)
        return self._error(code, wait_s)

    def _owner_refusal(self, snapshot: Snapshot | None) -> ServiceError:
        # No place was promised to anybody else by what one owner was told.
        owner_jobs_max = self._bounds.owner_jobs_max or 1
        if snapshot is None:
            return self._error(ErrorCode.OWNER_LIMIT, spread_s(OUTAGE_RETRY_AFTER_S, rng=self._rng))
        wait_s = owner_retry_after_s(snapshot, owner_jobs_max=owner_jobs_max, rng=self._rng)
        return self._error(ErrorCode.OWNER_LIMIT, wait_s)

    def _error(self, code: ErrorCode, wait_s: int) -> ServiceError:
        return ServiceError(code, _MESSAGES[code], retry_after_s=wait_s)
