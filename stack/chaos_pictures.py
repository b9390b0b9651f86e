"""The files of a chaos run and what one undisturbed run makes of each: the yardstick for every disturbed one.

Invariant: seed and library versions decide every byte.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import FailureCode
from contracts.images import VARIANT_SUFFIXES, ImageLimits, TransformParams
from loadtest.corpus import SizeClass, ensure_corpus
from stack.chaos_history import Picture
from worker.sandbox import Sandbox
from worker.variants import Variant

#: Most are small, so that a run has many jobs; some take long enough to be in work when something happens.
SMALL = SizeClass(name="small", width_px=320, height_px=240, images_count=16, noise_levels=4.0)
MEDIUM = SizeClass(name="medium", width_px=1200, height_px=900, images_count=4, noise_levels=4.0)
#: Files cut in half: accepted by their header, never decoded.
BROKEN_COUNT = 2
_NO_IMAGE = b"This is a letter, not a picture.\n" * 40


@dataclass(frozen=True, slots=True)
class Upload:
    """One file and what is known of it."""

    data: bytes
    picture: Picture


async def make_uploads(folder: Path, *, seed: int) -> tuple[Upload, ...]:
    """Return the files of a run: valid ones, broken ones, and one that is no image. Blocks for some seconds."""
    files = [path.read_bytes() for size in (SMALL, MEDIUM) for path in ensure_corpus(folder, size, seed=seed).files]
    valid = [Upload(data, picture) for data, picture in zip(files, await references(files), strict=True)]
    broken = [_broken(data) for data in files[:BROKEN_COUNT]]
    letter = Upload(_NO_IMAGE, Picture(sha256=_sha256(_NO_IMAGE), valid=False, refused=True))
    return (*valid, *broken, letter)


async def references(files: Sequence[bytes]) -> list[Picture]:
    """Return what one undisturbed run makes of valid files."""
    sandbox = Sandbox(children=1, limits=ImageLimits(), params=TransformParams())
    await sandbox.start()
    try:
        return [await _reference(sandbox, data) for data in files]
    finally:
        await sandbox.close()


async def _reference(sandbox: Sandbox, data: bytes) -> Picture:
    variants: list[Variant] = []
    await sandbox.transform(data, on_variant=variants.append)
    names = {f"{variant.name.value}.{VARIANT_SUFFIXES[variant.name]}": variant.sha256 for variant in variants}
    return Picture(sha256=_sha256(data), valid=True, variants=names)


def _broken(data: bytes) -> Upload:
    half = data[: len(data) // 2]
    return Upload(half, Picture(sha256=_sha256(half), valid=False, failure=FailureCode.INVALID_IMAGE.value))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
