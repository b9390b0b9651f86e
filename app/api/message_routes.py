"""Where messages, attachments and contents are, and what each may answer."""

from typing import Any

from fastapi import FastAPI, Response

from app.api.attachment_schemas import Attached, AttachmentShown, MessagePage, MessageShown, NewAttachments, NewMessage
from app.api.attachments import Attachments
from app.api.contents import CONTENT_ANSWERS, Contents
from app.api.documented import problems
from app.api.json_body import json_request
from app.api.messages import Messages
from app.api.services import Services
from app.api.wire import ATTACHMENTS_PATH, MESSAGES_PATH
from contracts.errors import ErrorCode

_E = ErrorCode
_KNOWN: dict[int | str, dict[str, Any]] = {304: {"description": "The client has this document already."}}
_BODY_CODES = (
    _E.TRUNCATED_BODY,
    _E.UPLOAD_TOO_SLOW,
    _E.TOO_MANY_BYTES,
    _E.UNSUPPORTED_FORMAT,
    _E.INVALID_FIELD,
)


def add_message_routes(app: FastAPI, services: Services) -> None:
    """Add the routes of messages, attachments and contents."""
    _add_messages(app, Messages(services))
    app.add_api_route(
        ATTACHMENTS_PATH + "/{attachment_id}",
        Attachments(services).read,
        methods=["GET"],
        response_model=AttachmentShown,
        response_model_exclude_none=True,
        responses={**_KNOWN, **problems(_E.NOT_FOUND, _E.EXPIRED)},
    )
    _add_contents(app, Contents(services))


def _add_messages(app: FastAPI, messages: Messages) -> None:
    naming = (*_BODY_CODES, _E.NOT_FOUND, _E.ALREADY_ATTACHED)
    app.add_api_route(
        MESSAGES_PATH,
        messages.create,
        methods=["POST"],
        status_code=201,
        response_model=MessageShown,
        responses=problems(*naming),
        openapi_extra=json_request(NewMessage),
    )
    app.add_api_route(
        MESSAGES_PATH,
        messages.page,
        methods=["GET"],
        response_model=MessagePage,
        responses={**_KNOWN, **problems(_E.INVALID_FIELD)},
    )
    one = MESSAGES_PATH + "/{message_id}"
    app.add_api_route(
        one,
        messages.read,
        methods=["GET"],
        response_model=MessageShown,
        responses={**_KNOWN, **problems(_E.NOT_FOUND)},
    )
    app.add_api_route(
        one + "/attachments",
        messages.attach,
        methods=["POST"],
        status_code=202,
        response_model=Attached,
        responses=problems(*naming),
        openapi_extra=json_request(NewAttachments),
    )


def _add_contents(app: FastAPI, contents: Contents) -> None:
    path = ATTACHMENTS_PATH + "/{attachment_id}/content"
    for handler, method, suffix in (
        (contents.read, "GET", ""),
        (contents.head, "HEAD", ""),
        (contents.read_variant, "GET", "/{variant}"),
        (contents.head_variant, "HEAD", "/{variant}"),
    ):
        app.add_api_route(path + suffix, handler, methods=[method], response_class=Response, responses=CONTENT_ANSWERS)
