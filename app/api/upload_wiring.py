"""Where files are uploaded, and what the answers look like in the interface's document."""

from typing import Any

from fastapi import FastAPI

from app.api.documented import answers_with, header, problems
from app.api.schemas import Accepted, AcceptedAttachment
from app.api.services import Services
from app.api.uploading import Uploading
from app.api.wire import ATTACHMENTS_PATH, IMAGES_PATH
from contracts.errors import ErrorCode
from contracts.images import MEDIA_TYPES

_E = ErrorCode
_REFUSALS = problems(
    _E.TRUNCATED_BODY,
    _E.EXPIRED,
    _E.UPLOAD_TOO_SLOW,
    _E.KEY_CONFLICT,
    _E.KEY_IN_USE,
    _E.TOO_MANY_BYTES,
    _E.UNSUPPORTED_FORMAT,
    _E.INVALID_FIELD,
    _E.DIGEST_MISMATCH,
    _E.EMPTY_FILE,
    _E.TOO_MANY_PIXELS,
    _E.TOO_LARGE_DIMENSION,
    _E.OWNER_LIMIT,
    _E.BACKLOG_FULL,
    _E.STAGING_FULL,
    _E.RESERVATION_LOST,
)
_ACCEPTED = answers_with(
    {
        "Location": "Where the job, or the attachment, is.",
        "Retry-After": "Seconds until another look is worth it; only while the job is not final.",
        "Idempotency-Replayed": "`true` when the key stood for this job already.",
        "Cache-Control": "Always `no-store`.",
    },
    "File and job are durable, or were so before.",
)
_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "required": ["file"], "properties": {"file": _FILE}}
_RAW_TYPES = (*MEDIA_TYPES.values(), "image/*")
_REQUEST: dict[str, Any] = {
    "parameters": [
        header("Idempotency-Key", "1 to 255 visible ASCII characters that make a repeated upload the same job."),
        header("Repr-Digest", "SHA-256 of the file, as `sha-256=:BASE64:`; verified, and enough for a repeat."),
        header("Content-Digest", "SHA-256 of the body as it is sent; verified."),
    ],
    "requestBody": {
        "required": True,
        "description": "A form with the file in the field `file`, or the file itself.",
        "content": {"multipart/form-data": {"schema": _FORM}, **{name: {"schema": _FILE} for name in _RAW_TYPES}},
    },
}


def add_upload_routes(app: FastAPI, services: Services) -> None:
    """Add the routes of uploads."""
    uploading = Uploading(services)
    accepted: dict[str, Any] = {
        "methods": ["POST"],
        "status_code": 202,
        "responses": {202: _ACCEPTED, **_REFUSALS},
        "openapi_extra": _REQUEST,
    }
    app.add_api_route(IMAGES_PATH, uploading.create, response_model=Accepted, name="create_image", **accepted)
    app.add_api_route(
        ATTACHMENTS_PATH, uploading.create, response_model=AcceptedAttachment, name="create_attachment", **accepted
    )
