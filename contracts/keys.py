"""Object keys: pure functions of ids, never of file names, so a repeat writes the same key."""

from uuid import UUID

from contracts.images import VARIANT_SUFFIXES, VariantName


def staging_key(job_id: UUID) -> str:
    """Key of the upload until its job is final."""
    return f"staging/{job_id}"


def inbox_key(job_id: UUID) -> str:
    """Key of a file that its client sends straight to the store; nothing reads it but the completion of its place."""
    return f"inbox/{job_id}"


def original_key(image_id: UUID) -> str:
    """Key of the published original: of the image alone, equal for every job of the image."""
    return f"images/{image_id}/original"


def variant_key(image_id: UUID, job_id: UUID, digest: str, name: VariantName) -> str:
    """Key of one variant: of image, job and pipeline digest, so no other job's sweep reaches it."""
    return f"images/{image_id}/{job_id}/{digest}/{name.value}.{VARIANT_SUFFIXES[name]}"


def image_prefix(image_id: UUID) -> str:
    """Prefix of everything that is published of an image."""
    return f"images/{image_id}/"


def job_prefix(image_id: UUID, job_id: UUID) -> str:
    """Prefix of every variant that any attempt of one job may have written, whatever its pipeline digest."""
    return f"images/{image_id}/{job_id}/"
