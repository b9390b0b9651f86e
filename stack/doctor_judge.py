"""Whether the rows explain what is in the store, and the findings when they do not. Pure."""

from collections.abc import Mapping
from uuid import UUID

from app.core.listing import Listed
from contracts.jobs import JobState
from contracts.keys import original_key, staging_key
from stack.doctor_finds import Difference, Kind
from stack.doctor_keys import OriginalObject, OurObject, SourceObject, VariantObject
from stack.doctor_rows import ExpectedResults, ExpectedSource, JobFacts

#: The janitor aborts what is left of a dropped reservation, twice.
_UPLOADING = frozenset({JobState.UPLOADING, JobState.DROPPED})


def judge_object(stands_for: OurObject, *, jobs: Mapping[UUID, JobFacts], images: Mapping[UUID, bool]) -> Kind | None:
    """Return what is wrong with an object, None when a row needs it or will see to it that it goes.

    `images` says of each image with a row whether its published original is needed, or will be swept.
    """
    match stands_for:
        case OriginalObject(image_id):
            needed = images.get(image_id)
            return Kind.OBJECT_WITHOUT_ROW if needed is None else None if needed else Kind.OBJECT_AFTER_SWEEP
        case VariantObject(image_id, job_id):
            job = jobs.get(job_id)
            if job is None or job.image_id != image_id:
                return Kind.OBJECT_WITHOUT_ROW
            return Kind.OBJECT_AFTER_SWEEP if job.swept else None
        case SourceObject(job_id):
            job = jobs.get(job_id)
            if job is None:
                return Kind.OBJECT_WITHOUT_ROW
            return Kind.OBJECT_AFTER_SWEEP if job.source_gone else None


def may_be_joined(job: JobFacts | None) -> bool:
    """Return whether somebody may still join the parts of a multipart upload, or will see to it that they go."""
    return job is not None and job.state in _UPLOADING


def object_difference(kind: Kind, listed: Listed) -> Difference:
    """Return the finding on an object."""
    detail = f"{listed.size_bytes} bytes"
    return Difference(kind=kind, subject=listed.key, detail=detail, evidence=listed.mark, since=listed.since)


def multipart_difference(listed: Listed, job: JobFacts | None) -> Difference:
    """Return the finding on an unfinished multipart upload; its evidence is the upload's id."""
    detail = "no row knows it" if job is None else f"its job is {job.state.value}"
    return Difference(
        kind=Kind.UNFINISHED_MULTIPART, subject=listed.key, detail=detail, evidence=listed.mark, since=listed.since
    )


def source_difference(source: ExpectedSource) -> Difference:
    """Return the finding on a job whose staged file is not there; its evidence is the row's version."""
    failed = source.state is JobState.FAILED
    return Difference(
        kind=Kind.FAILED_SOURCE_MISSING if failed else Kind.SOURCE_MISSING,
        subject=str(source.job_id),
        detail=f"{source.state.value}, {source.held_bytes} bytes are booked, {staging_key(source.job_id)} is not there",
        evidence=f"{source.version} {source.pipeline_version}",
        since=source.since,
    )


def result_difference(results: ExpectedResults, key: str) -> Difference:
    """Return the finding on a published object that is not there; its evidence is the row's version."""
    original = key == original_key(results.image_id)
    return Difference(
        kind=Kind.ORIGINAL_MISSING if original else Kind.VARIANT_MISSING,
        subject=key,
        detail=f"job {results.job_id} is ready",
        evidence=f"{results.image_id} {results.job_id} {results.version}",
        since=results.since,
    )
