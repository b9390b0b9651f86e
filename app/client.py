"""A client of the HTTP interface: uploads files from disk, follows their jobs, saves and verifies their results.

Invariant: nothing is tried for ever, and all tries of one file carry one Idempotency-Key, so that no retry can make a
second job. A state this client does not know is not final; a final one is never asked about again. The token goes to
the API's own address only, never where an answer points.
"""

import asyncio
import base64
import hashlib
import io
import os
import random
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from app.submission import (
    Ending,
    OnProgress,
    Patience,
    Progress,
    Submission,
    no_earlier_s,
    poll_pauses_s,
    retry_after_s,
    saved_as,
    seen,
)

#: Failed looks at a job in a row before it is given up.
LOOK_FAILURES_MAX = 5
#: Time without progress on one request, seconds: an answer to an upload may take as long as the store does.
REQUEST_TIMEOUT_S = 60.0
#: Uploads under way at once.
FILES_AT_ONCE_MAX = 4
#: Largest result that is saved; the largest optimized WebP is far below.
RESULT_BYTES_MAX = 256 * 1024 * 1024

_UPLOAD_PATH = "/api/v1/images"
_REPLAYED = "Idempotency-Replayed"
#: Answers after which the same upload may be tried again under the same key.
_REFUSED = frozenset({429, 500, 502, 503, 504})
_KEY_IN_USE = "key_in_use"
_GONE = frozenset({401, 403, 404, 410})


async def submit_files(
    paths: Sequence[Path],
    *,
    url: str,
    token: str,
    wait: bool = False,
    patience: Patience | None = None,
    **watch: Any,
) -> list[Submission]:
    """Upload files, a few at once, and with `wait` follow each job to its end; one value for each path, in order.

    `watch` is passed to `Client`: `on_progress`, and `save_dir` to save the results of what was waited for.

    Raises:
        OSError: a file cannot be read, or a result cannot be written.
    """
    async with open_client(url=url, token=token, patience=patience, **watch) as client:
        turns = asyncio.Semaphore(FILES_AT_ONCE_MAX)

        async def submit(path: Path) -> Submission:
            async with turns:
                return await client.submit(path, wait=wait)

        return list(await asyncio.gather(*(submit(path) for path in paths)))


@asynccontextmanager
async def open_client(
    *, url: str, token: str, patience: Patience | None = None, **watch: Any
) -> AsyncIterator["Client"]:
    """Open the two connection pools of a client: one that carries the token, and one for result links without it."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False) as http,
        httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, trust_env=False) as links,
    ):
        yield Client(http, links, patience=patience or Patience(), **watch)


@dataclass(slots=True)
class _Walk:
    """One file on its way: what is known of it now, and the wait that the last answer asked for."""

    submission: Submission
    repr_digest: str
    told_s: float | None = None
    location: str = ""
    again: bool = False  #: another try may help
    trouble: str = ""  #: why the last look at the job told nothing

    def note(self, **changes: Any) -> None:
        self.submission = replace(self.submission, **changes)


class Client:
    """Submits one file at a time over connection pools that the caller owns."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        links: httpx.AsyncClient,
        *,
        patience: Patience,
        on_progress: OnProgress | None = None,
        save_dir: Path | None = None,
    ) -> None:
        self._http = http
        self._links = links
        self._patience = patience
        self._on_progress = on_progress or (lambda _progress: None)
        self._save_dir = save_dir
        self._rng = random.SystemRandom()

    async def submit(self, path: Path, *, wait: bool) -> Submission:
        """Upload a file, again when refused for now, and with `wait` follow its job to the end and save its results.

        A cancelled call leaves an accepted job alone.

        Raises:
            OSError: the file cannot be read, or a result cannot be written.
        """
        digest = await asyncio.to_thread(_digest_of, path)
        walk = _Walk(Submission(path=path, ending=Ending.UNREACHABLE, key=str(uuid.uuid4()), tries=0), digest)
        try:
            async with asyncio.timeout(self._patience.deadline_s):
                await self._upload_until_accepted(walk)
                if wait and walk.submission.ending is Ending.ACCEPTED:
                    await self._follow(walk)
                if self._save_dir is not None and walk.submission.ending is Ending.READY:
                    await self._save(walk, self._save_dir)
        except TimeoutError:
            walk.note(ending=Ending.TIMED_OUT)
        self._tell(walk, walk.submission.ending.value, over=True)
        return walk.submission

    async def _upload_until_accepted(self, walk: _Walk) -> None:
        for tries in range(1, self._patience.upload_tries_max + 1):
            walk.note(tries=tries)
            await self._upload(walk)
            if not walk.again or tries == self._patience.upload_tries_max:
                return
            # Never earlier than told: the jitter only adds.
            pause_s = no_earlier_s(walk.told_s or self._patience.refused_pause_s, self._rng)
            code = walk.submission.code or walk.submission.ending.value
            self._tell(walk, f"{code}, again in {pause_s:.0f} s")
            await asyncio.sleep(pause_s)

    async def _upload(self, walk: _Walk) -> None:
        path = walk.submission.path
        headers = {"Idempotency-Key": walk.submission.key, "Repr-Digest": walk.repr_digest}
        with _Counted(path, self._on_progress) as file:
            try:
                # The server takes no notice of names; a constant tells it nothing.
                answer = await self._http.post(_UPLOAD_PATH, files={"file": ("image", file)}, headers=headers)
            except httpx.TransportError as error:
                # Whether it was accepted or not: under the same key another try cannot make a second job.
                walk.note(ending=Ending.UNREACHABLE, code=None, message=_in_words(error))
                walk.told_s, walk.again = None, True
                return
        said = _document(answer)
        walk.told_s = retry_after_s(answer.headers.get("Retry-After", ""))
        if answer.status_code == httpx.codes.ACCEPTED:
            walk.location, walk.again = answer.headers.get("Location", ""), False
            replayed = answer.headers.get(_REPLAYED) == "true"
            walk.note(ending=Ending.ACCEPTED, job_id=said.get("job_id"), code=None, message=None, job=said)
            walk.note(replayed=replayed)
            self._tell(walk, Ending.ACCEPTED.value)
            return
        walk.again = answer.status_code in _REFUSED or said.get("code") == _KEY_IN_USE
        ending = Ending.REFUSED if walk.again else Ending.REJECTED
        walk.note(ending=ending, code=said.get("code"), message=said.get("detail") or _status_of(answer))

    async def _follow(self, walk: _Walk) -> None:
        own_pauses_s = poll_pauses_s(self._patience.poll_pauses_s, self._rng)
        # The first wait is the server's own, whatever ours would be.
        pause_s, failures = no_earlier_s(walk.told_s, self._rng) if walk.told_s else next(own_pauses_s), 0
        while True:
            await asyncio.sleep(pause_s)
            answer = await self._look(walk)
            failures = failures + 1 if answer is None or answer.is_error else 0
            if answer is not None and answer.status_code in _GONE:
                said = _document(answer)
                walk.note(ending=Ending.GONE, code=said.get("code"), message=said.get("detail"))
                return
            if answer is not None and answer.is_success:
                walk.note(**seen(_document(answer)))
                if walk.submission.ending is not Ending.ACCEPTED:
                    return
                self._tell(walk, str(walk.submission.job.get("status")))
            if failures >= LOOK_FAILURES_MAX:
                walk.note(ending=Ending.UNREACHABLE if answer is None else Ending.SERVER_ERROR, message=walk.trouble)
                return
            pause_s = self._next_pause_s(answer, next(own_pauses_s))

    def _next_pause_s(self, answer: httpx.Response | None, own_s: float) -> float:
        told_s = None if answer is None else retry_after_s(answer.headers.get("Retry-After", ""))
        if told_s is None:
            return own_s
        pause_s = max(own_s, no_earlier_s(told_s, self._rng))
        # A hint about a job in work shortens nothing and is no order; a refusal is obeyed however long it is.
        return pause_s if answer is not None and answer.is_error else min(pause_s, self._patience.poll_pauses_s[-1])

    async def _look(self, walk: _Walk) -> httpx.Response | None:
        """Return an answer about the job, or None when there was none."""
        try:
            # The path alone: a token is never sent where a header points.
            answer = await self._http.get(httpx.URL(walk.location).raw_path.decode("ascii"))
        except (httpx.TransportError, httpx.InvalidURL) as error:
            walk.trouble = _in_words(error)
            return None
        walk.trouble = _status_of(answer)
        return answer

    async def _save(self, walk: _Walk, folder: Path) -> None:
        """Save every result under its announced hash; links that have run out are read anew with the job."""
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        names = list(walk.submission.job.get("variants") or {})
        for name in names:
            try:
                saved = await self._save_one(walk, folder, name)
            except ValueError as error:
                saved, reason = None, str(error)
            else:
                reason = "did not arrive as announced"
            if saved is None:
                walk.note(ending=Ending.SPOILED, message=f"{name}: {reason}")
                return
            walk.note(saved=(*walk.submission.saved, saved))
            self._tell(walk, f"saved {name}")

    async def _save_one(self, walk: _Walk, folder: Path, name: str) -> Path | None:
        """Return where a result was saved, None when it never arrived as announced."""
        target = saved_as(folder, walk.submission.path, name)
        for number in range(self._patience.download_tries_max):
            if number:
                await asyncio.sleep(no_earlier_s(self._patience.refused_pause_s, self._rng))
                answer = await self._look(walk)
                if answer is not None and answer.is_success:
                    walk.note(job=_document(answer))
            announced = (walk.submission.job.get("variants") or {}).get(name) or {}
            if await self._download(announced, target):
                return target
        return None

    async def _download(self, announced: Mapping[str, Any], target: Path) -> bool:
        """Return whether a result arrived whole; only then is it at its place."""
        partial = target.with_name(f"{target.name}.part")
        hasher, received_bytes = hashlib.sha256(), 0
        try:
            with partial.open("wb") as file:
                async with self._links.stream("GET", str(announced.get("url", ""))) as answer:
                    if not answer.is_success:
                        return False
                    async for chunk in answer.aiter_bytes():
                        received_bytes += len(chunk)
                        if received_bytes > RESULT_BYTES_MAX:
                            return False
                        hasher.update(chunk)
                        file.write(chunk)
            if hasher.hexdigest() != announced.get("sha256"):
                return False
            partial.replace(target)
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol):
            return False
        else:
            return True
        finally:
            partial.unlink(missing_ok=True)

    def _tell(self, walk: _Walk, text: str, *, over: bool = False) -> None:
        self._on_progress(Progress(path=walk.submission.path, text=text, over=over))


class _Counted(io.FileIO):
    """A file that tells how much of it was read, for people who watch it go."""

    def __init__(self, path: Path, on_progress: OnProgress) -> None:
        super().__init__(path)
        self._path = path
        self._bytes_total = max(1, os.fstat(self.fileno()).st_size)
        self._on_progress = on_progress
        self._percent = -1

    def read(self, size_bytes: int | None = -1, /) -> bytes:
        """Read on, and tell when another percent has gone."""
        data = super().read(-1 if size_bytes is None else size_bytes)
        percent = min(100, 100 * self.tell() // self._bytes_total)
        if percent != self._percent:
            self._percent = percent
            self._on_progress(Progress(path=self._path, text=f"uploading {percent} %"))
        return data


def _digest_of(path: Path) -> str:
    """Return the `Repr-Digest` (RFC 9530) of a file: a repeat under a known key is answered before its body."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return f"sha-256=:{base64.b64encode(digest).decode('ascii')}:"


def _in_words(error: Exception) -> str:
    """Return why no answer came: of the library's classes only the words that help."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return "the address must begin with http:// or https://"
    if isinstance(error, httpx.InvalidURL):
        return f"the server named no address of the job: {error}"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {REQUEST_TIMEOUT_S:.0f} s"
    if isinstance(error, httpx.ConnectError):
        return f"nobody answers at this address ({error})"
    return f"the connection broke off before an answer ({error})" if str(error) else "the connection broke off"


def _status_of(answer: httpx.Response) -> str:
    return f"the server answered {answer.status_code} {answer.reason_phrase}".rstrip()


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
