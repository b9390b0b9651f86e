"""The JSON that clients see. Separate from what is stored, so that nothing is shown by accident."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from app.core.jobstore import StoredVariant
from app.core.jobviews import JobView
from contracts.errors import FailureCode, Language, failure_message
from contracts.images import VARIANT_MEDIA_TYPES, VariantName
from contracts.jobs import FINAL, JobState


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class Accepted(_Shown):
    """The answer to an accepted upload."""

    job_id: str
    image_id: str
    status: str
    message: str


class AcceptedAttachment(Accepted):
    """The answer to an accepted upload of an attachment."""

    attachment_id: str


class ShownState(StrEnum):
    """States of a job that its owner can read. A client takes one that it does not know for not final."""

    QUEUED = JobState.QUEUED.value
    PROCESSING = JobState.PROCESSING.value
    CANCELLING = JobState.CANCELLING.value
    READY = JobState.READY.value
    FAILED = JobState.FAILED.value
    CANCELLED = JobState.CANCELLED.value


class JobError(_Shown):
    """Why a job failed: the code is stable, the message is for people."""

    code: str
    message: str


class VariantLink(_Shown):
    """One result: where to get it, and what will come."""

    url: str
    media_type: str
    width: int
    height: int
    bytes: int
    sha256: str


class JobStatus(_Shown):
    """A job as its owner sees it: nothing of a result before `ready`, `error` only when `failed`.

    `finished_at` and `expires_at` are there when it is final.
    """

    job_id: str
    image_id: str
    status: ShownState
    created_at: datetime
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    image_url: str | None = None
    thumb_url: str | None = None
    variants: dict[str, VariantLink] | None = None
    error: JobError | None = None


class JobPage(_Shown):
    """One page of an owner's jobs, newest first; `next_cursor` is missing on the last one."""

    jobs: list[JobStatus]
    next_cursor: str | None = None


class Erasing(_Shown):
    """The answer while a worker still holds a job of the image: ask again."""

    image_id: str
    status: Literal["erasing"] = "erasing"


def is_final(view: JobView) -> bool:
    """Return whether the job will not change any more."""
    return view.state in FINAL


def job_status(
    view: JobView, *, links: dict[VariantName, str], expires_at: datetime | None, language: Language
) -> JobStatus:
    """Return what the owner of a job that is not expired sees; `links` are the results', empty unless it is ready."""
    stored = {variant.name: variant for variant in view.variants}
    return JobStatus(
        job_id=str(view.job_id),
        image_id=str(view.image_id),
        status=ShownState(view.state.value),
        created_at=view.accepted_at,
        finished_at=view.finished_at,
        expires_at=expires_at,
        image_url=links.get(VariantName.OPTIMIZED),
        thumb_url=links.get(VariantName.THUMBNAIL),
        variants={name.value: _link(stored[name], url) for name, url in links.items()} or None,
        error=None if view.error_code is None else _error(view.error_code, language),
    )


def _link(variant: StoredVariant, url: str) -> VariantLink:
    return VariantLink(
        url=url,
        media_type=VARIANT_MEDIA_TYPES[variant.name],
        width=variant.width,
        height=variant.height,
        bytes=variant.size_bytes,
        sha256=variant.sha256,
    )


def _error(code: FailureCode, language: Language) -> JobError:
    return JobError(code=code.value, message=failure_message(code, language=language))
