"""The clients of a chaos run: an open loop of uploads by several owners, with keys, cancels, messages and watching.

Invariant: what is sent and when is the plan's, whatever the answers are; requests at once, tries and waits are bounded;
every request leaves a row, answered or not. Loopback only.
"""

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from app.core.jobstore import Bounds, JobStore
from app.core.postgres import Database, DatabaseUnavailableError
from app.core.role import wait_or_stop
from app.core.versions import ReprocessTerms, Versions
from contracts.jobs import FINAL, JobState
from contracts.messages import PIPELINE_VERSION
from stack.chaos_history import Call
from stack.chaos_pictures import Upload
from stack.chaos_plan import Arrival
from stack.chaos_rig import wall_s
from stack.ports import LOOPBACK

IMAGES, ATTACHMENTS = "/api/v1/images", "/api/v1/attachments"
JOBS, MESSAGES = "/api/v1/image-jobs", "/api/v1/messages"

REQUESTS_AT_ONCE_MAX = 48
#: Uploads under way at once, pauses between tries included; an arrival above it is not sent.
ARRIVALS_AT_ONCE_MAX = 300
#: A silent server is given up after this; the checker's limit on answers is below it.
SOCKET_S_MAX = 40.0
#: An upload with a key is sent again this often under the same key.
TRIES_MAX, TRY_PAUSE_S = 5, 1.5
WATCH_EVERY_S, WATCH_S_MAX = 1.0, 60.0
#: Of replayed and reprocessed jobs, and who asked for them.
JOB_DEADLINE_S, WHO = 3600.0, "chaos"
_FINAL = frozenset(state.value for state in FINAL)
_ACCEPTED, _CREATED = 202, 201
#: Answers after which the same upload is worth another try: none at all, somebody else's turn, our own trouble.
_PASSING = frozenset({0, 409, 429, 503})


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request: its row, and the body of the answer."""

    call: Call
    body: Mapping[str, Any]


class Clients:
    """Speaks HTTP to one API for several owners, in threads."""

    def __init__(self, *, port: int, tokens: Mapping[str, str]) -> None:
        self._port = port
        self._tokens = tokens
        self._threads = ThreadPoolExecutor(max_workers=REQUESTS_AT_ONCE_MAX, thread_name_prefix="client")
        self.calls: list[Call] = []

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def upload(self, upload: Upload, *, owner: str, path: str = IMAGES, key: str = "") -> Answer:
        """Send one file."""
        headers = {"Content-Type": "image/jpeg"} | ({"Idempotency-Key": key} if key else {})
        facts = {"key": key, "sha256": upload.picture.sha256}
        return await self._ask("upload", "POST", path, owner=owner, body=upload.data, headers=headers, **facts)

    async def read(self, job_id: str, *, owner: str) -> Answer:
        """Look at a job."""
        return await self._ask("read", "GET", f"{JOBS}/{job_id}", owner=owner, job_id=job_id)

    async def cancel(self, job_id: str, *, owner: str) -> Answer:
        """Cancel a job."""
        return await self._ask("cancel", "DELETE", f"{JOBS}/{job_id}", owner=owner, job_id=job_id)

    async def write_message(self, attachment_id: str, *, owner: str) -> Answer:
        """Write a message that names an attachment."""
        body = json.dumps({"text": "See the picture.", "attachment_ids": [attachment_id]}).encode()
        headers = {"Content-Type": "application/json"}
        return await self._ask("message", "POST", MESSAGES, owner=owner, body=body, headers=headers)

    async def _ask(
        self,
        what: str,
        method: str,
        path: str,
        *,
        owner: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **facts: str,
    ) -> Answer:
        sent = {"Authorization": f"Bearer {self._tokens[owner]}", **(headers or {})}
        begun_s, begun_clock_s = wall_s(), time.monotonic()
        loop = asyncio.get_running_loop()
        status, found = await loop.run_in_executor(self._threads, self._exchange, method, path, body, sent)
        named = {"job_id": str(found.get("job_id", ""))} | facts
        call = Call(
            what=what,
            begun_s=begun_s,
            took_s=time.monotonic() - begun_clock_s,
            status=status,
            code=str(found.get("code", "")),
            owner=owner,
            state=str(found.get("status", "")) if status < http.client.BAD_REQUEST else "",
            **named,
        )
        self.calls.append(call)
        return Answer(call, found)

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, Any]]:
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=SOCKET_S_MAX)
        try:
            with contextlib.closing(connection):
                # An early refusal may break the sending; its answer is there all the same.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, path, body=body, headers=dict(headers))
                answer = connection.getresponse()
                return answer.status, _object(answer.read())
        except (OSError, http.client.HTTPException) as error:
            return 0, {"code": type(error).__name__}


def _object(body: bytes) -> Mapping[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(body)
        if isinstance(found, dict):
            return found
    return {}


class Load:
    """Sends the arrivals of a plan at their times and follows them up; a person replays and reprocesses beside."""

    def __init__(
        self, clients: Clients, uploads: Sequence[Upload], *, database: Database, jobs_bound: int, stop: asyncio.Event
    ) -> None:
        self._clients = clients
        self._uploads = uploads
        self._jobs, self._versions = JobStore(database), Versions(database)
        self._jobs_bound = jobs_bound
        self._stop = stop
        self.not_sent_count = 0

    async def run(self, arrivals: Sequence[Arrival]) -> None:
        """Send all arrivals; returns when the last one is followed up, or soon after a stop."""
        began_s = time.monotonic()
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            for arrival in arrivals:
                if await wait_or_stop(self._stop, max(0.0, began_s + arrival.due_s - time.monotonic())):
                    return
                if len(under_way) >= ARRIVALS_AT_ONCE_MAX:
                    self.not_sent_count += 1
                    continue
                sending = group.create_task(self._live(arrival))
                under_way.add(sending)
                sending.add_done_callback(under_way.discard)

    async def _live(self, arrival: Arrival) -> None:
        answer = await self._upload(arrival)
        if answer.call.status != _ACCEPTED:
            return
        job_id, attachment_id = answer.call.job_id, answer.body.get("attachment_id")
        if attachment_id is not None:
            await self._clients.write_message(str(attachment_id), owner=arrival.owner)
        if arrival.cancel_after_s is not None:
            await wait_or_stop(self._stop, arrival.cancel_after_s)
            await self._clients.cancel(job_id, owner=arrival.owner)
        if arrival.watched:
            await self._watch_and_again(arrival, answer)

    async def _upload(self, arrival: Arrival) -> Answer:
        """Send the file; with a key again under the same one, until it is answered for good or given up."""
        upload = self._uploads[arrival.image]
        path = ATTACHMENTS if arrival.attached else IMAGES
        key = f"{arrival.owner}-{arrival.number}" if arrival.keyed else ""
        answer = await self._clients.upload(upload, owner=arrival.owner, path=path, key=key)
        for _ in range(TRIES_MAX - 1 if key else 0):
            if answer.call.status not in _PASSING or await wait_or_stop(self._stop, TRY_PAUSE_S):
                break
            answer = await self._clients.upload(upload, owner=arrival.owner, path=path, key=key)
        return answer

    async def _watch(self, arrival: Arrival, job_id: str) -> str:
        """Look at a job until it is final and return its state; gives up after a while."""
        until_s = time.monotonic() + WATCH_S_MAX
        while time.monotonic() < until_s and not await wait_or_stop(self._stop, WATCH_EVERY_S):
            answer = await self._clients.read(job_id, owner=arrival.owner)
            if answer.call.state in _FINAL:
                return answer.call.state
        return ""

    async def _watch_and_again(self, arrival: Arrival, accepted: Answer) -> None:
        job_id = accepted.call.job_id
        state = await self._watch(arrival, job_id)
        with contextlib.suppress(DatabaseUnavailableError):
            if state == JobState.FAILED:
                await self._replay(UUID(job_id))
            elif state == JobState.READY and arrival.reprocessed:
                await self._reprocess(UUID(str(accepted.body["image_id"])))
        await self._watch(arrival, job_id)

    async def _replay(self, job_id: UUID) -> None:
        bounds = Bounds(jobs_max=self._jobs_bound, staging_bytes_max=None)
        await self._jobs.replay(job_id, bounds=bounds, job_deadline_s=JOB_DEADLINE_S, who=WHO)

    async def _reprocess(self, image_id: UUID) -> None:
        terms = ReprocessTerms(
            pipeline_version=PIPELINE_VERSION,
            jobs_max=self._jobs_bound,
            owner_jobs_max=None,
            job_deadline_s=JOB_DEADLINE_S,
            who=WHO,
        )
        await self._versions.reprocess(image_id, terms=terms)
