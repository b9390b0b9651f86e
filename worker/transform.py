"""The pure transform: the bytes of an image to its variants, through libvips.

Invariant: equal bytes, parameters and libvips build give equal variants. Only this module and the child's
set-up import pyvips, and only a child process may run it: nothing here bounds time or memory by itself.

The order is the defence: bytes, magic, what is known to be cheap to count, header, and one bounded decode.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyvips

from app.core.sniff import check_dimensions, check_header, exceeds_jpeg_scans
from contracts.errors import FailureCode
from contracts.images import ImageFormat, ImageLimits, TransformParams, VariantName
from worker.containers import prepare
from worker.variants import ImageRejected, Variant

_WHITE = 255
_RGBA_BANDS = 4
_RGB_BANDS = 3
#: EXIF orientations from this one on lie on their side.
_ORIENTATION_TURNED_MIN = 5

# libvips ignores the keyword `fail_on` for buffers; only the loader's own option string reaches the loader.
# `error` refuses every truncated file and lets sloppy but whole ones pass.
_STRICT = "[fail_on=error]"

_PROFILED_SPACES = frozenset({"srgb", "rgb", "rgb16", "b-w", "grey16", "cmyk"})

# What libvips and its codecs write when the process may not have more memory.
_OUT_OF_MEMORY = (
    "out of memory",
    "insufficient memory",
    "memory error",
    "memory allocation error",
    "error creating thread",
)
# ... but libheif calls it an allocation error too when a picture is larger than its file says.
_BEYOND_ITS_WORD = "security limit exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """The one decode: upright, 8-bit sRGB with or without alpha, in memory, its long side bounded."""

    image: Any  #: a pyvips.Image
    image_format: ImageFormat
    width_px: int  #: of the source, upright
    height_px: int


def decode_master(source: bytes, *, params: TransformParams, limits: ImageLimits) -> Master:
    """Return the decoded master of an image.

    Raises:
        ImageRejected: the bytes are no image that is served, or pass a limit.
    """
    image_format = _check_bytes(source, limits)
    prepared = prepare(source, image_format)
    if prepared is None:
        raise ImageRejected(FailureCode.INVALID_IMAGE)
    # What libvips noted of an earlier image would be taken for this one's: its error texts gather in one place.
    pyvips.vips_lib.vips_error_clear()
    with _as_rejection():
        width_px, height_px, profiles = _check_loaded_header(prepared, image_format, limits)
        image = _decode(prepared, side_px_max=params.master_side_px_max, profiles=profiles)
    return Master(image=image, image_format=image_format, width_px=width_px, height_px=height_px)


def make_variants(master: Master, *, params: TransformParams) -> Iterator[Variant]:
    """Yield each variant as soon as it is ready, the cheapest first.

    Raises:
        ImageRejected: with `image_memory_limit`, when the process may not have the memory.
    """
    with _memory_as_rejection():
        yield _thumbnail(master.image, params)
        yield _crop(master.image, params)
        yield _optimized(master.image, params)


def _check_bytes(source: bytes, limits: ImageLimits) -> ImageFormat:
    if not source:
        raise ImageRejected(FailureCode.INVALID_IMAGE)
    if len(source) > limits.source_bytes_max:
        raise ImageRejected(FailureCode.IMAGE_MEMORY_LIMIT)
    header = check_header(source, limits)
    if isinstance(header, FailureCode):
        raise ImageRejected(header)
    is_jpeg = header.image_format is ImageFormat.JPEG
    if is_jpeg and exceeds_jpeg_scans(source, scans_max=limits.jpeg_scans_max):
        raise ImageRejected(FailureCode.IMAGE_TOO_COMPLEX)
    return header.image_format


def _check_loaded_header(
    source: bytes, image_format: ImageFormat, limits: ImageLimits
) -> tuple[int, int, dict[str, str]]:
    """Return the upright sides and the profile arguments for the decode; only named fields are read."""
    header = pyvips.Image.new_from_buffer(source, "", access="sequential")
    width_px, height_px = header.width, header.height
    refusal = check_dimensions(image_format, width_px=width_px, height_px=height_px, limits=limits)
    if refusal is not None:
        raise ImageRejected(refusal)
    if header.bands > limits.bands_max:
        raise ImageRejected(FailureCode.UNSUPPORTED_FORMAT)
    if header.get_typeof("orientation") and header.get("orientation") >= _ORIENTATION_TURNED_MIN:
        width_px, height_px = height_px, width_px
    return width_px, height_px, _profiles(header)


def _profiles(header: Any) -> dict[str, str]:
    # Without an embedded profile libvips brings every kind to sRGB by itself, with the same pixels as with
    # `output_profile` but ten times as fast (that way round goes through floats). In spaces that depend on no
    # device (LAB, XYZ, linear light) a profile means nothing, and using it makes the colours wrong.
    if not header.get_typeof("icc-profile-data") or header.interpretation not in _PROFILED_SPACES:
        return {}
    # The fallback for a broken profile.
    plain_rgb = header.interpretation == "srgb" and header.format == "uchar" and header.bands >= _RGB_BANDS
    return {"output_profile": "srgb"} | ({"input_profile": "srgb"} if plain_rgb else {})


def _decode(source: bytes, *, side_px_max: int, profiles: dict[str, str]) -> Any:
    image = pyvips.Image.thumbnail_buffer(
        source, side_px_max, height=side_px_max, size="down", option_string=_STRICT, **profiles
    )
    if image.interpretation != "srgb" or image.format != "uchar":
        image = image.colourspace("srgb")
    if image.bands > _RGBA_BANDS:
        image = image.extract_band(0, n=_RGBA_BANDS)
    return image.copy_memory()


def _thumbnail(image: Any, params: TransformParams) -> Variant:
    side_px = params.thumbnail_side_px
    small = image.thumbnail_image(side_px, height=side_px, size="down")
    return _jpeg(small, VariantName.THUMBNAIL, params)


def _crop(image: Any, params: TransformParams) -> Variant:
    # Cutting first keeps extreme sides small: scaling to cover would blow 65,000 x 1 up to gigabytes.
    side_px = min(image.width, image.height)
    square = image.crop((image.width - side_px) // 2, (image.height - side_px) // 2, side_px, side_px)
    small = square.thumbnail_image(params.crop_side_px, height=params.crop_side_px, size="force")
    return _jpeg(small, VariantName.CROP, params)


def _optimized(image: Any, params: TransformParams) -> Variant:
    data = image.webpsave_buffer(Q=params.webp_quality, effort=params.webp_effort, keep="none")
    return _variant(VariantName.OPTIMIZED, data, image)


def _jpeg(image: Any, name: VariantName, params: TransformParams) -> Variant:
    flat = image.flatten(background=[_WHITE] * _RGB_BANDS) if image.hasalpha() else image
    data = flat.jpegsave_buffer(Q=params.jpeg_quality, optimize_coding=True, keep="none")
    return _variant(name, data, flat)


def _variant(name: VariantName, data: bytes, image: Any) -> Variant:
    digest = hashlib.sha256(data).hexdigest()
    return Variant(name=name, data=data, sha256=digest, width_px=image.width, height_px=image.height)


@contextmanager
def _as_rejection() -> Iterator[None]:
    """Turn what the loaders raise into a rejection: unless it is the memory, the image is to blame."""
    with _memory_as_rejection():
        try:
            yield
        except (pyvips.Error, ValueError) as exc:  # ValueError: texts in the image that are not UTF-8
            if _is_out_of_memory(exc):
                raise
            raise ImageRejected(FailureCode.INVALID_IMAGE) from exc


@contextmanager
def _memory_as_rejection() -> Iterator[None]:
    try:
        yield
    except MemoryError as exc:
        raise ImageRejected(FailureCode.IMAGE_MEMORY_LIMIT) from exc
    except pyvips.Error as exc:
        if not _is_out_of_memory(exc):
            raise
        raise ImageRejected(FailureCode.IMAGE_MEMORY_LIMIT) from exc


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return _BEYOND_ITS_WORD not in text and any(marker in text for marker in _OUT_OF_MEMORY)
