"""The one table from error code to HTTP status, and problem documents (RFC 9457) for every answer that is no success.

Invariant: nothing of a library's own text is ever in an answer.
"""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from contracts.errors import ErrorCode, ServiceError

PROBLEM_MEDIA_TYPE = "application/problem+json"
PROBLEM_TYPE_PREFIX = "urn:spillway:problem:"

#: Said with a refusal that names no wait of its own; 429 and 503 never go without one.
DEFAULT_RETRY_AFTER_S = 2.0
#: Waits up to this are constants of ours, not estimates that were spread already: who is refused at the same moment is
#: told to come back one after the other.
SHORT_WAIT_S_MAX = 2
_STAGGER_S = itertools.cycle((0, 1, 2))

_E = ErrorCode

STATUS: dict[ErrorCode, HTTPStatus] = {
    _E.MALFORMED_REQUEST: HTTPStatus.BAD_REQUEST,
    _E.TRUNCATED_BODY: HTTPStatus.BAD_REQUEST,
    _E.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    _E.FORBIDDEN: HTTPStatus.FORBIDDEN,
    _E.NOT_FOUND: HTTPStatus.NOT_FOUND,
    _E.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    _E.NOT_READY: HTTPStatus.CONFLICT,
    _E.KEY_CONFLICT: HTTPStatus.CONFLICT,
    _E.KEY_IN_USE: HTTPStatus.CONFLICT,
    _E.ALREADY_FINAL: HTTPStatus.CONFLICT,
    _E.ALREADY_ATTACHED: HTTPStatus.CONFLICT,
    _E.NOT_FAILED: HTTPStatus.CONFLICT,
    _E.SOURCE_MISSING: HTTPStatus.CONFLICT,
    _E.UPLOAD_INCOMPLETE: HTTPStatus.CONFLICT,
    _E.EXPIRED: HTTPStatus.GONE,
    _E.RANGE_NOT_SATISFIABLE: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    _E.UPLOAD_TOO_SLOW: HTTPStatus.REQUEST_TIMEOUT,
    _E.HEADERS_TOO_LARGE: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    _E.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    _E.TOO_MANY_BYTES: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    _E.UNSUPPORTED_FORMAT: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    _E.INVALID_FIELD: HTTPStatus.UNPROCESSABLE_ENTITY,
    _E.DIGEST_MISMATCH: HTTPStatus.UNPROCESSABLE_ENTITY,
    _E.EMPTY_FILE: HTTPStatus.UNPROCESSABLE_ENTITY,
    _E.TOO_MANY_PIXELS: HTTPStatus.UNPROCESSABLE_ENTITY,
    _E.TOO_LARGE_DIMENSION: HTTPStatus.UNPROCESSABLE_ENTITY,
    _E.OWNER_LIMIT: HTTPStatus.TOO_MANY_REQUESTS,
    _E.RATE_LIMITED: HTTPStatus.TOO_MANY_REQUESTS,
    _E.BACKLOG_FULL: HTTPStatus.SERVICE_UNAVAILABLE,
    _E.STAGING_FULL: HTTPStatus.SERVICE_UNAVAILABLE,
    _E.DEPENDENCY_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    _E.RESERVATION_LOST: HTTPStatus.SERVICE_UNAVAILABLE,
    _E.SHUTTING_DOWN: HTTPStatus.SERVICE_UNAVAILABLE,
}

TITLES: dict[ErrorCode, str] = {
    _E.MALFORMED_REQUEST: "The request is malformed.",
    _E.TRUNCATED_BODY: "The body ended too early.",
    _E.UNAUTHENTICATED: "A valid token is needed.",
    _E.FORBIDDEN: "The token does not allow this.",
    _E.NOT_FOUND: "There is nothing here.",
    _E.METHOD_NOT_ALLOWED: "This method is not allowed here.",
    _E.NOT_READY: "The result is not ready.",
    _E.KEY_CONFLICT: "The key stands for another upload.",
    _E.KEY_IN_USE: "An upload with this key is on its way.",
    _E.ALREADY_FINAL: "The job has ended.",
    _E.ALREADY_ATTACHED: "The attachment belongs to a message already.",
    _E.NOT_FAILED: "The job has not failed.",
    _E.SOURCE_MISSING: "The uploaded file is gone.",
    _E.UPLOAD_INCOMPLETE: "The file is not there yet.",
    _E.EXPIRED: "This is no longer kept.",
    _E.RANGE_NOT_SATISFIABLE: "The range is outside the content.",
    _E.UPLOAD_TOO_SLOW: "The upload was too slow.",
    _E.HEADERS_TOO_LARGE: "The headers are too large.",
    _E.INTERNAL: "Something went wrong on our side.",
    _E.TOO_MANY_BYTES: "The file is too large.",
    _E.UNSUPPORTED_FORMAT: "The format is not supported.",
    _E.INVALID_FIELD: "A field is missing or not valid.",
    _E.DIGEST_MISMATCH: "The bytes are not the announced ones.",
    _E.EMPTY_FILE: "The file is empty.",
    _E.TOO_MANY_PIXELS: "The image has too many pixels.",
    _E.TOO_LARGE_DIMENSION: "A side of the image is too long.",
    _E.OWNER_LIMIT: "Your share of unfinished work is used up.",
    _E.RATE_LIMITED: "Too many requests.",
    _E.BACKLOG_FULL: "All places for unfinished work are taken.",
    _E.STAGING_FULL: "The room for uploads is full.",
    _E.DEPENDENCY_UNAVAILABLE: "A server that this needs does not answer.",
    _E.RESERVATION_LOST: "The upload's reservation was lost.",
    _E.SHUTTING_DOWN: "This server is being stopped.",
}

#: Answers with these never go without `Retry-After`.
WAITING_STATUSES = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole HTTP answer, ready to be sent by whatever speaks to the wire."""

    status: HTTPStatus
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def problem_answer(error: ServiceError, *, extra: Mapping[str, object] | None = None) -> Answer:
    """Return the problem document of an error; `extra` adds members to it."""
    status = STATUS[error.code]
    document = {
        "type": f"{PROBLEM_TYPE_PREFIX}{error.code.value}",
        "title": TITLES[error.code],
        "status": status.value,
        "detail": error.message,
        "code": error.code.value,
        **(extra or {}),
    }
    body = json.dumps(document, ensure_ascii=False).encode()
    headers = [
        (b"content-type", PROBLEM_MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if status in WAITING_STATUSES or error.retry_after_s is not None:
        wait_s = math.ceil(error.retry_after_s or DEFAULT_RETRY_AFTER_S)
        if status in WAITING_STATUSES and wait_s <= SHORT_WAIT_S_MAX:
            wait_s += next(_STAGGER_S)
        headers.append((b"retry-after", str(wait_s).encode()))
    if status is HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="spillway"'))
    return Answer(status=status, headers=tuple(headers), body=body)


def raw_answer(answer: Answer) -> bytes:
    """Return the bytes of an HTTP/1.1 answer after which the connection is closed."""
    lines = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}".encode()]
    lines += [name + b": " + value for name, value in answer.headers]
    return b"\r\n".join([*lines, b"connection: close", b"", answer.body])
