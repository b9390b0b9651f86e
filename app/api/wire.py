"""What the gate, the routes and the server tell each other about one request through its ASGI scope."""

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

from app.core.jobstore import KnownKey, Operation, Reservation
from contracts.errors import ErrorCode

IMAGES_PATH = "/api/v1/images"
ATTACHMENTS_PATH = "/api/v1/attachments"
JOBS_PATH = "/api/v1/image-jobs"
PLACES_PATH = "/api/v1/image-places"
MESSAGES_PATH = "/api/v1/messages"
ADMIN_PATH = "/api/v1/admin"
#: What is uploaded where: a POST to one of these goes through the gate.
UPLOADS = {IMAGES_PATH: Operation.IMAGE, ATTACHMENTS_PATH: Operation.ATTACHMENT}

Scope = MutableMapping[str, Any]

_WIRE, _UPLOAD, _PROBLEM = "spillway.wire", "spillway.upload", "spillway.problem"


def _no_connection() -> None:
    """Do nothing: a server that does not know of wires has nothing to end."""


@dataclass(slots=True)
class Wire:
    """The connection under a request.

    `broken` is how its bytes ended where that is not how they should have: the code to answer with, or None. `abort`
    ends the connection at once, with whatever it still had to send.
    """

    broken: ErrorCode | None = None
    ended: bool = False  #: the client has closed its side, though it may still read
    abort: Callable[[], None] = _no_connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the headers said: the key, and SHA-256 (lower-case hexadecimal) of the file and of the body as sent."""

    key: str | None = None
    file_sha256: str | None = None
    body_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an upload's headers ask for; without a boundary the body is the file."""

    owner: str
    operation: Operation
    held_bytes: int
    boundary: bytes | None
    promise: Promise


@dataclass(slots=True, kw_only=True)
class Admitted:
    """An upload that has its place; whoever takes it ends it."""

    asked: Asked
    reservation: Reservation
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An upload whose key stands for a job already: it has no place and needs none."""

    asked: Asked
    known: KnownKey


def wire_of(scope: Scope) -> Wire:
    """Return the request's wire; a server that does not know of wires never breaks one."""
    return cast("Wire", scope.setdefault(_WIRE, Wire()))


def set_wire(scope: Scope, wire: Wire) -> None:
    """Give a request its wire."""
    scope[_WIRE] = wire


def set_upload(scope: Scope, upload: Admitted | Replay) -> None:
    """Hand an upload that the gate let through to its route."""
    scope[_UPLOAD] = upload


def take_upload(scope: Scope) -> Admitted | Replay:
    """Return the upload; an admitted one is the caller's to end from now on."""
    upload = cast("Admitted | Replay", scope[_UPLOAD])
    if isinstance(upload, Admitted):
        upload.taken = True
    return upload


def set_problem(scope: Scope, code: ErrorCode) -> None:
    """Note with which code the request is answered."""
    scope[_PROBLEM] = code


def problem_of(scope: Scope) -> ErrorCode | None:
    """Return the code noted, None for an answer that is a success."""
    return cast("ErrorCode | None", scope.get(_PROBLEM))


def header_values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Return every value of a header; names are in lower case, as ASGI has them."""
    return [value.strip(b" \t") for key, value in headers if key == name]
