"""What can come of one attempt at a job: a closed set of values, so that no exception steers a settle or an ack."""

from dataclasses import dataclass

from app.core.jobstore import StoredVariant
from contracts.errors import FailureCode


@dataclass(frozen=True, slots=True)
class Done:
    """Original and variants are stored."""

    variants: tuple[StoredVariant, ...]
    cpu_s: float  #: of the child, for this image


@dataclass(frozen=True, slots=True)
class Rejected:
    """Final: another attempt would end the same."""

    code: FailureCode


@dataclass(frozen=True, slots=True)
class Retry:
    """A passing fault: try again later, an attempt is spent. `reason` goes to the log and the metrics."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandBack:
    """Not this job's fault (a server is away, or this worker stops): back to the queue, nothing is spent."""

    reason: str
    server_away: bool = False  #: nothing else can be done either until a probe succeeds


@dataclass(frozen=True, slots=True)
class Lost:
    """The claim is no longer ours: nothing may be written any more."""


Outcome = Done | Rejected | Retry | HandBack | Lost
