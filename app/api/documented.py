"""What every route says of its refusals, for the document of the interface.

Invariant: the statuses are those of the one table in `app.api.errors`, so document and answer cannot disagree.
"""

from typing import Any

from app.api.errors import PROBLEM_MEDIA_TYPE, STATUS, TITLES, WAITING_STATUSES
from contracts.errors import ErrorCode

_E = ErrorCode

#: What any route behind a token may answer.
ALWAYS = (
    _E.MALFORMED_REQUEST,
    _E.UNAUTHENTICATED,
    _E.FORBIDDEN,
    _E.METHOD_NOT_ALLOWED,
    _E.HEADERS_TOO_LARGE,
    _E.RATE_LIMITED,
    _E.INTERNAL,
    _E.DEPENDENCY_UNAVAILABLE,
    _E.SHUTTING_DOWN,
)


def problems(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route: the codes given and those of every route, by status."""
    by_status: dict[int, list[ErrorCode]] = {}
    for code in dict.fromkeys((*codes, *ALWAYS)):
        by_status.setdefault(STATUS[code].value, []).append(code)
    return {status: _answer(found) for status, found in sorted(by_status.items())}


def _answer(codes: list[ErrorCode]) -> dict[str, Any]:
    status = STATUS[codes[0]]
    answer: dict[str, Any] = {
        "description": " ".join(f"`{code.value}`: {TITLES[code]}" for code in codes),
        "content": {PROBLEM_MEDIA_TYPE: {"schema": _schema(codes)}},
    }
    if status in WAITING_STATUSES:
        answer["headers"] = {
            "Retry-After": {
                "description": "Seconds to wait at least before another try.",
                "required": True,
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    return answer


def _schema(codes: list[ErrorCode]) -> dict[str, Any]:
    """Problem details (RFC 9457) with the codes that this status can carry here."""
    return {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": {"type": "string", "format": "uri"},
            "title": {"type": "string"},
            "status": {"type": "integer", "const": STATUS[codes[0]].value},
            "detail": {"type": "string"},
            "code": {"type": "string", "enum": [code.value for code in codes]},
        },
    }


def header(name: str, description: str, *, required: bool = False) -> dict[str, Any]:
    """Return a parameter of a request that a route reads from its headers by itself."""
    schema = {"type": "string"}
    return {"name": name, "in": "header", "required": required, "description": description, "schema": schema}


def answers_with(headers: dict[str, str], description: str) -> dict[str, Any]:
    """Return an entry of `responses=`: what the answer is, and its headers with what each says."""
    shown = {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
    return {"description": description, "headers": shown}
