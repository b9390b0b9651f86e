"""Messages and their attachments: an attachment is an image whose job belongs to a message, once one names it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from app.core.jobviews import Cursor, JobView, view_of
from app.core.postgres import Database, Record, load_queries


class AttachOutcome(StrEnum):
    """Answers to naming attachments."""

    ATTACHED = "attached"
    NOT_FOUND = "not_found"
    ALREADY_ATTACHED = "already_attached"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Message:
    """One message; its attachments are read apart."""

    id: UUID
    body: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Attachment:
    """One attachment with its job; `message_id` is None until a message names it."""

    id: UUID
    message_id: UUID | None
    created_at: datetime
    job: JobView


class MessageStore:
    """Writes and reads messages, each of which names at most `attachments_max` attachments."""

    def __init__(self, database: Database, *, attachments_max: int) -> None:
        self._db = database
        self._attachments_max = attachments_max
        self._sql = load_queries("messages.sql")

    async def create(self, *, message_id: UUID, owner: str, body: str, attachment_ids: Sequence[UUID]) -> AttachOutcome:
        """Write a message and name its attachments, all or nothing. The ids must differ."""
        answer = await self._db.value(
            self._sql.create_message,
            id=message_id,
            owner=owner,
            body=body,
            attachment_ids=list(attachment_ids),
            attachments_max=self._attachments_max,
        )
        return AttachOutcome(answer)

    async def attach(self, *, message_id: UUID, owner: str, attachment_ids: Sequence[UUID]) -> AttachOutcome:
        """Name attachments in a message that is there. The ids must differ."""
        answer = await self._db.value(
            self._sql.attach,
            owner=owner,
            message_id=message_id,
            attachment_ids=list(attachment_ids),
            attachments_max=self._attachments_max,
        )
        return AttachOutcome(answer)

    async def find(self, message_id: UUID, *, owner: str) -> Message | None:
        """Return one of an owner's messages."""
        row = await self._db.one(self._sql.find_message, message_id=message_id, owner=owner)
        return None if row is None else Message(*row)

    async def page(self, *, owner: str, before: Cursor | None, rows_max: int) -> list[Message]:
        """Return one page of an owner's messages, newest first."""
        rows = await self._db.many(
            self._sql.list_messages,
            owner=owner,
            before_at=None if before is None else before.at,
            before_id=None if before is None else before.id,
            rows_max=rows_max,
        )
        return [Message(*row) for row in rows]

    async def attachments_of(self, message_ids: Sequence[UUID]) -> list[Attachment]:
        """Return the attachments of messages that the caller has read for their owner, in the order of naming."""
        rows = await self._db.many(self._sql.attachments_of, message_ids=list(message_ids))
        return [_attachment_of(row) for row in rows]

    async def find_attachment(self, attachment_id: UUID, *, owner: str) -> Attachment | None:
        """Return one of an owner's attachments."""
        row = await self._db.one(self._sql.find_attachment, attachment_id=attachment_id, owner=owner)
        return None if row is None else _attachment_of(row)


def _attachment_of(row: Record) -> Attachment:
    return Attachment(row["attachment_id"], row["message_id"], row["attachment_created_at"], view_of(row))
