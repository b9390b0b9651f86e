"""The JSON that clients see. Separate from what is stored, so that nothing is shown by accident."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from app.core.jobstore import JobView, StoredVariant
from contracts.errors import FAILURE_MESSAGES, FailureCode
from contracts.images import VARIANT_MEDIA_TYPES, VariantName
from contracts.jobs import FINAL, JobState

#: What an owner reads for each state; the stages of a stop are not shown.
_SHOWN = {JobState.CANCELLING: JobState.PROCESSING}


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class Accepted(_Shown):
    """The answer to an accepted upload."""

    job_id: str
    image_id: str
    status: str
    message: str


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
    size_bytes: int
    sha256: str


class JobStatus(_Shown):
    """A job as its owner sees it: nothing of a result before `ready`, `error` only when `failed`."""

    job_id: str
    image_id: str
    status: str
    created_at: datetime
    finished_at: datetime | None = None
    image_url: str | None = None
    thumb_url: str | None = None
    variants: dict[str, VariantLink] | None = None
    error: JobError | None = None


def is_final(view: JobView) -> bool:
    """Return whether the job will not change any more."""
    return view.state in FINAL


def job_status(view: JobView, *, links: dict[VariantName, str]) -> JobStatus:
    """Return what the owner sees; `links` are the results' addresses, empty unless the job is ready."""
    stored = {variant.name: variant for variant in view.variants}
    return JobStatus(
        job_id=str(view.job_id),
        image_id=str(view.image_id),
        status=_SHOWN.get(view.state, view.state).value,
        created_at=view.accepted_at,
        finished_at=view.finished_at,
        image_url=links.get(VariantName.OPTIMIZED),
        thumb_url=links.get(VariantName.THUMBNAIL),
        variants={name.value: _link(stored[name], url) for name, url in links.items()} or None,
        error=None if view.error_code is None else _error(view.error_code),
    )


def _link(variant: StoredVariant, url: str) -> VariantLink:
    return VariantLink(
        url=url,
        media_type=VARIANT_MEDIA_TYPES[variant.name],
        width=variant.width,
        height=variant.height,
        size_bytes=variant.size_bytes,
        sha256=variant.sha256,
    )


def _error(code: FailureCode) -> JobError:
    return JobError(code=code.value, message=FAILURE_MESSAGES[code])
