"""What the document says beyond what routes say of themselves: forms of headers, contents, health, metrics.

Invariant: nothing here decides anything; tests hold it against the running API.
"""

from typing import Any

from app.api.documented import header, problems
from app.core.telemetry import METRICS_MEDIA_TYPE

#: Refusals of requests that need no token.
_OPEN_STATUSES = frozenset({400, 405, 431, 500})

_COMPONENT = {"type": "string", "enum": ["up", "away"]}
_COMPONENTS = {
    "type": "object",
    "required": ["database", "store", "broker", "relay", "workers", "janitor"],
    "additionalProperties": _COMPONENT,
    "description": "What is up. Only database and store are needed to accept uploads.",
}

#: What every value of a header is held to, wherever it is sent; missing where a header is only described.
REQUEST_HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    # A dictionary of digests (RFC 9530) such as `sha-256=:BASE64:`; other algorithms are passed over.
    "Repr-Digest": {"type": "string", "format": "digests"},
    "Content-Digest": {"type": "string", "format": "digests"},
}
_SECONDS = {"type": "integer", "minimum": 1}
RESPONSE_HEADERS: dict[str, dict[str, Any]] = {
    "Location": {"required": True, "schema": {"type": "string", "format": "uri-reference"}},
    "Cache-Control": {"required": True, "schema": {"type": "string"}},
    "ETag": {"required": True, "schema": {"type": "string", "pattern": '^"[!#-~]+"$'}},
    "Retry-After": {"schema": _SECONDS},
    "Idempotency-Replayed": {"schema": {"type": "string", "const": "true"}},
    "Preference-Applied": {"schema": {"type": "string", "pattern": "^wait=[0-9]+$"}},
    "Content-Language": {"schema": {"type": "string", "enum": ["en", "ru"]}},
}
#: Headers of contents, which their routes do not describe by themselves.
CONTENT_HEADERS: dict[str, dict[str, str]] = {
    "200": {
        "ETag": "Strong: the SHA-256 of the content.",
        "Cache-Control": "`private, no-cache`: ask each time.",
        "Content-Disposition": "`inline` with a generated file name.",
        "X-Content-Type-Options": "Always `nosniff`.",
        "Accept-Ranges": "Always `bytes`.",
    },
    "303": {"Location": "A presigned link to the content in the store.", "Cache-Control": "Always `no-store`."},
    "304": {"ETag": "Strong: the SHA-256 of the content.", "Cache-Control": "`private, no-cache`."},
}
CONTENT_HEADERS["206"] = {**CONTENT_HEADERS["200"], "Content-Range": "Which bytes of how many."}
CONTENT_PARAMETERS = [
    header("If-None-Match", "ETags that the client has: 304 when one of them is the present one."),
    header("Range", "`bytes=FIRST-LAST`: one range; several are answered whole."),
    header("If-Range", "The ETag that the range is of; with another one the answer is whole."),
]


def open_answers(operation: str) -> dict[str, Any]:
    """Return the answers of an operation that needs no token."""
    refusals = {status: answer for status, answer in _by_text(problems()).items() if int(status) in _OPEN_STATUSES}
    if operation == "metrics":
        # Where a setting asks for a token, they are as closed as everything else.
        refusals = _by_text(problems())
        text = {"content": {METRICS_MEDIA_TYPE.split(";")[0]: {"schema": {"type": "string"}}}}
        return {"200": {"description": "Prometheus' text format.", **text}, **refusals}
    if operation == "live":
        live = {"type": "object", "required": ["status"], "properties": {"status": {"const": "live"}}}
        return {"200": _json("The process answers.", live), **refusals}
    ready = {
        "type": "object",
        "required": ["status", "components"],
        "properties": {
            "status": {"type": "string", "enum": ["ready", "degraded"]},
            "components": _COMPONENTS,
        },
    }
    away = _by_text(problems())["503"]
    return {
        "200": _json("Uploads are accepted. `degraded`: something behind the accept is away.", ready),
        **refusals,
        "503": {**away, "description": "Database or store is away: uploads cannot be accepted."},
    }


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _by_text(answers: dict[int | str, dict[str, Any]]) -> dict[str, Any]:
    return {str(status): answer for status, answer in answers.items()}
