"""What the gate, the routes and the server tell each other about one request through its ASGI scope."""

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

from app.core.jobstore import Reservation
from contracts.errors import ErrorCode

#: The one route whose bodies are read.
UPLOAD_PATH = "/api/v1/images"

Scope = MutableMapping[str, Any]

_WIRE, _ADMITTED, _PROBLEM = "spillway.wire", "spillway.admitted", "spillway.problem"


@dataclass(slots=True)
class Wire:
    """How the request's bytes ended, where that is not how they should have: the code to answer with, or None."""

    broken: ErrorCode | None = None


@dataclass(slots=True, kw_only=True)
class Admitted:
    """An upload that has its place; whoever takes it ends it."""

    reservation: Reservation
    boundary: bytes
    taken: bool = False


def wire_of(scope: Scope) -> Wire:
    """Return the request's wire; a server that does not know of wires never breaks one."""
    return cast("Wire", scope.setdefault(_WIRE, Wire()))


def set_wire(scope: Scope, wire: Wire) -> None:
    """Give a request its wire."""
    scope[_WIRE] = wire


def set_admitted(scope: Scope, admitted: Admitted) -> None:
    """Hand an admitted upload to its route."""
    scope[_ADMITTED] = admitted


def take_admitted(scope: Scope) -> Admitted:
    """Return the admitted upload; it is the caller's to end from now on."""
    admitted = cast("Admitted", scope[_ADMITTED])
    admitted.taken = True
    return admitted


def set_problem(scope: Scope, code: ErrorCode) -> None:
    """Note with which code the request is answered."""
    scope[_PROBLEM] = code


def problem_of(scope: Scope) -> ErrorCode | None:
    """Return the code noted, None for an answer that is a success."""
    return cast("ErrorCode | None", scope.get(_PROBLEM))


def header_values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Return every value of a header; names are in lower case, as ASGI has them."""
    return [value.strip(b" \t") for key, value in headers if key == name]
