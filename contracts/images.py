"""Image formats, the variants made of each image, and the parameters that define a pipeline's digest."""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class ImageFormat(StrEnum):
    """Formats accepted, decided by content only."""

    JPEG = "jpeg"
    PNG = "png"
    WEBP = "webp"
    GIF = "gif"
    TIFF = "tiff"
    AVIF = "avif"


MEDIA_TYPES: dict[ImageFormat, str] = {fmt: f"image/{fmt.value}" for fmt in ImageFormat}


class VariantName(StrEnum):
    """The three results of every job."""

    THUMBNAIL = "thumbnail"
    CROP = "crop"
    OPTIMIZED = "optimized"


VARIANT_MEDIA_TYPES: dict[VariantName, str] = {
    VariantName.THUMBNAIL: "image/jpeg",
    VariantName.CROP: "image/jpeg",
    VariantName.OPTIMIZED: "image/webp",
}

VARIANT_SUFFIXES: dict[VariantName, str] = {
    VariantName.THUMBNAIL: "jpg",
    VariantName.CROP: "jpg",
    VariantName.OPTIMIZED: "webp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformParams:
    """Everything that decides the bytes of the variants, but the input and the libvips build."""

    master_side_px_max: int = 2560  #: long side of the one decode from which all variants are made
    thumbnail_side_px: int = 256  #: the thumbnail fits in this square, never upscaled
    crop_side_px: int = 128  #: the crop is exactly this square
    jpeg_quality: int = 80  #: libjpeg scale, 1 to 100
    webp_quality: int = 80  #: libwebp scale, 1 to 100
    webp_effort: int = 4  #: libwebp method, 0 to 6; 2 is half the CPU for 2 to 15 % more bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """What one image may be and cost. Checked on the header first, then held by the sandbox."""

    source_bytes_max: int = 32 * 1024 * 1024
    pixels_max: int = 50_000_000
    avif_pixels_max: int = 16_000_000  #: AVIF decoding needs about 15 B a pixel, so it has a bound of its own
    side_px_max: int = 30_000
    jpeg_scans_max: int = 100  #: legal scan bombs take seconds per decode; the most seen in a good file is 53
    bands_max: int = 5
    cpu_s_max: float = 10.0
    wall_s_max: float = 30.0
    memory_bytes_max: int = 1024 * 1024 * 1024  #: address space of the child process


def pipeline_digest(params: TransformParams, *, libvips_version: str, pipeline_version: int) -> str:
    """Return 12 hex digits that change whenever equal input could give other bytes."""
    text = json.dumps({**asdict(params), "libvips": libvips_version, "pipeline": pipeline_version}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
