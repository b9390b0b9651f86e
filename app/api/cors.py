"""Lets browsers of named origins call the API: preflights are answered here, in front of the gate.

Invariant: without an origin in the settings nothing of this is installed, and no browser's page reads an answer.
"""

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from app.api.errors import problem_answer
from app.api.exchange import App
from contracts.errors import ErrorCode, ServiceError

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
#: What a page may send beside what browsers always let it.
REQUEST_HEADERS = (
    "Authorization",
    "Content-Digest",
    "Idempotency-Key",
    "If-None-Match",
    "If-Range",
    "Prefer",
    "Range",
    "Repr-Digest",
    "Upload-Length",
    "Upload-Type",
)
#: What a page may read beside the body.
ANSWER_HEADERS = (
    "Location",
    "Retry-After",
    "ETag",
    "Idempotency-Replayed",
    "Preference-Applied",
    "Accept-Ranges",
    "Content-Disposition",
    "Content-Range",
)
PREFLIGHT_S_MAX = 600


class Cors(CORSMiddleware):
    """The library's middleware with our refusals."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the answer to a preflight: what may be sent, or a problem."""
        response = super().preflight_response(request_headers)
        if response.status_code < HTTPStatus.BAD_REQUEST:
            return response
        message = "Pages of this origin may not send such a request."
        answer = problem_answer(ServiceError(ErrorCode.FORBIDDEN, message))
        refused = Response(content=answer.body, status_code=answer.status.value)
        refused.raw_headers = [*answer.headers, (b"vary", response.headers["vary"].encode("latin-1"))]
        return refused


def let_in(app: App, *, origins: tuple[str, ...]) -> App:
    """Return the app as browsers of these origins may call it."""
    if not origins:
        return app
    return Cors(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=REQUEST_HEADERS,
        expose_headers=ANSWER_HEADERS,
        max_age=PREFLIGHT_S_MAX,
    )
