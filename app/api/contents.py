"""The routes of contents: the original of an attachment and its variants, whole or in part, or a link to the store.

States: unfinished and failed are 409 `not_ready` (a failed one may be replayed; only the unfinished say when to come
back), expired is 410, what was never made or is somebody else's is 404.

Invariant: nothing of what the client said of its file is in an answer: type, length, hash and name are our own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response

from app.admission import poll_after_s
from app.api.answers import problem_response
from app.api.conditions import Span, is_known, span_of
from app.api.content_response import ContentResponse, Sending, Turns
from app.api.documented import problems
from app.api.ids import not_found, path_id
from app.api.services import Services
from app.api.wire import header_values
from app.core.messages import Attachment
from app.core.telemetry import logger
from contracts.errors import ErrorCode, ServiceError
from contracts.images import MEDIA_TYPES, VARIANT_MEDIA_TYPES, VARIANT_SUFFIXES, ImageFormat, VariantName
from contracts.jobs import FINAL, JobState
from contracts.keys import original_key

log = logger()


class ContentName(StrEnum):
    """What can be read of an attachment."""

    ORIGINAL = "original"
    THUMBNAIL = "thumbnail"
    CROP = "crop"
    OPTIMIZED = "optimized"


_SUFFIXES = {**{image_format: image_format.value for image_format in ImageFormat}, ImageFormat.JPEG: "jpg"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_MEDIA: dict[str, Any] = {"content": dict.fromkeys(MEDIA_TYPES.values(), _BINARY)}

#: The `responses=` of every content route.
CONTENT_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole content.", **_MEDIA},
    206: {"description": "The range asked for.", **_MEDIA},
    303: {"description": "A link to the content in the store, when `redirect=1` asks for it."},
    304: {"description": "The client has this content already."},
    **problems(
        ErrorCode.NOT_FOUND,
        ErrorCode.NOT_READY,
        ErrorCode.EXPIRED,
        ErrorCode.RANGE_NOT_SATISFIABLE,
        ErrorCode.INVALID_FIELD,
        ErrorCode.RATE_LIMITED,
        ErrorCode.BACKLOG_FULL,
    ),
}

VariantQuery = Annotated[ContentName, Query(description="Which content, where the path names none.")]
RedirectQuery = Annotated[Literal["0", "1"], Query(description="1: answer with a link to the store.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """One content that is there to be read."""

    owner: str
    attachment: Attachment
    key: str
    media_type: str
    size_bytes: int
    sha256: str
    file_name: str

    @property
    def etag(self) -> str:
        return f'"{self.sha256}"'

    def headers(self) -> dict[str, str]:
        return {
            "Content-Type": self.media_type,
            "Content-Disposition": f'inline; filename="{self.file_name}"',
            "Accept-Ranges": "bytes",
            **self.kept_headers(),
        }

    def kept_headers(self) -> dict[str, str]:
        # The bytes never change, but they can be erased: a cache must ask each time, with its reader's own token.
        return {"ETag": self.etag, "Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}


class Contents:
    """The handlers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._turns = Turns()

    async def read(
        self,
        attachment_id: str,
        request: Request,
        variant: VariantQuery = ContentName.ORIGINAL,
        redirect: RedirectQuery = "0",
    ) -> Response:
        """Send the content of an attachment: the original, or the variant asked for."""
        return await self._answer(request, await self._find(request, attachment_id, variant), redirect)

    async def head(
        self,
        attachment_id: str,
        request: Request,
        variant: VariantQuery = ContentName.ORIGINAL,
        redirect: RedirectQuery = "0",
    ) -> Response:
        """Say what a read would, without the content."""
        return await self._answer(request, await self._find(request, attachment_id, variant), redirect)

    async def read_variant(
        self, attachment_id: str, variant: str, request: Request, redirect: RedirectQuery = "0"
    ) -> Response:
        """Send the content that the path names."""
        return await self._answer(request, await self._find(request, attachment_id, variant), redirect)

    async def head_variant(
        self, attachment_id: str, variant: str, request: Request, redirect: RedirectQuery = "0"
    ) -> Response:
        """Say what a read would, without the content."""
        return await self._answer(request, await self._find(request, attachment_id, variant), redirect)

    async def _find(self, request: Request, attachment_id: str, variant: str) -> _Content:
        owner = await self._services.authenticator.owner(request.headers.raw)
        wanted = path_id(attachment_id)
        if variant not in tuple(ContentName):
            raise not_found()
        attachment = await self._services.messages.find_attachment(wanted, owner=owner)
        if attachment is None:
            raise not_found()
        self._check_state(attachment.job.state)
        return _content(attachment, ContentName(variant), owner=owner)

    def _check_state(self, state: JobState) -> None:
        if state is JobState.EXPIRED:
            raise expired()
        if state in FINAL and state is not JobState.READY:
            raise ServiceError(ErrorCode.NOT_READY, "There is no content: the attachment's error says why.")
        if state is not JobState.READY:
            wait_s = poll_after_s(self._services.admission.snapshot)
            raise ServiceError(ErrorCode.NOT_READY, "The attachment is not ready yet.", retry_after_s=wait_s)

    async def _answer(self, request: Request, content: _Content, redirect: str) -> Response:
        headers = request.headers.raw
        if is_known(header_values(headers, b"if-none-match"), etag=content.etag):
            return Response(status_code=304, headers=content.kept_headers())
        if redirect == "1":
            return await self._link(content)
        if request.method == "HEAD":  # ranges are for GET only (RFC 9110, 14.2)
            return self._send(request.method, content, None)
        try:
            span = span_of(
                header_values(headers, b"range"),
                header_values(headers, b"if-range"),
                etag=content.etag,
                size_bytes=content.size_bytes,
            )
        except ServiceError as error:
            response = problem_response(request, error)
            response.headers["Content-Range"] = f"bytes */{content.size_bytes}"
            return response
        return self._send(request.method, content, span)

    async def _link(self, content: _Content) -> Response:
        expires_s = self._services.settings.result_link_s
        url = await self._services.store.presigned_get(content.key, expires_s=expires_s)
        return Response(status_code=303, headers={"Location": url, "Cache-Control": "no-store"})

    def _send(self, method: str, content: _Content, span: Span | None) -> Response:
        if method == "HEAD":
            return Response(headers={**content.headers(), "Content-Length": str(content.size_bytes)})
        headers, status, part = content.headers(), 200, Span(0, content.size_bytes)
        if span is not None:
            last = span.start + span.length_bytes - 1
            headers["Content-Range"] = f"bytes {span.start}-{last}/{content.size_bytes}"
            status, part = 206, span
        return self._stream(content, part, status=status, headers=headers)

    def _stream(self, content: _Content, part: Span, *, status: int, headers: Mapping[str, str]) -> Response:
        async def missing() -> ServiceError:
            return await self._why_missing(content)

        sending = Sending(
            owner=content.owner,
            chunks=self._services.contents.stream(content.key, start=part.start, length_bytes=part.length_bytes),
            length_bytes=part.length_bytes,
            missing=missing,
        )
        return ContentResponse(
            sending,
            turns=self._turns,
            count_failure=self._services.metrics.count_failure,
            status=status,
            headers=headers,
        )

    async def _why_missing(self, content: _Content) -> ServiceError:
        """Return why a ready attachment has no object: it was erased meanwhile, or the store has lost it."""
        now = await self._services.messages.find_attachment(content.attachment.id, owner=content.owner)
        if now is None:
            return not_found()
        if now.job.state is JobState.EXPIRED:
            return expired()
        log.error("content.missing", job_id=str(now.job.job_id), key=content.key)
        return ServiceError(ErrorCode.INTERNAL, "The cause was logged.")


def expired() -> ServiceError:
    """Return the error of what is no longer kept."""
    return ServiceError(ErrorCode.EXPIRED, "It was erased, or its time of keeping is over.")


def _content(attachment: Attachment, name: ContentName, *, owner: str) -> _Content:
    job = attachment.job
    if name is ContentName.ORIGINAL:
        return _Content(
            owner=owner,
            attachment=attachment,
            key=original_key(job.image_id),
            media_type=MEDIA_TYPES[job.source.format],
            size_bytes=job.source.source_bytes,
            sha256=job.source.sha256,
            file_name=f"{attachment.id}.{_SUFFIXES[job.source.format]}",
        )
    variant = next((variant for variant in job.variants if variant.name is VariantName(name.value)), None)
    if variant is None:
        raise not_found()
    return _Content(
        owner=owner,
        attachment=attachment,
        key=variant.key,
        media_type=VARIANT_MEDIA_TYPES[variant.name],
        size_bytes=variant.size_bytes,
        sha256=variant.sha256,
        file_name=f"{attachment.id}-{variant.name.value}.{VARIANT_SUFFIXES[variant.name]}",
    )
