"""Small JSON bodies: bounded before anything is parsed, then held against a model.

Invariant: no more than `JSON_BYTES_MAX` of a body is kept, and nothing of it is in an answer.
"""

import json
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from app.api.body import Pace, read_body
from app.api.wire import header_values, wire_of
from app.core.clock import monotonic_s
from app.core.settings import Settings
from contracts.errors import ErrorCode, ServiceError

#: Room for the longest text with every character escaped, and for all the attachments that any setting allows.
JSON_BYTES_MAX = 192 * 1024
JSON_MEDIA_TYPE = "application/json"

_Model = TypeVar("_Model", bound=BaseModel)


def json_pace(settings: Settings) -> Pace:
    """Return what the sender of a JSON body is held to."""
    return Pace(
        body_bytes_max=JSON_BYTES_MAX,
        idle_s_max=settings.upload_idle_s_max,
        rate_bytes_per_s_min=settings.upload_rate_bytes_per_s_min,
    )


def json_request(model: type[BaseModel]) -> dict[str, Any]:
    """Return the `openapi_extra=` of a route whose body is read by `read_json`; models are flat."""
    content = {JSON_MEDIA_TYPE: {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def read_json(request: Request, model: type[_Model], *, pace: Pace) -> _Model:
    """Return the body as a model.

    Raises:
        ServiceError: `unsupported_format` for another media type; `too_many_bytes`; `malformed_request` for what is
            not JSON; `invalid_field` for what is not the model; and what `read_body` raises.
    """
    check_json_headers(request.headers.raw, body_bytes_max=pace.body_bytes_max)
    body = bytearray()
    chunks = read_body(request.receive, wire=wire_of(request.scope), pace=pace, monotonic=monotonic_s)
    async with aclosing(chunks):
        async for chunk in chunks:
            body += chunk
    return parse_json(bytes(body), model)


def check_json_headers(headers: list[tuple[bytes, bytes]], *, body_bytes_max: int) -> None:
    """Check what is known before the body.

    Raises:
        ServiceError: `unsupported_format` or `too_many_bytes`.
    """
    types = [value.split(b";")[0].strip().lower() for value in header_values(headers, b"content-type")]
    if types != [JSON_MEDIA_TYPE.encode()]:
        raise ServiceError(ErrorCode.UNSUPPORTED_FORMAT, f"The body must be {JSON_MEDIA_TYPE}.")
    lengths = header_values(headers, b"content-length")
    if lengths and int(lengths[0]) > body_bytes_max:
        raise ServiceError(ErrorCode.TOO_MANY_BYTES, f"At most {body_bytes_max} bytes.")


def parse_json(body: bytes, model: type[_Model]) -> _Model:
    """Return a whole body as a model.

    Raises:
        ServiceError: `malformed_request` or `invalid_field`.
    """
    try:
        document = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ServiceError(ErrorCode.MALFORMED_REQUEST, "The body is not JSON in UTF-8.") from error
    try:
        return model.model_validate(document, strict=True)
    except ValidationError as error:
        raise ServiceError(ErrorCode.INVALID_FIELD, _which(error, model)) from error


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _which(error: ValidationError, model: type[BaseModel]) -> str:
    place = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    if not place:
        return "The body must be an object."
    # Unknown names are the client's own text, which no answer repeats.
    return f"The field `{place[0]}` is missing or not valid." if place[0] in model.model_fields else "Unknown field."
