"""What the client says about a file and how long it waits: values and pure functions, no HTTP.

Invariant: a wait is never shorter than what the server asked for, and no state but the four final ones ends a job.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from contracts.images import VARIANT_SUFFIXES

#: Pauses between looks at a job, seconds, after the first one that the server named; the last one repeats.
POLL_PAUSES_S = (3.0, 5.0, 8.0, 15.0)
#: Every pause is drawn from this share of its length, so that clients started together drift apart.
PAUSE_JITTER = 0.2
#: Longer waits are as good as this one: a client's own deadline comes first.
RETRY_AFTER_S_MAX = 86_400.0


class Ending(StrEnum):
    """How a submission ended for this client."""

    ACCEPTED = "accepted"  #: accepted, and not waited for
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REFUSED = "refused"  #: refused to the last try, with a code that a later try may change
    REJECTED = "rejected"  #: refused with a code that no other try will change
    GONE = "gone"  #: accepted, and then not shown to us any more
    TIMED_OUT = "timed_out"  #: not final before the deadline; what was accepted goes on without us
    UNREACHABLE = "unreachable"  #: no answer; an upload may have been accepted all the same
    SERVER_ERROR = "server_error"  #: accepted, and then each look at the job was answered with an error
    SPOILED = "spoiled"  #: ready, but a result did not arrive as it was announced


#: States in which nothing more happens; any other one, known or not, is waited out.
FINAL_ENDINGS: Mapping[str, Ending] = {
    ending.value: ending for ending in (Ending.READY, Ending.FAILED, Ending.CANCELLED, Ending.EXPIRED)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long and how often this client tries."""

    deadline_s: float = 600.0  #: for one file, from the first try to the last saved result
    upload_tries_max: int = 5
    download_tries_max: int = 3
    poll_pauses_s: tuple[float, ...] = POLL_PAUSES_S  #: after the first pause, which the server names
    refused_pause_s: float = 2.0  #: after a refusal that names no wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What became of one file."""

    path: Path
    ending: Ending
    key: str  #: the Idempotency-Key of all its tries: another program may go on with it
    job_id: str | None = None
    code: str | None = None  #: the problem's or the job's error code
    message: str | None = None
    tries: int = 1
    replayed: bool = False  #: the server knew the key: an earlier try had been accepted
    job: Mapping[str, Any] = field(default_factory=dict)  #: the last answer about the job
    saved: tuple[Path, ...] = ()  #: results written, each with the announced SHA-256

    @property
    def ok(self) -> bool:
        """Whether the file is where it was wanted: accepted, or ready when that was waited for."""
        return self.ending in (Ending.ACCEPTED, Ending.READY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What has just become of a file, for people who watch."""

    path: Path
    text: str
    over: bool = False  #: nothing more comes for this file


OnProgress = Callable[[Progress], None]


def checked_url(url: str) -> str:
    """Return an address as it is, when something can be sent there.

    Raises:
        ValueError: nothing can; the message says why.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{url!r} must begin with http:// or https://")
    if not host or port == 0 or " " in url or not url.isprintable():
        raise ValueError(f"{url!r} names no host and port that can be reached")
    if parts.username is not None:
        raise ValueError("the address must name no user: who is asking is said by the token")
    return url


def sendable_token(token: str) -> bool:
    """Return whether a token can stand in a header."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def poll_pauses_s(pauses_s: tuple[float, ...], rng: random.Random) -> Iterator[float]:
    """Yield the client's own pauses for ever, each shortened by a random share; the last one repeats."""
    for pause_s in itertools.chain(pauses_s, itertools.repeat(pauses_s[-1])):
        yield pause_s * (1 - rng.uniform(0, PAUSE_JITTER))


def no_earlier_s(told_s: float, rng: random.Random) -> float:
    """Return a wait that is a little longer than the one that the server asked for."""
    return told_s * (1 + rng.uniform(0, PAUSE_JITTER))


def retry_after_s(value: str) -> float | None:
    """Return the seconds in a `Retry-After`, None when there are none in it."""
    return min(float(value), RETRY_AFTER_S_MAX) if value.isascii() and value.isdigit() else None


def seen(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a successful answer about the job changes in its submission."""
    error = job.get("error") or {}
    changes: dict[str, Any] = {"job": job, "code": error.get("code"), "message": error.get("message")}
    if (ending := FINAL_ENDINGS.get(str(job.get("status")))) is not None:
        changes["ending"] = ending
    return changes


def saved_as(folder: Path, source: Path, name: str) -> Path:
    """Return where a result is saved: `photo.jpg` gives `photo.thumbnail.jpg`. Unknown results have no suffix.

    A name that is not a plain word is refused: nothing that a server says leaves the folder.

    Raises:
        ValueError: the name of the result is no plain word.
    """
    if not name.isidentifier():
        raise ValueError(f"a result is called {name!r}")
    known = {variant.value: f".{suffix}" for variant, suffix in VARIANT_SUFFIXES.items()}
    return folder / f"{source.stem}.{name}{known.get(name, '')}"


def clashing_names(paths: Sequence[Path]) -> set[str]:
    """Return the stems under which the results of two files would be saved over each other."""
    stems = [path.stem for path in paths]
    return {stem for stem in stems if stems.count(stem) > 1}
