"""A client of the HTTP interface: uploads files from disk, follows their jobs, and waits no less than it is told.

Invariant: nothing is tried for ever. A state this client does not know is not final; a final one is never asked about
again.
"""

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx

from app.core.clock import Monotonic, monotonic_s

#: Pauses between looks at a job, seconds, after the first one that the server named; the last one repeats.
POLL_PAUSES_S = (3.0, 5.0, 8.0, 15.0)
#: Every pause is made longer by up to this share, so that clients started together drift apart.
PAUSE_JITTER = 0.2
#: The wait after a refusal that names none, seconds.
REFUSED_PAUSE_S = 2.0
#: No server of ours tells anybody to wait longer.
RETRY_AFTER_S_MAX = 120.0
#: Failed looks at a job in a row before it is given up.
LOOK_FAILURES_MAX = 5
#: Time without progress on one request, seconds: an answer to an upload may take as long as the store does.
REQUEST_TIMEOUT_S = 60.0
#: Uploads under way at once.
FILES_AT_ONCE_MAX = 4

_UPLOAD_PATH = "/api/v1/images"
_FINAL = frozenset({"ready", "failed", "cancelled", "expired"})
_REFUSED = frozenset({429, 503})
_GONE = frozenset({401, 403, 404, 410})


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
    TIMED_OUT = "timed_out"  #: accepted, and not final before the deadline
    UNREACHABLE = "unreachable"  #: no answer; an upload may have been accepted all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long and how often this client tries."""

    deadline_s: float = 600.0  #: for one file, upload and wait together
    upload_tries_max: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What became of one file."""

    path: Path
    ending: Ending
    job_id: str | None = None
    code: str | None = None  #: the problem's or the job's error code
    message: str | None = None
    tries: int = 1
    job: Mapping[str, Any] = field(default_factory=dict)  #: the last answer about the job

    @property
    def ok(self) -> bool:
        """Whether the file is where it was wanted: accepted, or ready when that was waited for."""
        return self.ending in (Ending.ACCEPTED, Ending.READY)


#: Called with a file and what has just become of it, for people who watch; `refused` may be followed by another try.
OnProgress = Callable[[Path, str], None]


async def submit_files(
    paths: Sequence[Path],
    *,
    url: str,
    token: str,
    wait: bool = False,
    patience: Patience | None = None,
    on_progress: OnProgress | None = None,
) -> list[Submission]:
    """Upload files, a few at once, and with `wait` follow each job to its end; one value for each path, in order.

    Raises:
        OSError: a file cannot be read.
    """
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=REQUEST_TIMEOUT_S, trust_env=False
    ) as http:
        client = Client(http, patience=patience or Patience(), on_progress=on_progress)
        turns = asyncio.Semaphore(FILES_AT_ONCE_MAX)

        async def submit(path: Path) -> Submission:
            async with turns:
                return await client.submit(path, wait=wait)

        return list(await asyncio.gather(*(submit(path) for path in paths)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    """One try to upload: what became of it, how long the server asked to wait, and where its job is."""

    submission: Submission
    pause_s: float = REFUSED_PAUSE_S
    location: str = ""
    again: bool = False  #: another try may help and cannot make a second job


class Client:
    """Submits one file at a time over a connection pool that the caller owns."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        patience: Patience,
        on_progress: OnProgress | None = None,
        monotonic: Monotonic = monotonic_s,
        rng: random.Random | None = None,
    ) -> None:
        self._http = http
        self._patience = patience
        self._on_progress = on_progress or (lambda _path, _text: None)
        self._now_s = monotonic
        self._rng = rng or random.SystemRandom()

    async def submit(self, path: Path, *, wait: bool) -> Submission:
        """Upload a file, again when refused for now, and with `wait` follow its job to the end."""
        until_s = self._now_s() + self._patience.deadline_s
        uploaded = await self._upload_until_accepted(path, until_s=until_s)
        if not wait or uploaded.submission.ending is not Ending.ACCEPTED:
            return uploaded.submission
        return await self._follow(uploaded, until_s=until_s)

    async def _upload_until_accepted(self, path: Path, *, until_s: float) -> _Try:
        tries = 0
        while True:
            tries += 1
            one = await self._upload(path, tries=tries)
            # Never earlier than told: the jitter only adds.
            pause_s = self._longer(one.pause_s)
            last = tries >= self._patience.upload_tries_max or self._now_s() + pause_s >= until_s
            if last or not one.again:
                self._on_progress(path, one.submission.ending.value)
                return one
            self._on_progress(path, Ending.REFUSED.value)
            await asyncio.sleep(pause_s)

    async def _upload(self, path: Path, *, tries: int) -> _Try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            try:
                # The server takes no notice of names; a constant tells it nothing.
                answer = await self._http.post(_UPLOAD_PATH, files={"file": ("image", file)})
            except httpx.TransportError as error:
                submission = Submission(path=path, ending=Ending.UNREACHABLE, message=type(error).__name__, tries=tries)
                # What was not sent to its end cannot have been accepted. Most likely it was refused on its first
                # bytes, and the answer was lost because this library reads nothing while it sends.
                return _Try(submission=submission, again=file.tell() < file_bytes)
        said = _document(answer)
        if answer.status_code == httpx.codes.ACCEPTED:
            accepted = Submission(path=path, ending=Ending.ACCEPTED, job_id=said.get("job_id"), tries=tries, job=said)
            pause_s = _retry_after_s(answer) or POLL_PAUSES_S[0]
            return _Try(submission=accepted, pause_s=pause_s, location=answer.headers.get("Location", ""))
        again = answer.status_code in _REFUSED
        refused = Submission(
            path=path,
            ending=Ending.REFUSED if again else Ending.REJECTED,
            code=said.get("code"),
            message=said.get("detail"),
            tries=tries,
        )
        return _Try(submission=refused, pause_s=_retry_after_s(answer) or REFUSED_PAUSE_S, again=again)

    async def _follow(self, uploaded: _Try, *, until_s: float) -> Submission:
        submission, pause_s, failures = uploaded.submission, min(uploaded.pause_s, POLL_PAUSES_S[-1]), 0
        own_pauses_s = itertools.chain(POLL_PAUSES_S, itertools.repeat(POLL_PAUSES_S[-1]))
        while self._now_s() + pause_s < until_s:
            await asyncio.sleep(pause_s)
            answer = await self._look(uploaded.location)
            failures = 0 if answer is not None else failures + 1
            if failures >= LOOK_FAILURES_MAX:
                return replace(submission, ending=Ending.UNREACHABLE)
            if answer is not None:
                submission = replace(submission, **_seen(answer, submission))
            if submission.ending is not Ending.ACCEPTED:
                self._on_progress(submission.path, submission.ending.value)
                return submission
            told_s = 0.0 if answer is None else _retry_after_s(answer) or 0.0
            pause_s = self._longer(min(max(next(own_pauses_s), told_s), POLL_PAUSES_S[-1]))
        return replace(submission, ending=Ending.TIMED_OUT)

    async def _look(self, location: str) -> httpx.Response | None:
        """Return an answer about the job, or None when there was none that says anything."""
        try:
            # The path alone: a token is never sent where a header points.
            answer = await self._http.get(httpx.URL(location).raw_path.decode("ascii"))
        except httpx.TransportError:
            return None
        return answer if answer.is_success or answer.status_code in _GONE else None

    def _longer(self, pause_s: float) -> float:
        return pause_s * (1 + self._rng.uniform(0, PAUSE_JITTER))


def _seen(answer: httpx.Response, submission: Submission) -> dict[str, Any]:
    """Return what an answer about the job changes."""
    said = _document(answer)
    if not answer.is_success:
        return {"ending": Ending.GONE, "code": said.get("code"), "message": said.get("detail")}
    status = said.get("status")
    error = said.get("error") or {}
    ending = Ending(status) if status in _FINAL else submission.ending
    return {"ending": ending, "job": said, "code": error.get("code"), "message": error.get("message")}


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _retry_after_s(answer: httpx.Response) -> float | None:
    value = answer.headers.get("Retry-After", "")
    return min(float(value), RETRY_AFTER_S_MAX) if value.isascii() and value.isdigit() else None
