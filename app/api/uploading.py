"""The uploads' route: hands an admitted upload to its use case, as an image or as an attachment, or answers a repeat.

Invariant: the answer is 202 only after file and job are durable; a repeat is answered with the earlier job.
"""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from fastapi import Request, Response

from app.admission import poll_after_s
from app.api.answers import json_response
from app.api.attachment_schemas import shown_state
from app.api.body import Pace, read_body
from app.api.filebody import file_of, overhead_bytes_max, verified
from app.api.replays import Replays, check_replay
from app.api.schemas import Accepted, AcceptedAttachment
from app.api.services import Services
from app.api.wire import ATTACHMENTS_PATH, JOBS_PATH, Admitted, Asked, Replay, take_upload, wire_of
from app.core.clock import monotonic_s
from app.core.jobstore import KnownKey, Operation
from contracts.errors import ErrorCode, ServiceError
from contracts.jobs import FINAL, JobState

ACCEPTED_MESSAGE = "The image was accepted and waits to be processed."
REPLAYED_MESSAGE = "The image was accepted before; this is its present state."
REPLAYED_HEADER = "Idempotency-Replayed"


class Uploading:
    """The handler of every upload through the API."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._replays = Replays(services.settings)

    async def create(self, request: Request) -> Response:
        """Accept an upload that has its place, or answer one whose key stands for a job already."""
        upload = take_upload(request.scope)
        if isinstance(upload, Replay):
            return await self._replay(request, upload)
        return await self._accept(request, upload)

    async def _accept(self, request: Request, admitted: Admitted) -> Response:
        services, since_s = self._services, monotonic_s()
        attachment_id = uuid.uuid4() if admitted.asked.operation is Operation.ATTACHMENT else None
        async with self._file(request, admitted.asked) as chunks:
            source = await services.uploads.receive(
                admitted.reservation,
                chunks,
                attachment_id=attachment_id,
                sha256=admitted.asked.promise.file_sha256,
            )
        services.store_watch.note_write()
        services.metrics.accepted.inc()
        services.metrics.upload_bytes.inc(source.source_bytes)
        services.metrics.upload_seconds.observe(monotonic_s() - since_s)
        made = KnownKey(
            job_id=admitted.reservation.job_id,
            image_id=admitted.reservation.image_id,
            attachment_id=attachment_id,
            state=JobState.QUEUED,
            fingerprint=source.sha256,
        )
        return accepted_response(made, poll_s=poll_after_s(services.admission.snapshot), replayed=False)

    async def _replay(self, request: Request, replay: Replay) -> Response:
        """Answer with the earlier job, once the digest or the bytes say that the file is the same."""
        asked, known = replay.asked, replay.known
        if asked.promise.file_sha256 is None:
            async with self._file(request, asked) as chunks:
                await self._replays.compare(chunks, owner=asked.owner, fingerprint=known.fingerprint or "")
            known = await self._known_now(asked)
        self._services.metrics.replayed.inc()
        return accepted_response(known, poll_s=poll_after_s(self._services.admission.snapshot), replayed=True)

    async def _known_now(self, asked: Asked) -> KnownKey:
        """Return what the key stands for after the body was read: the job has gone on meanwhile."""
        known = await self._services.jobs.find_key(
            owner=asked.owner, operation=asked.operation, key=asked.promise.key or ""
        )
        if known is None:
            raise ServiceError(ErrorCode.EXPIRED, "The upload that the key stood for is no longer kept.")
        check_replay(known, asked.promise)
        return known

    @asynccontextmanager
    async def _file(self, request: Request, asked: Asked) -> AsyncIterator[AsyncGenerator[memoryview]]:
        settings = self._services.settings
        pace = Pace(
            body_bytes_max=settings.upload_bytes_max + overhead_bytes_max(asked.boundary),
            idle_s_max=settings.upload_idle_s_max,
            rate_bytes_per_s_min=settings.upload_rate_bytes_per_s_min,
        )
        body = read_body(request.receive, wire=wire_of(request.scope), pace=pace, monotonic=monotonic_s)
        sha256 = asked.promise.body_sha256
        whole = body if sha256 is None else verified(body, sha256=sha256)
        async with aclosing(body), aclosing(whole), aclosing(file_of(whole, boundary=asked.boundary)) as chunks:
            yield chunks


def accepted_response(known: KnownKey, *, poll_s: int, replayed: bool) -> Response:
    """Return the 202 of an upload: where its job is, and when it is worth a look while it is not final."""
    attached = known.attachment_id is not None
    shown = Accepted(
        job_id=str(known.job_id),
        image_id=str(known.image_id),
        status=(shown_state(known.state) if attached else known.state).value,
        message=REPLAYED_MESSAGE if replayed else ACCEPTED_MESSAGE,
    )
    headers = {"Location": f"{JOBS_PATH}/{known.job_id}", "Cache-Control": "no-store"}
    if attached:
        shown = AcceptedAttachment(**shown.model_dump(), attachment_id=str(known.attachment_id))
        headers["Location"] = f"{ATTACHMENTS_PATH}/{known.attachment_id}"
    if known.state not in FINAL:
        headers["Retry-After"] = str(poll_s)
    if replayed:
        headers[REPLAYED_HEADER] = "true"
    return json_response(shown.model_dump_json(), status=202, headers=headers)
