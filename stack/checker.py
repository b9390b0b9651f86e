"""Judges the history of a run: every promise is one pure function from rows to what broke it.

Invariant: no I/O, no clock. It believes the database's journal, the wire and the bytes in the store before anything
that the code says of itself. A history in which no job became ready shows nothing, and does not hold.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from stack import chaos_effects, chaos_promises
from stack.chaos_history import History
from stack.chaos_view import View


class Invariant(StrEnum):
    """Names of the promises."""

    ACCEPTED_IS_FINAL = "accepted_is_final"  #: accepted = ready + failed + cancelled
    VALID_IS_READY = "valid_is_ready"
    INVALID_IS_FAILED = "invalid_is_failed"
    ONE_EFFECT = "one_effect"
    FENCED = "fenced"  #: only the holder of the newest token settles
    ACKED_AFTER_SETTLE = "acked_after_settle"
    READY_NEVER_UNDONE = "ready_never_undone"
    NEWER_NEVER_REPLACED = "newer_never_replaced"
    BOUND_HELD = "bound_held"
    BOOKS_BALANCED = "books_balanced"
    OUTPUTS_EQUAL = "outputs_equal"
    OUTAGE_IS_NO_ATTEMPT = "outage_is_no_attempt"
    ANSWERED = "answered"  #: no 5xx but 503, no hang, no silence without a fault at the API
    RECOVERED = "recovered"  #: from the end of each fault to the next settled job
    NOBODY_DIED = "nobody_died"  #: but by a fault's hand


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, with what shows it."""

    invariant: Invariant
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a run. Counts are of jobs; `slowest_recovery_s` is None where nothing was settled after a fault."""

    violations: tuple[Violation, ...]
    accepted: int
    ready: int
    failed: int
    cancelled: int
    lost: int
    duplicated_effects: int
    failed_valid: int
    faults: int
    overlap_peak: int
    slowest_answer_s: float
    slowest_recovery_s: float | None

    @property
    def holds(self) -> bool:
        """Whether every promise was kept, by a run that came to something."""
        return not self.violations and self.ready > 0

    @property
    def broken(self) -> frozenset[Invariant]:
        """Which promises were not."""
        return frozenset(violation.invariant for violation in self.violations)


Promise = Callable[[View], Iterator[str]]

PROMISES: dict[Invariant, Promise] = {
    Invariant.ACCEPTED_IS_FINAL: chaos_promises.lost,
    Invariant.VALID_IS_READY: chaos_promises.failed_valid,
    Invariant.INVALID_IS_FAILED: chaos_promises.wrongly_ended,
    Invariant.ONE_EFFECT: chaos_effects.duplicated,
    Invariant.FENCED: chaos_effects.unfenced,
    Invariant.ACKED_AFTER_SETTLE: chaos_effects.acked_early,
    Invariant.READY_NEVER_UNDONE: chaos_effects.undone,
    Invariant.NEWER_NEVER_REPLACED: chaos_effects.replaced_by_older,
    Invariant.BOUND_HELD: chaos_promises.over_bound,
    Invariant.BOOKS_BALANCED: chaos_promises.off_balance,
    Invariant.OUTPUTS_EQUAL: chaos_effects.unequal_outputs,
    Invariant.OUTAGE_IS_NO_ATTEMPT: chaos_effects.wasted_attempts,
    Invariant.ANSWERED: chaos_promises.ill_answered,
    Invariant.RECOVERED: chaos_promises.slow_to_recover,
    Invariant.NOBODY_DIED: chaos_promises.died,
}


def judge(history: History) -> Verdict:
    """Return the verdict on a run's history."""
    view = View(history)
    found = {name: list(promise(view)) for name, promise in PROMISES.items()}
    states = [job.state for job in view.accepted_jobs]
    return Verdict(
        violations=tuple(Violation(name, detail) for name, details in found.items() for detail in details),
        accepted=len(view.accepted_ids),
        ready=states.count("ready"),
        failed=states.count("failed"),
        cancelled=states.count("cancelled"),
        lost=len(found[Invariant.ACCEPTED_IS_FINAL]),
        duplicated_effects=len(found[Invariant.ONE_EFFECT]),
        failed_valid=len(found[Invariant.VALID_IS_READY]),
        faults=len(history.faults),
        overlap_peak=view.overlap_peak,
        slowest_answer_s=max((call.took_s for call in history.calls), default=0.0),
        slowest_recovery_s=_finite(max((view.recovery_s(fault) for fault in history.faults), default=math.inf)),
    )


def _finite(time_s: float) -> float | None:
    return time_s if math.isfinite(time_s) else None
