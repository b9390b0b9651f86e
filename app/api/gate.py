"""The gate: pure ASGI in front of the framework. An upload is refused or admitted on its headers alone.

Invariant: no body byte is asked for, and no parser runs, before the upload has its place. A refusal takes no lock,
and no statement unless the token is not remembered or `admit` itself says no.
"""

import uuid
from dataclasses import dataclass

from app.admission import Admission
from app.api.authentication import Authenticator
from app.api.body import Receive, Send
from app.api.exchange import App, send_problem
from app.api.metrics import Metrics
from app.api.multipart import OVERHEAD_BYTES_MAX, boundary_of
from app.api.wire import UPLOAD_PATH, Admitted, Scope, header_values, set_admitted
from app.core.jobstore import JobStore, Reservation
from app.core.postgres import DatabaseUnavailableError
from app.core.settings import Settings
from app.uploads import Uploads
from contracts.errors import ErrorCode, ServiceError

#: What the wire has for each header beside its name and value: ": " and the end of the line.
_HEADER_EXTRA_BYTES = 4
#: Digits of a Content-Length that anybody means.
_LENGTH_DIGITS_MAX = 18

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateParts:
    """What the gate works with."""

    settings: Settings
    jobs: JobStore
    uploads: Uploads
    admission: Admission
    authenticator: Authenticator
    metrics: Metrics


class Gate:
    """ASGI middleware in front of the routes."""

    def __init__(self, app: App, parts: GateParts) -> None:
        self._app = app
        self._parts = parts
        self._settings = parts.settings
        #: Set when the process is told to stop: nothing more is admitted.
        self.shutting_down = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        admitted: Admitted | None = None
        try:
            check_head(scope, header_bytes_max=self._settings.header_bytes_max)
            if scope["path"] == UPLOAD_PATH and scope["method"] == "POST":
                admitted = await self._admit(scope["headers"])
                set_admitted(scope, admitted)
        except ServiceError as error:
            await send_problem(scope, send, error)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if admitted is not None and not admitted.taken:
                await self._parts.uploads.drop(admitted.reservation)

    async def _admit(self, headers: Headers) -> Admitted:
        """Return the place of an upload; the order of the checks is from cheap to dear."""
        held_bytes = held_bytes_of(headers, file_bytes_max=self._settings.upload_bytes_max)
        boundary = boundary_of(next(iter(header_values(headers, b"content-type")), None))
        owner = await self._owner(headers)
        self._check_process()
        refusal = self._parts.admission.refuse(held_bytes=held_bytes)
        if refusal is not None:
            raise refusal
        return Admitted(reservation=await self._reserve(owner, held_bytes), boundary=boundary)

    async def _owner(self, headers: Headers) -> str:
        try:
            return await self._parts.authenticator.owner(headers)
        except DatabaseUnavailableError as error:
            self._parts.metrics.count_failure("database", "token_owner")
            raise self._parts.admission.outage() from error

    def _check_process(self) -> None:
        if self.shutting_down:
            raise ServiceError(ErrorCode.SHUTTING_DOWN, "Send the upload again.", retry_after_s=1)
        if self._parts.uploads.in_flight >= self._settings.uploads_in_flight_max:
            raise ServiceError(ErrorCode.BACKLOG_FULL, "Too many uploads are on their way.", retry_after_s=2)

    async def _reserve(self, owner: str, held_bytes: int) -> Reservation:
        reservation = Reservation(
            job_id=uuid.uuid4(),
            image_id=uuid.uuid4(),
            owner=owner,
            upload_token=uuid.uuid4(),
            held_bytes=held_bytes,
        )
        admission = self._parts.admission
        admission.note_try()
        try:
            outcome = await self._parts.jobs.admit(
                reservation,
                bounds=admission.bounds,
                lease_s=self._settings.upload_lease_s,
                deadline_s=self._settings.upload_deadline_s,
            )
        except DatabaseUnavailableError as error:
            # Should it have been admitted all the same, its lease runs out and the janitor gives the place back.
            self._parts.metrics.count_failure("database", "admit")
            raise admission.note_outage() from error
        refusal = admission.note_outcome(outcome, held_bytes=held_bytes)
        if refusal is not None:
            raise refusal
        self._parts.metrics.admitted.inc()
        return reservation


def check_head(scope: Scope, *, header_bytes_max: int) -> None:
    """Check what holds for every request.

    Raises:
        ServiceError: `headers_too_large`, the address counted in; `malformed_request` when the end of the body is told
            in two ways.
    """
    headers: Headers = scope["headers"]
    head_bytes = sum(len(name) + len(value) + _HEADER_EXTRA_BYTES for name, value in headers)
    head_bytes += len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    if head_bytes > header_bytes_max:
        raise ServiceError(ErrorCode.HEADERS_TOO_LARGE, f"At most {header_bytes_max} bytes of headers.")
    lengths = header_values(headers, b"content-length")
    codings = header_values(headers, b"transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise ServiceError(ErrorCode.MALFORMED_REQUEST, "The length of the body is told more than once.")
    if codings and codings[0].lower() != b"chunked":
        raise ServiceError(ErrorCode.MALFORMED_REQUEST, "Only the transfer coding `chunked` is known.")
    if lengths and not (lengths[0].isdigit() and len(lengths[0]) <= _LENGTH_DIGITS_MAX):
        raise ServiceError(ErrorCode.MALFORMED_REQUEST, "The Content-Length is not a number.")


def held_bytes_of(headers: Headers, *, file_bytes_max: int) -> int:
    """Return how many bytes an upload holds in the books until it is known: what is announced, else the limit.

    Raises:
        ServiceError: `truncated_body` when there is no body; `too_many_bytes` when more is announced than allowed.
    """
    lengths = header_values(headers, b"content-length")
    if not lengths and header_values(headers, b"transfer-encoding"):
        return file_bytes_max
    announced_bytes = int(lengths[0]) if lengths else 0
    if not announced_bytes:
        raise ServiceError(ErrorCode.TRUNCATED_BODY, "The request has no body.")
    if announced_bytes > file_bytes_max + OVERHEAD_BYTES_MAX:
        raise ServiceError(ErrorCode.TOO_MANY_BYTES, f"At most {file_bytes_max} bytes.")
    return min(announced_bytes, file_bytes_max)
