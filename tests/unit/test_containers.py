import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.images import ImageFormat
from tests.hostile_images import png_text_bomb
from tests.image_makers import animation, decode, encode, scene
from worker.containers import prepare


def test_a_whole_image_is_left_as_it_is() -> None:
    for image_format in ImageFormat:
        source = encode(scene(60, 40), image_format.value.upper())
        assert prepare(source, image_format) == source


def test_texts_are_dropped_and_the_pixels_stay() -> None:
    prepared = prepare(png_text_bomb(), ImageFormat.PNG)
    assert prepared is not None
    assert not any(kind in prepared for kind in (b"tEXt", b"zTXt", b"iTXt"))
    assert decode(prepared).tobytes() == scene(60, 40).tobytes()


def test_an_avif_sequence_is_told_to_be_a_still() -> None:
    source = animation("AVIF")
    assert source[4:12] == b"ftypavis"
    assert prepare(source, ImageFormat.AVIF) == source.replace(b"ftypavis", b"ftypavif", 1)


@pytest.mark.parametrize("file_format", ["PNG", "GIF", "AVIF"])
def test_an_end_that_no_decoder_would_miss_is_missed(file_format: str) -> None:
    source = animation(file_format)
    for missing_bytes in (1, 5, 12):
        assert prepare(source[:-missing_bytes], ImageFormat(file_format.lower())) is None


@settings(deadline=None)
@given(st.sampled_from(ImageFormat), st.binary(max_size=300))
def test_no_bytes_make_it_raise(image_format: ImageFormat, source: bytes) -> None:
    prepare(source, image_format)


@pytest.mark.parametrize(
    ("image_format", "head", "pattern"),
    [
        (ImageFormat.PNG, b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00tEXt\x00\x00\x00\x00"),
        (ImageFormat.GIF, b"GIF89a" + b"\x00" * 7 + b"\x21\xfe", b"\x01\x01"),
        (ImageFormat.GIF, b"GIF89a" + b"\x00" * 7, b"\x21\xfe\x00"),
        (ImageFormat.AVIF, b"\x00\x00\x00\x10ftypavif\x00\x00\x00\x00", b"\x00\x00\x00\x08free"),
    ],
    ids=["chunks", "sub-blocks", "extensions", "boxes"],
)
def test_the_time_is_linear_in_hostile_bytes(image_format: ImageFormat, head: bytes, pattern: bytes) -> None:
    source = head + pattern * (4 * 1024 * 1024 // len(pattern))
    started_s = time.process_time()
    prepare(source, image_format)
    assert time.process_time() - started_s < 3.0  # a quadratic walk would take hours
