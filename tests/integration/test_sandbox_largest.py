"""The dearest files that the limits let in: each ends within its CPU time and its memory, served or refused."""

import struct
from collections.abc import AsyncIterator, Callable

import pytest
from PIL import Image

from contracts.images import ImageLimits, TransformParams, VariantName
from tests.hostile_images import RGB, large_flat_avif, png_whole
from tests.hostile_kinds import SERVED, gif_of, gif_of_comments, tiff_of_directories
from tests.image_makers import encode, photo, png_chunk, scene
from worker.sandbox import Sandbox
from worker.variants import ImageRejected, Variant

pytestmark = [pytest.mark.alone, pytest.mark.long]

LIMITS = ImageLimits()
SIDES_PX = (8_333, 6_000)  #: 49,998,000 pixels
RSS_BYTES_MAX = 500_000_000


def noisy(mode: str, size_px: tuple[int, int] = SIDES_PX) -> Image.Image:
    """Return a large picture with detail in every block, made quickly."""
    tile = photo(1_000, 1_000).convert(mode)
    image = Image.new(mode, size_px)
    for left in range(0, size_px[0], tile.width):
        for top in range(0, size_px[1], tile.height):
            image.paste(tile, (left, top))
    return image


def png_of_chunks() -> bytes:
    whole = encode(scene(60, 40), "PNG")
    at = whole.index(b"IDAT") - 4
    return whole[:at] + png_chunk(b"teSt", b"") * (LIMITS.source_bytes_max // 12 - 100) + whole[at:]


def gif_of_sub_blocks() -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", 60, 40, 0, 0, 0) + b"\x21\xfe"
    return head + b"\x01x" * (LIMITS.source_bytes_max // 2 - 20)


def avif_of_boxes() -> bytes:
    return encode(scene(60, 40), "AVIF") + b"\0\0\0\x08free" * 3_000_000


LARGEST: dict[str, tuple[Callable[[], bytes], set[str]]] = {
    "baseline jpeg": (lambda: encode(noisy("RGB"), "JPEG", quality=60), {SERVED}),
    "progressive jpeg": (lambda: encode(noisy("RGB"), "JPEG", quality=60, progressive=True, subsampling=0), {SERVED}),
    "cmyk jpeg": (lambda: encode(noisy("CMYK"), "JPEG", quality=50), {SERVED}),
    "interlaced png": (lambda: png_whole(8_328, 6_000, colour=RGB, interlace=1), {SERVED}),
    "avif": (lambda: large_flat_avif(4_000, 4_000), {SERVED}),
    "webp": (lambda: encode(noisy("RGB", (16_383, 3_050)), "WEBP", quality=50, method=0), {SERVED}),
    "gif": (lambda: encode(Image.new("P", SIDES_PX), "GIF"), {SERVED}),
    "cmyk tiff": (
        lambda: encode(Image.new("CMYK", SIDES_PX, (9, 8, 7, 6)), "TIFF", compression="tiff_deflate"),
        {SERVED},
    ),
    "tiff of directories": (
        lambda: tiff_of_directories(LIMITS.source_bytes_max // 114 - 10),
        {SERVED, "image_time_limit"},
    ),
    "gif of frames": (lambda: gif_of((60, 40), frames=LIMITS.source_bytes_max // 17 - 10), {SERVED}),
    "gif of comments": (lambda: gif_of_comments(LIMITS.source_bytes_max // 5 - 10), {"invalid_image"}),
    "gif of sub-blocks": (gif_of_sub_blocks, {"invalid_image"}),
    "png of chunks": (png_of_chunks, {SERVED}),
    "avif of boxes": (avif_of_boxes, {SERVED}),
}


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    box = Sandbox(children=1, limits=LIMITS, params=TransformParams())
    await box.start()
    yield box
    await box.close()


@pytest.mark.parametrize("name", LARGEST)
async def test_the_dearest_of_each_shape_stays_within_its_limits(sandbox: Sandbox, name: str) -> None:
    make, outcomes = LARGEST[name]
    source = make()
    assert len(source) <= LIMITS.source_bytes_max
    variants: list[Variant] = []
    outcome, facts = SERVED, None
    try:
        facts = await sandbox.transform(source, on_variant=variants.append)
    except ImageRejected as refused:
        outcome = refused.code.value
    assert outcome in outcomes
    if facts is not None:
        assert facts.cpu_s < LIMITS.cpu_s_max
        assert facts.rss_bytes_peak < RSS_BYTES_MAX
        assert len(variants) == len(VariantName)
