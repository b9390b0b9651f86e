"""The JSON of messages and attachments, as clients send and see it.

Invariant: nothing of a result before `ready`, `error` only when `failed`; addresses are paths of this API.
"""

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.api.expiry import expires_at
from app.api.wire import ATTACHMENTS_PATH
from app.core.jobstore import Source, StoredVariant
from app.core.jobviews import JobView
from app.core.messages import Attachment, Message
from app.core.retention import Keep
from contracts.errors import FailureCode, Language, failure_message
from contracts.images import MEDIA_TYPES, VARIANT_MEDIA_TYPES
from contracts.jobs import JobState

TEXT_CHARS_MAX = 10_000
#: More than any setting allows are refused by the schema; the setting itself is checked by the handler.
NAMED_ATTACHMENTS_MAX = 1000

_STATES = {JobState.CANCELLING: JobState.PROCESSING, JobState.CANCELLED: JobState.FAILED}
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")
AttachmentId = Annotated[
    str, Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$", json_schema_extra={"format": "uuid"})
]


class _Sent(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class NewMessage(_Sent):
    """A message to be written."""

    text: str = Field(min_length=1, max_length=TEXT_CHARS_MAX)
    attachment_ids: list[AttachmentId] = Field(
        default=[], max_length=NAMED_ATTACHMENTS_MAX, json_schema_extra={"uniqueItems": True}
    )

    @field_validator("text")
    @classmethod
    def _is_text(cls, text: str) -> str:
        if _NO_TEXT.search(text):
            raise ValueError("neither NUL nor lone surrogates")
        return text


class NewAttachments(_Sent):
    """Attachments to be named in a message that is there."""

    attachment_ids: list[AttachmentId] = Field(
        min_length=1, max_length=NAMED_ATTACHMENTS_MAX, json_schema_extra={"uniqueItems": True}
    )


class AttachmentState(StrEnum):
    """States of an attachment; a client takes one that it does not know for not final."""

    QUEUED = JobState.QUEUED.value
    PROCESSING = JobState.PROCESSING.value
    READY = JobState.READY.value
    FAILED = JobState.FAILED.value
    EXPIRED = JobState.EXPIRED.value  #: only within a message that outlives it


class OriginalShown(_Shown):
    """The file as it was sent; width and height (pixels, as stored) where its header tells them."""

    bytes: int
    media_type: str
    sha256: str
    width: int | None = None
    height: int | None = None
    url: str | None = None


class VariantShown(_Shown):
    """One result and where its content is."""

    url: str
    media_type: str
    width: int
    height: int
    bytes: int
    sha256: str


class AttachmentError(_Shown):
    """Why there will be no result: the code is stable, the message is for people."""

    code: str
    message: str


class AttachmentShown(_Shown):
    """An attachment as its owner sees it."""

    attachment_id: str
    job_id: str
    image_id: str
    message_id: str | None = None
    status: AttachmentState
    original: OriginalShown | None = None
    variants: dict[str, VariantShown] | None = None
    error: AttachmentError | None = None
    created_at: datetime
    finished_at: datetime | None = None
    expires_at: datetime | None = None


class MessageShown(_Shown):
    """A message with the present states of its attachments."""

    message_id: str
    text: str
    created_at: datetime
    expires_at: datetime
    attachments: list[AttachmentShown]


class Attached(_Shown):
    """The answer to naming attachments: `status` is that of the one which is least far."""

    message_id: str
    status: AttachmentState
    attachments: list[AttachmentShown]


class MessagePage(_Shown):
    """Some of an owner's messages, newest first; `next_cursor` is missing on the last page."""

    messages: list[MessageShown]
    next_cursor: str | None = None


def shown_state(state: JobState) -> AttachmentState:
    """Return the state that an attachment shows: a stop in progress is work, a stopped job a failed one."""
    return AttachmentState(_STATES.get(state, state).value)


def attachment_shown(attachment: Attachment, keep: Keep, *, language: Language) -> AttachmentShown:
    """Return what the owner of an attachment sees; of an expired one only that."""
    job, expired = attachment.job, attachment.job.state is JobState.EXPIRED
    path = f"{ATTACHMENTS_PATH}/{attachment.id}/content"
    ready = job.state is JobState.READY
    return AttachmentShown(
        attachment_id=str(attachment.id),
        job_id=str(job.job_id),
        image_id=str(job.image_id),
        message_id=None if attachment.message_id is None else str(attachment.message_id),
        status=shown_state(job.state),
        original=None if expired else _original(job.source, url=path if ready else None),
        variants={variant.name.value: _variant(variant, path=path) for variant in job.variants} if ready else None,
        error=_error(job, language=language),
        created_at=attachment.created_at,
        finished_at=job.finished_at,
        expires_at=expires_at(job, keep=keep),
    )


def message_shown(message: Message, attachments: list[Attachment], keep: Keep, *, language: Language) -> MessageShown:
    """Return what the owner of a message sees."""
    return MessageShown(
        message_id=str(message.id),
        text=message.body,
        created_at=message.created_at,
        expires_at=message.created_at + timedelta(seconds=keep.message_s),
        attachments=[attachment_shown(attachment, keep, language=language) for attachment in attachments],
    )


def _original(source: Source, *, url: str | None) -> OriginalShown:
    return OriginalShown(
        bytes=source.source_bytes,
        media_type=MEDIA_TYPES[source.format],
        sha256=source.sha256,
        width=source.width,
        height=source.height,
        url=url,
    )


def _variant(variant: StoredVariant, *, path: str) -> VariantShown:
    return VariantShown(
        url=f"{path}/{variant.name.value}",
        media_type=VARIANT_MEDIA_TYPES[variant.name],
        width=variant.width,
        height=variant.height,
        bytes=variant.size_bytes,
        sha256=variant.sha256,
    )


def _error(job: JobView, *, language: Language) -> AttachmentError | None:
    code = FailureCode.CANCELLED if job.state is JobState.CANCELLED else job.error_code
    if shown_state(job.state) is not AttachmentState.FAILED or code is None:
        return None
    return AttachmentError(code=code.value, message=failure_message(code, language=language))
