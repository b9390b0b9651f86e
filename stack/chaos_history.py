"""What happened in a run, as plain rows: what clients saw, what the database went through, what the store holds.

Invariant: no I/O and no judgement here. Times are seconds of this host's wall clock, which database, proxies and
clients share.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from contracts.jobs import JobState
from stack.chaos_tap import DeliveryRow

__all__ = [
    "Books",
    "Call",
    "DeliveryRow",
    "Exit",
    "FaultSpan",
    "History",
    "JobRow",
    "Picture",
    "PointerRow",
    "PointerStep",
    "Settle",
    "Step",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One of the files that are uploaded, and what one undisturbed run makes of it."""

    sha256: str
    valid: bool
    refused: bool = False  #: never becomes a job: the edge says so
    failure: str = ""  #: the code with which its job must fail
    variants: Mapping[str, str] = field(default_factory=dict)  #: file name → SHA-256


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request of one client; `status` is 0 without an answer."""

    what: str  #: upload, read, cancel, message
    begun_s: float
    took_s: float
    status: int
    code: str = ""
    owner: str = ""
    key: str = ""
    sha256: str = ""
    job_id: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of one job in the database's journal; states are None before the row and after it."""

    at_s: float
    job_id: UUID
    state_before: str | None
    state_after: str | None
    claim_token: int
    attempts_before: int
    attempts_after: int
    deaths: int
    held_before: bool
    held_after: bool
    admitted_s: float
    released_s: float | None
    result_changed: bool

    @property
    def settles(self) -> bool:
        """Whether a job ends with it."""
        return self.result_changed and self.state_after in (JobState.READY, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerStep:
    """One move of an image's pointer."""

    image_id: UUID
    version_before: int
    version_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """What one worker says of one of its settles; `state` is empty when it was refused."""

    process: str
    at_s: float
    job_id: UUID
    claim_token: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job at the end."""

    job_id: UUID
    image_id: UUID
    image_version: int
    owner: str
    state: str
    error_code: str | None
    claim_token: int
    attempts_spent: int
    deaths: int
    source_sha256: str | None
    holds_place: bool
    held_bytes: int
    bytes_book: str
    variants: Mapping[str, str] = field(default_factory=dict)  #: key in the store → SHA-256


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerRow:
    """Where one image's pointer stands at the end."""

    image_id: UUID
    ready_version: int
    ready_job_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The admission books at the end, and what the rows say that they should be."""

    jobs_held: int
    staging_bytes: int
    failed_source_bytes: int
    rows_held: int
    rows_staging_bytes: int
    rows_failed_source_bytes: int
    owners_off: int  #: owners whose share is not the sum of their rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpan:
    """One fault as it was carried out.

    From `begun_s` to `back_s` its target was away or disturbed; then it was brought back, until at `ended_s` it was
    there.
    """

    kind: str
    action: str
    target: str
    begun_s: float
    back_s: float
    ended_s: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A process that ended though no fault was on it."""

    process: str
    at_s: float
    code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything the checker judges."""

    jobs_bound: int | None
    load_ended_s: float
    pictures: tuple[Picture, ...]
    calls: tuple[Call, ...] = ()
    steps: tuple[Step, ...] = ()
    pointer_steps: tuple[PointerStep, ...] = ()
    settles: tuple[Settle, ...] = ()
    deliveries: tuple[DeliveryRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    pointers: tuple[PointerRow, ...] = ()
    books: Books | None = None
    objects: Mapping[str, str] = field(default_factory=dict)  #: key → SHA-256; empty when it was not read
    faults: tuple[FaultSpan, ...] = ()
    exits: tuple[Exit, ...] = ()

    def as_rows(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        return asdict(self)
