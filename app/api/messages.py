"""The routes of messages: written, read, listed, and given attachments that may still be on their way.

Invariant: a message and what it names are one statement, so neither is ever there without the other.
"""

import uuid
from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Request, Response

from app.api.answers import json_response
from app.api.attachment_schemas import (
    Attached,
    AttachmentState,
    MessagePage,
    MessageShown,
    NewAttachments,
    NewMessage,
    attachment_shown,
    message_shown,
)
from app.api.attachments import fresh_or_known
from app.api.cursors import cursor_of, cursor_text
from app.api.ids import not_found, path_id
from app.api.json_body import json_pace, read_json
from app.api.preferences import language_of
from app.api.services import Services
from app.api.wire import MESSAGES_PATH, header_values
from app.core.jobviews import Cursor
from app.core.messages import Attachment, AttachOutcome, Message
from app.core.postgres import DatabaseUnavailableError
from app.core.retention import keep_settings
from contracts.errors import ErrorCode, Language, ServiceError

#: Messages on a page when the client names no number, or less where the setting says so.
PAGE_ROWS = 50

#: From the one that is least far to those that are done.
_PROGRESS = (
    AttachmentState.QUEUED,
    AttachmentState.PROCESSING,
    AttachmentState.FAILED,
    AttachmentState.EXPIRED,
    AttachmentState.READY,
)

LimitQuery = Annotated[int | None, Query(ge=1, description="Messages on the page.")]
CursorQuery = Annotated[str | None, Query(description="`next_cursor` of the page before.")]


class Messages:
    """The handlers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._messages = services.messages
        self._pace = json_pace(services.settings)
        self._keep = keep_settings(services.settings)

    async def create(self, request: Request) -> Response:
        """Write a message that may name attachments."""
        owner = await self._owner(request)
        new = await read_json(request, NewMessage, pace=self._pace)
        message_id, attachment_ids = uuid.uuid4(), self._ids(new.attachment_ids)
        message = await self._create(message_id, owner=owner, body=new.text, attachment_ids=attachment_ids)
        (shown,) = await self._shown([message], language=_language(request))
        headers = {"Location": f"{MESSAGES_PATH}/{message_id}", "Cache-Control": "no-store"}
        return json_response(shown.model_dump_json(exclude_none=True), status=201, headers=headers)

    async def read(self, message_id: str, request: Request) -> Response:
        """Show a message with the present states of its attachments."""
        owner = await self._owner(request)
        message = await self._messages.find(path_id(message_id), owner=owner)
        if message is None:
            raise not_found()
        (shown,) = await self._shown([message], language=_language(request))
        return fresh_or_known(request, shown.model_dump_json(exclude_none=True), extra={})

    async def page(self, request: Request, limit: LimitQuery = None, cursor: CursorQuery = None) -> Response:
        """Show some of an owner's messages, newest first."""
        owner, rows_max = await self._owner(request), self._services.settings.page_rows_max
        if limit is not None and limit > rows_max:
            raise ServiceError(ErrorCode.INVALID_FIELD, f"At most {rows_max} messages a page.")
        wanted = limit or min(PAGE_ROWS, rows_max)
        # One more than wanted tells whether there is a next page.
        found = await self._messages.page(owner=owner, before=cursor_of(cursor), rows_max=wanted + 1)
        messages = found[:wanted]
        after = Cursor(messages[-1].created_at, messages[-1].id) if len(found) > wanted else None
        shown = MessagePage(
            messages=await self._shown(messages, language=_language(request)),
            next_cursor=None if after is None else cursor_text(after),
        )
        return fresh_or_known(request, shown.model_dump_json(exclude_none=True), extra={})

    async def attach(self, message_id: str, request: Request) -> Response:
        """Name attachments in a message that is there."""
        owner, wanted = await self._owner(request), path_id(message_id)
        new = await read_json(request, NewAttachments, pace=self._pace)
        attachment_ids = self._ids(new.attachment_ids)
        _check(await self._messages.attach(message_id=wanted, owner=owner, attachment_ids=attachment_ids))
        named = [
            attachment_shown(attachment, self._keep, language=_language(request))
            for attachment in await self._messages.attachments_of([wanted])
            if attachment.id in attachment_ids
        ]
        status = min((shown.status for shown in named), key=_PROGRESS.index, default=AttachmentState.EXPIRED)
        shown = Attached(message_id=str(wanted), status=status, attachments=named)
        headers = {"Location": f"{MESSAGES_PATH}/{wanted}", "Cache-Control": "no-store"}
        return json_response(shown.model_dump_json(exclude_none=True), status=202, headers=headers)

    async def _owner(self, request: Request) -> str:
        return await self._services.authenticator.owner(request.headers.raw)

    def _ids(self, texts: Sequence[str]) -> list[uuid.UUID]:
        found = [uuid.UUID(text) for text in texts]
        if len(set(found)) != len(found):
            raise ServiceError(ErrorCode.INVALID_FIELD, "An attachment is named twice.")
        if len(found) > self._services.settings.message_attachments_max:
            raise _too_many()
        return found

    async def _create(
        self, message_id: uuid.UUID, *, owner: str, body: str, attachment_ids: list[uuid.UUID]
    ) -> Message:
        try:
            outcome = await self._messages.create(
                message_id=message_id, owner=owner, body=body, attachment_ids=attachment_ids
            )
        except DatabaseUnavailableError as error:
            # The row itself says whether it was written: a client that is told 503 would write it twice.
            found = await self._messages.find(message_id, owner=owner) if error.outcome_unknown else None
            if found is None:
                raise
            return found
        _check(outcome)
        found = await self._messages.find(message_id, owner=owner)
        if found is None:
            raise not_found()
        return found

    async def _shown(self, messages: list[Message], *, language: Language) -> list[MessageShown]:
        of: dict[uuid.UUID | None, list[Attachment]] = {message.id: [] for message in messages}
        for attachment in await self._messages.attachments_of([message.id for message in messages]) if of else ():
            of[attachment.message_id].append(attachment)
        return [message_shown(message, of[message.id], self._keep, language=language) for message in messages]


def _check(outcome: AttachOutcome) -> None:
    if outcome is AttachOutcome.NOT_FOUND:
        raise ServiceError(ErrorCode.NOT_FOUND, "There is no such message, or no such attachment.")
    if outcome is AttachOutcome.ALREADY_ATTACHED:
        raise ServiceError(ErrorCode.ALREADY_ATTACHED, "Each attachment belongs to one message.")
    if outcome is AttachOutcome.TOO_MANY:
        raise _too_many()


def _too_many() -> ServiceError:
    return ServiceError(ErrorCode.INVALID_FIELD, "Too many attachments for one message.")


def _language(request: Request) -> Language:
    return language_of(header_values(request.headers.raw, b"accept-language"))
