"""Shapes, orientation, formats, metadata and determinism of the variants, checked with Pillow."""

import hashlib

import pytest
from PIL import Image

from contracts.errors import FailureCode
from contracts.images import VARIANT_MEDIA_TYPES, ImageFormat, ImageLimits, TransformParams, VariantName
from tests.hostile_images import jpeg_with_segment
from tests.image_makers import CORNERS, RED, animation, decode, display_p3_profile, encode, photo, scene, turned
from worker.transform import Master, decode_master, make_variants
from worker.variants import ImageRejected, Variant

PARAMS, LIMITS = TransformParams(), ImageLimits()
SHARP = {"quality": 95, "lossless": True}


def master_of(source: bytes) -> Master:
    return decode_master(source, params=PARAMS, limits=LIMITS)


def variants_of(source: bytes, *, params: TransformParams = PARAMS) -> dict[VariantName, Variant]:
    master = decode_master(source, params=params, limits=LIMITS)
    return {variant.name: variant for variant in make_variants(master, params=params)}


def assert_colour(image: Image.Image, place: tuple[float, float], colour: tuple[int, ...], *, within: int = 6) -> None:
    x, y = int(place[0] * image.width), int(place[1] * image.height)
    seen = image.convert("RGB").getpixel((x, y))
    assert isinstance(seen, tuple)
    assert max(abs(a - b) for a, b in zip(seen, colour, strict=True)) <= within, (seen, colour, place)


def test_each_variant_says_truly_what_it_is() -> None:
    variants = variants_of(encode(photo(1000, 500), "JPEG"))
    assert list(variants) == [VariantName.THUMBNAIL, VariantName.CROP, VariantName.OPTIMIZED]
    for name, variant in variants.items():
        image = decode(variant.data)
        assert f"image/{(image.format or '').lower()}" == VARIANT_MEDIA_TYPES[name]
        assert image.size == (variant.width_px, variant.height_px)
        assert variant.sha256 == hashlib.sha256(variant.data).hexdigest()
        assert image.mode == "RGB"


@pytest.mark.parametrize(
    ("source_px", "thumbnail_px", "optimized_px"),
    [
        ((1000, 500), (256, 128), (1000, 500)),
        ((500, 1000), (128, 256), (500, 1000)),
        ((50, 40), (50, 40), (50, 40)),
        ((1, 1), (1, 1), (1, 1)),
        ((257, 256), (256, 255), (257, 256)),
        ((2600, 100), (256, 10), (2560, 98)),
        ((1, 3000), (1, 256), (1, 2560)),
    ],
)
def test_nothing_is_scaled_up_but_the_crop(
    source_px: tuple[int, int], thumbnail_px: tuple[int, int], optimized_px: tuple[int, int]
) -> None:
    variants = variants_of(encode(scene(*source_px), "PNG"))
    assert decode(variants[VariantName.THUMBNAIL].data).size == thumbnail_px
    assert decode(variants[VariantName.CROP].data).size == (128, 128)
    assert decode(variants[VariantName.OPTIMIZED].data).size == optimized_px


def test_the_crop_is_the_centre_square() -> None:
    image = Image.new("RGB", (300, 100), (0, 0, 0))
    image.paste(RED, (100, 0, 200, 100))
    crop = decode(variants_of(encode(image, "PNG"))[VariantName.CROP].data)
    for place in ((0.1, 0.1), (0.9, 0.9), (0.1, 0.9), (0.5, 0.5)):
        assert_colour(crop, place, RED)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_all_variants_stand_upright(file_format: str, orientation: int) -> None:
    stored, exif = turned(scene(400, 240), orientation)
    source = encode(stored, file_format, exif=exif, **SHARP)
    master = master_of(source)
    assert (master.width_px, master.height_px) == (400, 240)
    for name, variant in variants_of(source).items():
        image = decode(variant.data)
        assert not image.getexif()
        assert image.size == {"thumbnail": (256, 154), "crop": (128, 128), "optimized": (400, 240)}[name]
        for place, colour in CORNERS:
            assert_colour(image, place, colour)


def test_a_turned_photo_larger_than_the_master_stands_upright_too() -> None:
    stored, exif = turned(scene(3000, 1500), 6)
    variants = variants_of(encode(stored, "JPEG", exif=exif))
    image = decode(variants[VariantName.OPTIMIZED].data)
    assert image.size == (2560, 1280)
    for place, colour in CORNERS:
        assert_colour(image, place, colour)


@pytest.mark.parametrize("image_format", ImageFormat)
def test_every_format_is_served(image_format: ImageFormat) -> None:
    source = encode(scene(300, 200), image_format.value.upper(), **SHARP)
    assert master_of(source).image_format is image_format
    for variant in variants_of(source).values():
        image = decode(variant.data)
        for place, colour in CORNERS:
            assert_colour(image, place, colour, within=10)


@pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP", "AVIF"])
def test_an_animation_gives_its_first_frame(file_format: str) -> None:
    for variant in variants_of(animation(file_format)).values():
        image = decode(variant.data)
        assert getattr(image, "n_frames", 1) == 1
        for place in ((0.1, 0.1), (0.5, 0.5), (0.9, 0.9)):
            assert_colour(image, place, RED, within=10)


def test_a_tiff_of_many_pages_gives_its_first() -> None:
    pages = [Image.new("RGB", (60, 40), (0, 0, index)) for index in range(3)]
    source = encode(Image.new("RGB", (60, 40), RED), "TIFF", save_all=True, append_images=pages)
    for variant in variants_of(source).values():
        assert_colour(decode(variant.data), (0.5, 0.5), RED)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_no_metadata_is_left(file_format: str) -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x8298] = "maker of the camera", "owner of the rights"
    exif.get_ifd(0x8825)[1] = "N"  # a place on the globe
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/">secret</x:xmpmeta>'
    source = encode(scene(300, 200), file_format, exif=exif, icc_profile=display_p3_profile(), xmp=xmp)
    for variant in variants_of(source).values():
        image = decode(variant.data)
        assert not set(image.info) & {"exif", "icc_profile", "xmp", "comment", "photoshop"}
        for mark in (b"Exif", b"EXIF", b"XMP", b"xmpmeta", b"ICC", b"maker", b"owner"):
            assert mark not in variant.data


def test_equal_input_gives_equal_bytes() -> None:
    source = encode(photo(700, 500), "JPEG")
    assert variants_of(source) == variants_of(source)


def test_parameters_decide() -> None:
    source = encode(photo(700, 500), "JPEG")
    small = TransformParams(master_side_px_max=300, thumbnail_side_px=100, crop_side_px=50, webp_effort=0)
    variants = variants_of(source, params=small)
    assert decode(variants[VariantName.THUMBNAIL].data).size == (100, 71)
    assert decode(variants[VariantName.CROP].data).size == (50, 50)
    assert decode(variants[VariantName.OPTIMIZED].data).size == (300, 214)
    poor = variants_of(source, params=TransformParams(jpeg_quality=10, webp_quality=10))
    rich = variants_of(source)
    for name in VariantName:
        assert len(poor[name].data) < len(rich[name].data)


def test_a_source_over_the_byte_limit_is_refused() -> None:
    source = encode(scene(60, 40), "PNG")
    with pytest.raises(ImageRejected) as refused:
        decode_master(source, params=PARAMS, limits=ImageLimits(source_bytes_max=len(source) - 1))
    assert refused.value.code is FailureCode.IMAGE_MEMORY_LIMIT


def test_a_tiff_of_many_bands_is_refused() -> None:
    source = encode(scene(60, 40), "TIFF")
    with pytest.raises(ImageRejected) as refused:
        decode_master(source, params=PARAMS, limits=ImageLimits(bands_max=2))
    assert refused.value.code is FailureCode.UNSUPPORTED_FORMAT


def test_a_photo_with_a_second_picture_behind_it_is_served() -> None:
    source = encode(scene(300, 200), "JPEG", quality=95) + encode(photo(64, 64), "JPEG")
    assert master_of(source).width_px == 300


def test_junk_where_a_camera_may_leave_it_is_served() -> None:
    for source in (
        jpeg_with_segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff broken"),
        jpeg_with_segment(0xE2, b"ICC_PROFILE\0\x01\x01 broken profile"),
        jpeg_with_segment(0xED, b"Photoshop 3.0\0 broken"),
        jpeg_with_segment(0xFE, b"\xff\xfe not UTF-8"),
        encode(scene(60, 40), "JPEG")[:-2] + b"\x00\x00junk" * 9 + b"\xff\xd9",
        encode(scene(60, 40), "JPEG") + b"\x00" * 1000,
    ):
        for place, colour in CORNERS:
            assert_colour(decode(variants_of(source)[VariantName.THUMBNAIL].data), place, colour, within=12)
