"""The document of the interface, `contracts/openapi.json`: what the framework knows of the routes, and what it cannot.

Invariant: a pure function of the routes. A route without a name here is an error, so that none is left undescribed;
what a route says of itself is never overwritten.
"""

from typing import Any

from fastapi import FastAPI

from app.api.contents import ContentName
from app.api.documented import answers_with
from app.api.errors import PROBLEM_MEDIA_TYPE
from app.api.openapi_answers import (
    CONTENT_HEADERS,
    CONTENT_PARAMETERS,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    open_answers,
)
from app.core.settings import Settings

#: Semantic version of the interface: the first part changes when a client must.
CONTRACT_VERSION = "1.0.0"
OPENAPI_VERSION = "3.1.0"

DESCRIPTION = (
    "Image uploads that are accepted only when they are durably kept, refused honestly when they could not be "
    "finished in time, and processed exactly once in effect. What the answers mean is in contracts/README.md. "
    "Optional fields are missing when they do not apply, and never null. Clients ignore fields that they do not know, "
    "and take a status that they do not know for not final."
)

#: Names of all operations, by method and path; the first word of the path's place is its tag.
OPERATIONS: dict[tuple[str, str], str] = {
    ("post", "/api/v1/images"): "uploadImage",
    ("get", "/api/v1/images/{image_id}"): "readImage",
    ("delete", "/api/v1/images/{image_id}"): "eraseImage",
    ("get", "/api/v1/image-jobs"): "listJobs",
    ("get", "/api/v1/image-jobs/{job_id}"): "readJob",
    ("delete", "/api/v1/image-jobs/{job_id}"): "cancelJob",
    ("post", "/api/v1/image-places"): "reservePlace",
    ("delete", "/api/v1/image-places/{job_id}"): "returnPlace",
    ("post", "/api/v1/image-places/{job_id}/complete"): "completePlace",
    ("post", "/api/v1/attachments"): "uploadAttachment",
    ("get", "/api/v1/attachments/{attachment_id}"): "readAttachment",
    ("get", "/api/v1/attachments/{attachment_id}/content"): "readContent",
    ("head", "/api/v1/attachments/{attachment_id}/content"): "headContent",
    ("get", "/api/v1/attachments/{attachment_id}/content/{variant}"): "readVariant",
    ("head", "/api/v1/attachments/{attachment_id}/content/{variant}"): "headVariant",
    ("get", "/api/v1/messages"): "listMessages",
    ("post", "/api/v1/messages"): "createMessage",
    ("get", "/api/v1/messages/{message_id}"): "readMessage",
    ("post", "/api/v1/messages/{message_id}/attachments"): "attach",
    ("get", "/api/v1/admin/failed-jobs"): "listFailedJobs",
    ("get", "/api/v1/admin/jobs/{job_id}"): "inspectJob",
    ("post", "/api/v1/admin/jobs/{job_id}/replay"): "replayJob",
    ("post", "/api/v1/admin/replays"): "replayJobs",
    ("get", "/api/v1/admin/dead-letters"): "listDeadLetters",
    ("get", "/health/live"): "live",
    ("get", "/health/ready"): "ready",
    ("get", "/metrics"): "metrics",
}

#: Operations that need no token.
OPEN_OPERATIONS = frozenset({"live", "ready", "metrics"})

CONTENT_OPERATIONS = frozenset({"readContent", "headContent", "readVariant", "headVariant"})

#: Where an answer's ids lead: operation and status → operation, parameter, and where its value is.
_LINKS: dict[tuple[str, str], tuple[tuple[str, str, str], ...]] = {
    ("uploadImage", "202"): (
        ("readJob", "job_id", "/job_id"),
        ("cancelJob", "job_id", "/job_id"),
        ("readImage", "image_id", "/image_id"),
        ("eraseImage", "image_id", "/image_id"),
    ),
    ("reservePlace", "201"): (
        ("completePlace", "job_id", "/job_id"),
        ("returnPlace", "job_id", "/job_id"),
    ),
    ("uploadAttachment", "202"): (
        ("createMessage", "attachment_ids", "/attachment_id"),
        ("readAttachment", "attachment_id", "/attachment_id"),
        ("readContent", "attachment_id", "/attachment_id"),
        ("headContent", "attachment_id", "/attachment_id"),
        ("readVariant", "attachment_id", "/attachment_id"),
        ("headVariant", "attachment_id", "/attachment_id"),
    ),
    ("createMessage", "201"): (
        ("readMessage", "message_id", "/message_id"),
        ("attach", "message_id", "/message_id"),
    ),
}

_GENERATED = frozenset({"HTTPValidationError", "ValidationError"})
_ALLOW = {"description": "The methods that are.", "required": True, "schema": {"type": "string"}}
#: A cursor is opaque; this is what all of them look like (`app.api.cursors`).
CURSOR_PATTERN = "^A[A-Za-v][A-Za-z0-9_-]{30}$"


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the whole document.

    Raises:
        KeyError: a route has no name in `OPERATIONS`.
    """
    document = app.openapi()
    document["openapi"] = OPENAPI_VERSION
    document["info"] = {
        "title": "Spillway",
        "version": CONTRACT_VERSION,
        "description": DESCRIPTION,
        "license": {"name": "MIT", "identifier": "MIT"},
    }
    document["servers"] = [{"url": "http://localhost:8080", "description": "A local stack."}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _dress(operation, name=OPERATIONS[method, path], path=path)
    schemas = document["components"]["schemas"]
    for generated in _GENERATED & schemas.keys():
        del schemas[generated]
    document["components"]["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of `spillway token create`.",
        }
    }
    _share_refusals(document)
    plain: dict[str, Any] = _plain(document)
    return plain


def _dress(operation: dict[str, Any], *, name: str, path: str) -> None:
    operation["operationId"] = name
    operation["tags"] = [path.removeprefix("/api/v1/").strip("/").split("/")[0]]
    operation["security"] = [] if name in OPEN_OPERATIONS else [{"bearer": []}]
    operation["summary"] = operation.pop("description", operation.get("summary", name)).split("\n")[0]
    answers = operation["responses"]
    for status in [status for status, answer in answers.items() if _is_generated(answer)]:
        del answers[status]
    if name in CONTENT_OPERATIONS:
        operation.setdefault("parameters", []).extend(CONTENT_PARAMETERS)
        for status, headers in CONTENT_HEADERS.items():
            answers[status].setdefault("headers", {}).update(answers_with(headers, "")["headers"])
    if name in OPEN_OPERATIONS:
        _complete(answers, open_answers(name))
    _bound(operation, name=name)
    _link(answers, name=name)
    if "405" in answers:
        answers["405"]["headers"] = {"Allow": _ALLOW}
    operation["responses"] = dict(sorted(answers.items()))


def _bound(operation: dict[str, Any], *, name: str) -> None:
    """Say of parameters and body what the handler holds them to."""
    for parameter in operation.get("parameters", ()):
        _bound_parameter(parameter, operation=name)
    for content in operation.get("requestBody", {}).get("content", {}).values():
        for field, bounds in _BODY_BOUNDS.items():
            if field in content["schema"].get("properties", {}):
                content["schema"]["properties"][field].update(bounds)
        if "file" in content["schema"].get("properties", {}):
            content["encoding"] = {"file": {"contentType": "image/*"}}
    for answer in operation["responses"].values():
        for header_name, said in answer.get("headers", {}).items():
            said.update(RESPONSE_HEADERS.get(header_name, {}))


def _link(answers: dict[str, Any], *, name: str) -> None:
    """Say where the ids of an answer lead."""
    for status, answer in answers.items():
        for target, parameter, pointer in _LINKS.get((name, status), ()):
            link: dict[str, Any] = {"operationId": target}
            if target == "createMessage":
                link["requestBody"] = {"text": "Hello", parameter: [f"$response.body#{pointer}"]}
            else:
                link["parameters"] = {parameter: f"$response.body#{pointer}"}
            answer.setdefault("links", {})[target] = link


def _bound_parameter(parameter: dict[str, Any], *, operation: str) -> None:
    """Say of a parameter what its handler holds it to."""
    if parameter["in"] == "path" and parameter["name"].endswith("_id"):
        parameter["schema"] = {"type": "string", "format": "uuid"}
    elif (parameter["in"], parameter["name"]) == ("path", "variant"):
        parameter["schema"] = {"type": "string", "enum": [name.value for name in ContentName]}
    elif parameter["name"] in ("since", "until"):
        parameter["schema"] = {"type": "string", "format": "date-time"}
    elif parameter["name"] == "cursor":
        parameter["schema"] = {"type": "string", "pattern": CURSOR_PATTERN}
    elif (operation, parameter["name"]) == ("listMessages", "limit"):
        parameter["schema"] = {"type": "integer", "minimum": 1, "maximum": _default("page_rows_max")}
    elif parameter["name"] in REQUEST_HEADERS:
        parameter["schema"] = REQUEST_HEADERS[parameter["name"]]


def _default(setting: str) -> Any:
    """Return the default of a setting: what the document promises, and what a deployment may change."""
    return Settings.model_fields[setting].default


#: Bounds of body fields that are settings, and what opaque ones look like.
_BODY_BOUNDS = {
    "cursor": {"pattern": CURSOR_PATTERN},
    "attachment_ids": {"maxItems": _default("message_attachments_max")},
    "bytes": {"maximum": _default("upload_bytes_max")},
    "text": {"pattern": r"^[^\u0000]*$"},
}


def _complete(answers: dict[str, Any], known: dict[str, Any]) -> None:
    """Add what is missing; an answer of the framework's making is described by ours."""
    for status, answer in known.items():
        said = answers.get(status, {})
        answers[status] = {**said, **answer} if status.startswith("2") else (said or answer)


def _is_generated(answer: dict[str, Any]) -> bool:
    """Whether the framework thought of this answer: it describes its own way of refusing, which is not ours."""
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).rpartition("/")[2] in _GENERATED


def _share_refusals(document: dict[str, Any]) -> None:
    """Describe each set of refusals once: a status and its codes are its name."""
    shared = document["components"].setdefault("responses", {})
    for methods in document["paths"].values():
        for operation in methods.values():
            answers = operation["responses"]
            for status, answer in answers.items():
                if (name := _refusal_name(status, answer)) is not None:
                    shared.setdefault(name, answer)
                    if shared[name] == answer:
                        answers[status] = {"$ref": f"#/components/responses/{name}"}
    document["components"]["responses"] = dict(sorted(shared.items()))


def _refusal_name(status: str, answer: dict[str, Any]) -> str | None:
    schema = answer.get("content", {}).get(PROBLEM_MEDIA_TYPE, {}).get("schema")
    return None if schema is None else "-".join((status, *schema["properties"]["code"]["enum"]))


def _plain(node: Any) -> Any:
    """Return the node with "this or null" made to "this", since what does not apply is missing, and without titles."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    choices = node.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        left = [choice for choice in choices if choice != {"type": "null"}]
        rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        node = {**rest, **left[0]} if len(left) == 1 else {**rest, "anyOf": left}
    is_schema = "version" not in node  # the document's own title stays
    return {
        key: _plain(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str) and is_schema)
    }
