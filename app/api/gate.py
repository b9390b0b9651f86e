"""The gate: pure ASGI in front of the framework. An upload is refused or admitted on its headers alone.

Invariant: no body byte is asked for, and no parser runs, before the upload has its place. A refusal takes no lock,
and no statement unless the token is not remembered, there is a key to look up, or `admit` itself says no. An upload
whose key stands for a job takes no place and is refused by no bound.
"""

from dataclasses import dataclass

from app.admission import Admission
from app.api.authentication import Authenticator
from app.api.body import Receive, Send
from app.api.exchange import App, send_problem
from app.api.filebody import form_of, overhead_bytes_max
from app.api.metrics import Metrics
from app.api.promises import promise_of
from app.api.replays import check_replay, key_in_use
from app.api.wire import UPLOADS, Admitted, Asked, Replay, Scope, header_values, set_upload
from app.core.jobstore import JobStore, KnownKey, Operation, UploadKey
from app.core.postgres import DatabaseUnavailableError
from app.core.settings import Settings
from app.reserving import Reserving, Wanted
from app.uploads import Uploads
from contracts.errors import ErrorCode, ServiceError

#: What the wire has for each header beside its name and value: ": " and the end of the line.
_HEADER_EXTRA_BYTES = 4
#: Digits of a Content-Length that anybody means.
_LENGTH_DIGITS_MAX = 18
#: Times that a place is asked for with a key that others free and take at the same moment.
_KEY_TRIES_MAX = 3

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateParts:
    """What the gate works with."""

    settings: Settings
    jobs: JobStore
    uploads: Uploads
    admission: Admission
    reserving: Reserving
    authenticator: Authenticator
    metrics: Metrics


class Gate:
    """ASGI middleware in front of the routes."""

    def __init__(self, app: App, parts: GateParts) -> None:
        self._app = app
        self._parts = parts
        self._settings = parts.settings
        self._asking = 0  #: uploads whose place is being asked for: none of them is in hand yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload: Admitted | Replay | None = None
        try:
            check_head(scope, header_bytes_max=self._settings.header_bytes_max)
            operation = UPLOADS.get(scope["path"])
            if operation is not None and scope["method"] == "POST":
                upload = await self._admit(scope["headers"], operation)
                set_upload(scope, upload)
        except ServiceError as error:
            await send_problem(scope, send, error)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if isinstance(upload, Admitted) and not upload.taken:
                await self._parts.uploads.drop(upload.reservation)

    async def _admit(self, headers: Headers, operation: Operation) -> Admitted | Replay:
        """Return an upload that may go on; the order of the checks is from cheap to dear."""
        boundary = form_of(next(iter(header_values(headers, b"content-type")), None))
        held_bytes = held_bytes_of(
            headers,
            file_bytes_max=self._settings.upload_bytes_max,
            overhead_bytes_max=overhead_bytes_max(boundary),
        )
        asked = Asked(
            operation=operation,
            boundary=boundary,
            held_bytes=held_bytes,
            # Before anything else that a stranger could learn from: evaluated in this order.
            owner=await self._owner(headers),
            promise=promise_of(headers, body_is_file=boundary is None),
        )
        for _ in range(_KEY_TRIES_MAX):
            known = await self._known(asked)
            if known is not None:
                check_replay(known, asked.promise)
                return Replay(asked=asked, known=known)
            admitted = await self._reserve(asked)
            if admitted is not None:
                return admitted
        raise key_in_use()

    async def _owner(self, headers: Headers) -> str:
        try:
            return await self._parts.authenticator.owner(headers)
        except DatabaseUnavailableError as error:
            self._parts.metrics.count_failure("database", "token_owner")
            raise self._parts.admission.outage() from error

    async def _known(self, asked: Asked) -> KnownKey | None:
        if asked.promise.key is None:
            return None
        try:
            return await self._parts.jobs.find_key(owner=asked.owner, operation=asked.operation, key=asked.promise.key)
        except DatabaseUnavailableError as error:
            self._parts.metrics.count_failure("database", "find_key")
            raise self._parts.admission.outage() from error

    async def _reserve(self, asked: Asked) -> Admitted | None:
        """Return the place, or None when the key was taken since it was looked up."""
        settings, key = self._settings, asked.promise.key
        if self._parts.uploads.in_flight + self._asking >= settings.uploads_in_flight_max:
            raise self._parts.admission.refuse_crowd()
        wanted = Wanted(
            owner=asked.owner,
            held_bytes=asked.held_bytes,
            lease_s=settings.upload_lease_s,
            deadline_s=settings.upload_deadline_s,
            key=None
            if key is None
            else UploadKey(operation=asked.operation, key=key, lifetime_s=settings.key_lifetime_s),
        )
        self._asking += 1
        try:
            reservation = await self._parts.reserving.reserve(wanted)
        finally:
            self._asking -= 1
        if reservation is None:
            return None
        self._parts.metrics.admitted.inc()
        return Admitted(asked=asked, reservation=reservation)


def check_head(scope: Scope, *, header_bytes_max: int) -> None:
    """Check what holds for every request.

    Raises:
        ServiceError: `headers_too_large`, the address counted in; `malformed_request` when the end of the body is told
            in two ways; `not_found`.
    """
    if scope["path"].endswith("\n"):
        # The router's patterns let one line end pass that the gate's own table of paths does not.
        raise ServiceError(ErrorCode.NOT_FOUND, "No path ends with a line feed.")
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


def held_bytes_of(headers: Headers, *, file_bytes_max: int, overhead_bytes_max: int) -> int:
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
    if announced_bytes > file_bytes_max + overhead_bytes_max:
        raise ServiceError(ErrorCode.TOO_MANY_BYTES, f"At most {file_bytes_max} bytes.")
    return min(announced_bytes, file_bytes_max)
