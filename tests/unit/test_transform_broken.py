"""Broken and hostile bytes end as one code of the closed set, cheaply, and never as a picture half grey."""

import time

import pytest
import pyvips
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.errors import FailureCode
from contracts.images import ImageLimits, TransformParams, VariantName
from tests.hostile_images import (
    GREY,
    jpeg_claiming,
    jpeg_scan_bomb,
    jpeg_with_motion,
    png_claiming,
    png_text_bomb,
    png_whole,
    unsupported,
)
from tests.image_makers import animation, decode, encode, photo, scene
from tests.unit.test_transform import variants_of
from worker.transform import decode_master, make_variants
from worker.variants import ImageRejected

WHOLE = {
    "jpeg": encode(photo(320, 240), "JPEG", quality=90),
    "progressive jpeg": encode(photo(320, 240), "JPEG", quality=90, progressive=True),
    "png": encode(photo(320, 240), "PNG"),
    "gif": encode(photo(320, 240).quantize(64), "GIF"),
    "lossy webp": encode(photo(320, 240), "WEBP"),
    "lossless webp": encode(photo(320, 240), "WEBP", lossless=True),
    "tiff": encode(photo(320, 240), "TIFF", compression="tiff_deflate"),
    "avif": encode(photo(320, 240), "AVIF"),
    "animated gif": animation("GIF"),
    "animated png": animation("PNG"),
    "animated webp": animation("WEBP"),
    "avif sequence": animation("AVIF"),
}


def refusal_of(source: bytes, *, limits: ImageLimits | None = None) -> FailureCode | None:
    params = TransformParams()
    try:
        list(make_variants(decode_master(source, params=params, limits=limits or ImageLimits()), params=params))
    except ImageRejected as refused:
        return refused.code
    return None


@pytest.mark.parametrize("percent", [10, 50, 90, 98])
@pytest.mark.parametrize("kind", WHOLE)
def test_a_truncated_image_is_refused(kind: str, percent: int) -> None:
    whole = WHOLE[kind]
    assert refusal_of(whole) is None
    assert refusal_of(whole[: len(whole) * percent // 100]) is FailureCode.INVALID_IMAGE


@pytest.mark.parametrize("kind", WHOLE)
def test_an_image_without_its_end_marker_is_refused(kind: str) -> None:
    for missing_bytes in (1, 2, 4, 12, 40):
        assert refusal_of(WHOLE[kind][:-missing_bytes]) is FailureCode.INVALID_IMAGE


@pytest.mark.parametrize("kind", sorted(WHOLE.keys() - {"tiff", "avif", "avif sequence"}))
def test_bytes_behind_the_end_do_no_harm(kind: str) -> None:
    assert refusal_of(WHOLE[kind] + b"\x00 appended by some tool" * 50) is None


def test_a_jpeg_that_ends_early_but_properly_is_filled_and_bounded_by_its_pixels() -> None:
    # Sloppy cameras write such files too: the decoder only warns. What it may cost is the pixels' bound.
    started_s = time.process_time()
    assert refusal_of(jpeg_claiming(5_000, 5_000)) is None
    assert time.process_time() - started_s < 2.0


def test_what_libvips_noted_of_an_earlier_image_is_not_taken_for_this_one() -> None:
    # Its texts gather in one place for the whole process, and words in them decide what is the memory's fault.
    pyvips.vips_lib.vips_foreign_find_load(b"/nowhere/out of memory")
    assert refusal_of(WHOLE["jpeg"][:2_000]) is FailureCode.INVALID_IMAGE


def test_an_empty_file_is_refused() -> None:
    assert refusal_of(b"") is FailureCode.INVALID_IMAGE


@pytest.mark.parametrize("kind", unsupported())
def test_an_unsupported_file_is_refused_before_any_loader(kind: str) -> None:
    assert refusal_of(unsupported()[kind]) is FailureCode.UNSUPPORTED_FORMAT


@pytest.mark.parametrize(
    ("bomb", "code"),
    [
        (png_claiming(20_000, 20_000, interlace=1), FailureCode.TOO_MANY_PIXELS),
        (jpeg_claiming(64_250, 64_250), FailureCode.TOO_MANY_PIXELS),
        (png_whole(65_000, 1), FailureCode.TOO_LARGE_DIMENSION),
        (png_whole(1, 65_000), FailureCode.TOO_LARGE_DIMENSION),
        (png_claiming(5_000, 5_000), FailureCode.INVALID_IMAGE),
        (jpeg_scan_bomb(4_000, 3_000), FailureCode.IMAGE_TOO_COMPLEX),
    ],
    ids=["interlaced", "jpeg header", "wide", "tall", "png with few pixels", "scans"],
)
def test_a_bomb_is_refused_at_once(bomb: bytes, code: FailureCode) -> None:
    started_s = time.process_time()
    assert refusal_of(bomb) is code
    assert time.process_time() - started_s < 1.0


@pytest.mark.parametrize("sides_px", [(30_000, 1), (1, 30_000), (2, 30_000), (30_000, 7)])
def test_extreme_sides_are_served_at_once(sides_px: tuple[int, int]) -> None:
    source = png_whole(*sides_px, colour=GREY)
    started_s = time.process_time()
    variants = variants_of(source)
    assert time.process_time() - started_s < 1.0
    assert decode(variants[VariantName.CROP].data).size == (128, 128)
    assert max(decode(variants[VariantName.OPTIMIZED].data).size) == 2560


def test_texts_that_inflate_to_hundreds_of_megabytes_are_never_inflated() -> None:
    source = png_text_bomb()
    started_s = time.process_time()
    assert len(variants_of(source)) == len(VariantName)
    assert time.process_time() - started_s < 1.0


def test_a_photo_with_a_film_behind_it_is_served() -> None:
    assert refusal_of(jpeg_with_motion(appended_bytes=16_000_000)) is None


def test_a_legal_scan_bomb_is_a_whole_image_when_allowed() -> None:
    # Else the sandbox's test with this bomb would end by the wrong limit.
    assert refusal_of(jpeg_scan_bomb(200, 100), limits=ImageLimits(jpeg_scans_max=1_000)) is None


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["jpeg", "png", "gif", "webp", "tiff", "avif"]), st.data())
def test_damage_gives_variants_or_a_code(kind: str, data: st.DataObject) -> None:
    damaged = bytearray(SMALL[kind])
    for _ in range(data.draw(st.integers(1, 12))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    refusal_of(bytes(damaged))  # anything but ImageRejected would be raised here


SMALL = {kind: encode(scene(40, 30), kind.upper()) for kind in ("jpeg", "png", "gif", "webp", "tiff", "avif")}
