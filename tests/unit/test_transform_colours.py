"""Every kind of colour ends as 8-bit sRGB that another library sees the same way."""

import io

import pytest
import pyvips
from PIL import Image, ImageCms

from contracts.images import VariantName
from tests.image_makers import decode, display_p3_profile, encode, png_rgb16
from tests.unit.test_transform import assert_colour, variants_of

SIZE_PX = (60, 40)
COLOUR = (200, 30, 60)
JUNK_PROFILE = b"not a profile" * 20


def plain(mode: str, colour: float | tuple[int, ...]) -> Image.Image:
    return Image.new(mode, SIZE_PX, colour)


def vips_plain(colour: tuple[int, ...]) -> pyvips.Image:
    return (pyvips.Image.black(*SIZE_PX, bands=3) + list(colour)).cast("uchar").copy(interpretation="srgb")


def as_pillow_sees(source: bytes) -> tuple[int, ...]:
    """Return the colour in the middle of a picture with a profile, brought to sRGB by Pillow."""
    image = decode(source)
    if "icc_profile" in image.info:
        own = ImageCms.getOpenProfile(_file(image.info["icc_profile"]))
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        to_srgb = ImageCms.buildTransform(own, ImageCms.createProfile("sRGB"), image.mode, "RGB", intent)
        converted = ImageCms.applyTransform(image, to_srgb)
        assert converted is not None
        image = converted
    seen = image.getpixel((image.width // 2, image.height // 2))
    assert isinstance(seen, tuple)
    return seen


def assert_all_variants(source: bytes, colour: tuple[int, ...], *, within: int = 6) -> None:
    for variant in variants_of(source).values():
        image = decode(variant.data)
        assert image.mode == "RGB"
        assert_colour(image, (0.5, 0.5), colour, within=within)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "TIFF"])
@pytest.mark.parametrize("profile", [None, JUNK_PROFILE], ids=["untagged", "broken profile"])
@pytest.mark.parametrize(
    ("image", "seen"), [(plain("RGB", COLOUR), COLOUR), (plain("L", 90), (90, 90, 90))], ids=["rgb", "grey"]
)
def test_plain_colours_stay(file_format: str, profile: bytes | None, image: Image.Image, seen: tuple[int, ...]) -> None:
    assert_all_variants(encode(image, file_format, icc_profile=profile), seen)


def test_srgb_by_profile_stays() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert_all_variants(encode(plain("RGB", COLOUR), "JPEG", icc_profile=profile), COLOUR)


def test_the_red_of_display_p3_is_the_reddest_red() -> None:
    source = encode(plain("RGB", (255, 0, 0)), "PNG", icc_profile=display_p3_profile())
    assert_all_variants(source, (255, 0, 0))


def test_a_colour_of_display_p3_is_converted_as_another_library_does_it() -> None:
    image = plain("RGB", (200, 90, 60))
    profile = display_p3_profile()
    to_srgb = ImageCms.buildTransform(
        ImageCms.getOpenProfile(_file(profile)), ImageCms.createProfile("sRGB"), "RGB", "RGB"
    )
    reference = ImageCms.applyTransform(image, to_srgb)
    assert reference is not None
    expected = reference.getpixel((1, 1))
    assert isinstance(expected, tuple)
    assert max(abs(a - b) for a, b in zip(expected, (200, 90, 60), strict=True)) > 8  # it is a conversion
    assert_all_variants(encode(image, "PNG", icc_profile=profile), expected)


@pytest.mark.parametrize("profile", [None, JUNK_PROFILE, display_p3_profile()], ids=["none", "broken", "of RGB"])
@pytest.mark.parametrize("file_format", ["JPEG", "TIFF"])
def test_cmyk_looks_like_the_ink(file_format: str, profile: bytes | None) -> None:
    # Without a usable profile there is no single truth; the ink's hue and darkness must be right.
    for ink, seen in (
        ((0, 0, 0, 0), (255, 255, 255)),
        ((0, 255, 255, 0), (230, 30, 40)),
        ((0, 0, 0, 255), (35, 32, 32)),
    ):
        source = encode(plain("CMYK", ink), file_format, icc_profile=profile)
        assert_all_variants(source, seen, within=45)


@pytest.mark.parametrize("save", ["jpegsave_buffer", "tiffsave_buffer"])
@pytest.mark.parametrize("colour", [(200, 90, 60), (30, 120, 60), (250, 250, 240), (20, 20, 25)])
def test_cmyk_with_its_profile_is_converted_as_another_library_does_it(save: str, colour: tuple[int, ...]) -> None:
    ink = vips_plain(colour).icc_export(output_profile="cmyk")
    source: bytes = getattr(ink, save)(keep="icc")
    assert decode(source).mode == "CMYK"
    assert_all_variants(source, as_pillow_sees(source))


def test_cmyk_without_the_marker_of_its_inventor_is_read_all_the_same() -> None:
    source = encode(plain("CMYK", (0, 200, 200, 0)), "JPEG", quality=95)
    at = source.index(b"\xff\xee")
    length_bytes = int.from_bytes(source[at + 2 : at + 4], "big")
    bare = source[:at] + source[at + 2 + length_bytes :]
    assert decode(bare).mode == "CMYK"
    for variant, other in zip(variants_of(source).values(), variants_of(bare).values(), strict=True):
        assert_colour(decode(variant.data), (0.5, 0.5), (237, 81, 69), within=45)
        assert variant == other


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "TIFF"])
@pytest.mark.parametrize(
    ("image", "seen"), [(plain("RGB", COLOUR), COLOUR), (plain("L", 90), (90, 90, 90))], ids=["rgb", "grey"]
)
def test_a_profile_of_another_kind_of_colours_is_not_used(
    file_format: str, image: Image.Image, seen: tuple[int, ...]
) -> None:
    of_ink: bytes = vips_plain(COLOUR).icc_export(output_profile="cmyk").get("icc-profile-data")
    assert_all_variants(encode(image, file_format, icc_profile=of_ink), seen)


def test_a_photo_with_a_gain_map_is_its_plain_picture() -> None:
    bright = pyvips.Image.black(256, 128, bands=3).linear(1, [0.5, 0.2, 0.1]).cast("float").copy(interpretation="scrgb")
    source: bytes = bright.uhdrsave_buffer()
    assert source.count(b"\xff\xd8\xff") == 2  # the picture, and its gain map behind it
    assert_all_variants(source, as_pillow_sees(source))


def test_sixteen_bits_become_eight() -> None:
    sixteen = (pyvips.Image.black(*SIZE_PX, bands=3) + [sample * 257 for sample in COLOUR]).cast("ushort")
    assert_all_variants(sixteen.copy(interpretation="rgb16").tiffsave_buffer(), COLOUR)
    assert_all_variants(png_rgb16(*SIZE_PX, COLOUR), COLOUR)
    assert_all_variants(encode(plain("I;16", 90 * 257), "PNG"), (90, 90, 90))


def test_palettes_bits_and_floats_are_read() -> None:
    palette = plain("RGB", COLOUR).quantize(4)
    assert_all_variants(encode(palette, "PNG"), COLOUR)
    assert_all_variants(encode(palette, "GIF"), COLOUR)
    assert_all_variants(encode(plain("1", 1), "PNG"), (255, 255, 255))
    assert_all_variants(encode(plain("1", 1), "TIFF"), (255, 255, 255))
    assert_all_variants(encode(plain("F", 90.0), "TIFF"), (90, 90, 90))


@pytest.mark.parametrize("space", ["scrgb", "xyz", "lab"])
@pytest.mark.parametrize("profile", ["none", "valid", "broken"])
def test_spaces_without_a_device_are_read_whatever_the_profile_says(space: str, profile: str) -> None:
    plain_16 = (pyvips.Image.black(*SIZE_PX, bands=3) + [sample * 257 for sample in COLOUR]).cast("ushort")
    image = plain_16.copy(interpretation="rgb16").colourspace(space).copy()
    icc = display_p3_profile()
    if profile != "none":
        image.set_type(pyvips.GValue.blob_type, "icc-profile-data", icc)
    source: bytes = image.tiffsave_buffer()
    assert (icc in source) is (profile != "none")
    assert_all_variants(source.replace(icc, b"x" * len(icc)) if profile == "broken" else source, COLOUR)


def half_clear(mode: str, colour: tuple[int, ...]) -> Image.Image:
    """Return a picture whose left half is opaque and whose right half is clear."""
    image = plain(mode, (*colour, 255))
    image.paste((*(0 for _ in colour), 0), (SIZE_PX[0] // 2, 0, *SIZE_PX))
    return image


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        (encode(half_clear("RGBA", COLOUR), "PNG"), COLOUR),
        (encode(half_clear("RGBA", COLOUR), "WEBP", lossless=True), COLOUR),
        (encode(half_clear("RGBA", COLOUR), "AVIF", quality=100), COLOUR),
        (encode(half_clear("RGBA", COLOUR), "TIFF"), COLOUR),
        (encode(half_clear("LA", (90,)), "PNG"), (90, 90, 90)),
        (encode(half_clear("RGBA", COLOUR), "GIF"), COLOUR),
    ],
    ids=["png", "webp", "avif", "tiff", "grey with alpha", "gif"],
)
def test_what_is_clear_is_white_in_jpeg_and_clear_in_webp(source: bytes, seen: tuple[int, ...]) -> None:
    variants = variants_of(source)
    for name in (VariantName.THUMBNAIL, VariantName.CROP):
        image = decode(variants[name].data)
        assert_colour(image, (0.9, 0.5), (255, 255, 255))
        assert_colour(image, (0.1, 0.5), seen, within=10)
    optimized = decode(variants[VariantName.OPTIMIZED].data)
    assert optimized.mode == "RGBA"
    assert_colour(optimized, (0.1, 0.5), seen, within=10)
    alpha = optimized.getchannel("A")
    assert (alpha.getpixel((3, 20)), alpha.getpixel((56, 20))) == (255, 0)


def test_half_clear_colours_are_mixed_with_white() -> None:
    for source in (encode(plain("RGBA", (200, 0, 0, 128)), "PNG"), png_rgb16(*SIZE_PX, (200, 0, 0, 128))):
        variants = variants_of(source)
        assert_colour(decode(variants[VariantName.THUMBNAIL].data), (0.5, 0.5), (227, 127, 127))
        assert decode(variants[VariantName.OPTIMIZED].data).getchannel("A").getpixel((5, 5)) == 128


def _file(data: bytes) -> io.BytesIO:
    return io.BytesIO(data)
