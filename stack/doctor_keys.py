"""Which of our objects a key stands for. Pure.

Invariant: a key is ours only when the functions of `contracts.keys` make exactly this key of the ids in it.
"""

import re
from dataclasses import dataclass
from uuid import UUID

from contracts.images import VariantName
from contracts.keys import inbox_key, original_key, staging_key, variant_key

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_SOURCE = re.compile(rf"(?:staging|inbox)/(?P<job>{_UUID})")
_ORIGINAL = re.compile(rf"images/(?P<image>{_UUID})/original")
_VARIANT = re.compile(rf"images/(?P<image>{_UUID})/(?P<job>{_UUID})/(?P<digest>[0-9a-f]{{12}})/(?P<name>\w+)\.\w+")


@dataclass(frozen=True, slots=True)
class SourceObject:
    """A file that was uploaded: in staging, or in the inbox of a place."""

    job_id: UUID


@dataclass(frozen=True, slots=True)
class OriginalObject:
    """A published original."""

    image_id: UUID


@dataclass(frozen=True, slots=True)
class VariantObject:
    """A published variant."""

    image_id: UUID
    job_id: UUID


OurObject = SourceObject | OriginalObject | VariantObject


def our_object(key: str) -> OurObject | None:
    """Return what a key stands for, None when it is not one of ours to the letter."""
    if found := _SOURCE.fullmatch(key):
        job_id = UUID(found["job"])
        return SourceObject(job_id) if key in (staging_key(job_id), inbox_key(job_id)) else None
    if found := _ORIGINAL.fullmatch(key):
        image_id = UUID(found["image"])
        return OriginalObject(image_id) if key == original_key(image_id) else None
    found = _VARIANT.fullmatch(key)
    if found is None or found["name"] not in tuple(VariantName):
        return None
    image_id, job_id = UUID(found["image"]), UUID(found["job"])
    made = variant_key(image_id, job_id, found["digest"], VariantName(found["name"]))
    return VariantObject(image_id, job_id) if key == made else None
