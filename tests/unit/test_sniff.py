import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.sniff import (
    Header,
    check_header,
    exceeds_jpeg_scans,
    read_dimensions,
    sniff_format,
)
from contracts.errors import ErrorCode, FailureCode
from contracts.images import ImageFormat, ImageLimits
from contracts.limits import SNIFF_BYTES
from tests.hostile_images import (
    jpeg_claiming,
    jpeg_scan_bomb,
    jpeg_with_motion,
    jpeg_with_segment,
    large_flat_avif,
    png_claiming,
    unsupported,
)
from tests.image_makers import animation, encode, photo, scene

LIMITS = ImageLimits()
MAGIC = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR",
    b"GIF89a",
    b"RIFF\x00\x00\x00\x00WEBPVP8X",
    b"RIFF\x00\x00\x00\x00WEBPVP8L",
    b"RIFF\x00\x00\x00\x00WEBPVP8 ",
    b"II*\x00\x08\x00\x00\x00",
    b"MM\x00*\x00\x00\x00\x08",
    b"II+\x00\x08\x00\x00\x00",
    b"\x00\x00\x00\x14ftypavif\x00\x00\x00\x00avif\x00\x00\x01\x00meta",
)
GOOD: dict[str, tuple[ImageFormat, bytes]] = {
    "jpeg": (ImageFormat.JPEG, encode(scene(61, 43), "JPEG")),
    "progressive jpeg": (ImageFormat.JPEG, encode(scene(61, 43), "JPEG", progressive=True)),
    "png": (ImageFormat.PNG, encode(scene(61, 43), "PNG")),
    "gif": (ImageFormat.GIF, encode(scene(61, 43), "GIF")),
    "lossy webp": (ImageFormat.WEBP, encode(scene(61, 43), "WEBP")),
    "lossless webp": (ImageFormat.WEBP, encode(scene(61, 43), "WEBP", lossless=True)),
    "extended webp": (ImageFormat.WEBP, encode(scene(61, 43), "WEBP", icc_profile=b"x" * 200)),
    "animated webp": (ImageFormat.WEBP, animation("WEBP", size_px=(61, 43))),
    "tiff": (ImageFormat.TIFF, encode(scene(61, 43), "TIFF")),
    "big tiff": (ImageFormat.TIFF, encode(scene(61, 43), "TIFF", big_tiff=True)),
    "avif": (ImageFormat.AVIF, encode(scene(61, 43), "AVIF")),
    "avif sequence": (ImageFormat.AVIF, animation("AVIF", size_px=(61, 43))),
}


@pytest.mark.parametrize("kind", GOOD)
def test_format_and_sides_are_read_from_the_bytes(kind: str) -> None:
    image_format, data = GOOD[kind]
    assert sniff_format(data[:SNIFF_BYTES]) is image_format
    assert read_dimensions(data[:SNIFF_BYTES], image_format) == (61, 43)


def test_a_big_endian_tiff_is_read() -> None:
    entries = ((256, 3, 61 << 16), (257, 4, 43), (258, 3, 8 << 16))
    directory = struct.pack(">H", len(entries)) + b"".join(struct.pack(">HHII", t, k, 1, v) for t, k, v in entries)
    head = b"MM\x00*\x00\x00\x00\x08" + directory
    assert read_dimensions(head, ImageFormat.TIFF) == (61, 43)


@pytest.mark.parametrize("kind", unsupported())
def test_what_is_not_served_is_named_unsupported(kind: str) -> None:
    head = unsupported()[kind]
    assert sniff_format(head) is None
    assert check_header(head, LIMITS) is FailureCode.UNSUPPORTED_FORMAT


def test_an_empty_head_has_no_format() -> None:
    assert sniff_format(b"") is None


def test_sides_behind_the_head_are_left_to_the_decoder() -> None:
    data = jpeg_with_segment(0xE2, b"\x00" * 60_000)
    data = data[:2] + data[2:60_006] + data[2:]  # twice: the frame now lies behind the first 64 KiB
    assert read_dimensions(data[:SNIFF_BYTES], ImageFormat.JPEG) is None
    assert read_dimensions(data, ImageFormat.JPEG) == (60, 40)
    header = check_header(data[:SNIFF_BYTES], LIMITS)
    assert isinstance(header, Header)
    assert header.width_px is None


def test_an_avif_whose_properties_go_on_behind_the_head_is_left_to_the_decoder() -> None:
    data = encode(scene(61, 43), "AVIF")
    end_of_sides = data.index(b"ispe") + 16
    assert read_dimensions(data[:end_of_sides], ImageFormat.AVIF) is None


def test_fill_bytes_and_junk_before_the_frame_are_skipped_as_decoders_do() -> None:
    data = encode(scene(60, 40), "JPEG")
    sloppy = data[:2] + b"\x00junk" + b"\xff" * 9 + data[3:]
    assert read_dimensions(sloppy, ImageFormat.JPEG) == (60, 40)


def test_a_frame_inside_an_embedded_preview_is_not_taken() -> None:
    data = jpeg_with_segment(0xE1, b"Exif\0\0" + encode(scene(9, 9), "JPEG"))
    assert read_dimensions(data, ImageFormat.JPEG) == (60, 40)


def test_sides_of_zero_are_left_to_the_decoder() -> None:
    assert read_dimensions(png_claiming(0, 7), ImageFormat.PNG) is None


@pytest.mark.parametrize(
    ("data", "whole_frame"),
    [
        (encode(scene(60, 40), "JPEG"), False),
        (encode(scene(60, 40), "JPEG", progressive=True), True),
        (png_claiming(60, 40), False),
        (png_claiming(60, 40, interlace=1), True),
        (encode(scene(60, 40), "AVIF"), True),
    ],
    ids=["baseline", "progressive", "plain png", "interlaced png", "avif"],
)
def test_decoders_that_hold_the_whole_frame_are_known(data: bytes, *, whole_frame: bool) -> None:
    header = check_header(data, LIMITS)
    assert isinstance(header, Header)
    assert header.whole_frame is whole_frame


@pytest.mark.parametrize(
    ("head", "refusal"),
    [
        (png_claiming(20_000, 20_000, interlace=1), FailureCode.TOO_MANY_PIXELS),
        (png_claiming(60_000, 60_000, depth=1, colour=0), FailureCode.TOO_MANY_PIXELS),
        (jpeg_claiming(64_250, 64_250), FailureCode.TOO_MANY_PIXELS),
        (png_claiming(65_000, 1), FailureCode.TOO_LARGE_DIMENSION),
        (png_claiming(1, 1_000_000), FailureCode.TOO_LARGE_DIMENSION),
        (large_flat_avif(4_000, 4_008), FailureCode.TOO_MANY_PIXELS),
    ],
    ids=["interlaced", "one bit", "jpeg", "wide", "tall", "avif"],
)
def test_a_header_over_the_limits_is_refused_with_its_code(head: bytes, refusal: FailureCode) -> None:
    assert check_header(head[:SNIFF_BYTES], LIMITS) is refusal
    assert ErrorCode(refusal.value)  # the API answers with the same word


@pytest.mark.parametrize(
    "head",
    [png_claiming(5_000, 10_000), png_claiming(30_000, 1), large_flat_avif(4_000, 4_000)],
    ids=["50 megapixels", "longest side", "largest avif"],
)
def test_a_header_at_the_limits_passes(head: bytes) -> None:
    assert isinstance(check_header(head, LIMITS), Header)


def test_scans_are_counted_as_a_decoder_meets_them() -> None:
    progressive = encode(photo(64, 64), "JPEG", progressive=True)
    assert not exceeds_jpeg_scans(progressive, scans_max=10)
    assert exceeds_jpeg_scans(progressive, scans_max=9)
    assert exceeds_jpeg_scans(jpeg_scan_bomb(64, 64), scans_max=100)
    assert not exceeds_jpeg_scans(jpeg_scan_bomb(64, 64, scans=100), scans_max=100)


def test_a_film_behind_the_photo_is_not_counted_as_scans() -> None:
    data = jpeg_with_motion(appended_bytes=16_000_000)
    assert data.count(b"\xff\xda") > 100
    assert not exceeds_jpeg_scans(data, scans_max=100)


@pytest.mark.parametrize("kind", [0x01, 0x02, 0xBF, 0xF0, 0xD8])
def test_scans_cannot_hide_behind_a_marker_that_has_no_length(kind: int) -> None:
    bomb = jpeg_scan_bomb(64, 64)
    first_scan = bomb.index(b"\xff\xda")
    hidden = bomb[:first_scan] + bytes((0xFF, kind, 0xFF, 0xF0)) + bomb[first_scan:]
    assert exceeds_jpeg_scans(hidden, scans_max=100)


def test_endless_markers_are_too_complex() -> None:
    assert exceeds_jpeg_scans(b"\xff\xd8" + b"\xff\x01" * 1_000_000, scans_max=100)


@pytest.mark.parametrize(
    "pattern",
    [b"\xff", b"\xff\x01", b"\xff\xc4\x00\x02", b"\xff\x00", b"\xff\xff\x00", b"\x00"],
    ids=["fill", "markers", "segments", "stuffing", "filled stuffing", "zeros"],
)
def test_the_time_is_linear_in_hostile_bytes(pattern: bytes) -> None:
    data = b"\xff\xd8\xff" + pattern * (16 * 1024 * 1024 // len(pattern))
    started_s = time.process_time()
    check_header(data, LIMITS)
    exceeds_jpeg_scans(data, scans_max=100)
    assert time.process_time() - started_s < 2.0  # a quadratic walk would take hours


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_make_it_raise(head: bytes) -> None:
    sniff_format(head)
    check_header(head, LIMITS)
    exceeds_jpeg_scans(head, scans_max=3)
    for image_format in ImageFormat:
        read_dimensions(head, image_format)


@settings(deadline=None)
@given(st.sampled_from(MAGIC), st.binary(max_size=300))
def test_no_bytes_behind_a_good_start_make_it_raise(magic: bytes, rest: bytes) -> None:
    assert sniff_format(magic + rest) is not None
    check_header(magic + rest, LIMITS)


@settings(deadline=None)
@given(st.sampled_from(sorted(GOOD)), st.data())
def test_no_damage_to_a_good_image_makes_it_raise(kind: str, data: st.DataObject) -> None:
    image_format, whole = GOOD[kind]
    damaged = bytearray(whole[:600])
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    sides = read_dimensions(cut, image_format)
    assert sides is None or min(sides) > 0
    check_header(cut, LIMITS)
