"""The catalogue of hostile images: every kind that is known to have hurt such a system, and what must come of it here.

Each kind is made by our own code, small, and another one for each seed; `hostile_images(count)` deals them out in turn.
Where a codec is free to see it either way (it fills what is missing, or calls the file broken), both are allowed:
what is never allowed is another code, an answer that is late, or a child that is lost for no reason of the image's.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from PIL import Image

from contracts.errors import FailureCode
from tests.hostile_images import (
    RGB,
    jpeg_claiming,
    jpeg_scan_bomb,
    jpeg_with_motion,
    jpeg_with_segment,
    large_flat_avif,
    png_claiming,
    png_text_bomb,
    png_whole,
    unsupported,
)
from tests.image_makers import animation, encode, photo, png_chunk, scene

SERVED = "ready"
_INVALID, _PIXELS = FailureCode.INVALID_IMAGE.value, FailureCode.TOO_MANY_PIXELS.value
_SIDE, _COMPLEX = FailureCode.TOO_LARGE_DIMENSION.value, FailureCode.IMAGE_TOO_COMPLEX.value
_FORMAT, _TIME = FailureCode.UNSUPPORTED_FORMAT.value, FailureCode.IMAGE_TIME_LIMIT.value
_MEMORY = FailureCode.IMAGE_MEMORY_LIMIT.value

#: A script that must not be found in anything that is made of an image.
SCRIPT = b"<script>alert('spillway')</script><?php system('id'); ?>"

_FORMATS: dict[str, dict[str, object]] = {
    "JPEG": {"quality": 85},
    "progressive JPEG": {"quality": 85, "progressive": True},
    "PNG": {},
    "GIF": {},
    "WEBP": {},
    "lossless WEBP": {"lossless": True},
    "TIFF": {"compression": "tiff_deflate"},
    "AVIF": {"speed": 10},
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: how it is made from a seed, and the outcomes that are right."""

    name: str
    make: Callable[[int], bytes]
    outcomes: frozenset[str]


def hostile_kinds() -> tuple[Kind, ...]:
    """Return every kind, the cheap ones and the dear ones."""
    return (*_cut(), *_damaged(), *_too_large(), *_too_complex(), *_lying(), *_odd(), *_not_served())


def hostile_images(count: int) -> Iterator[tuple[Kind, bytes]]:
    """Yield so many images, all kinds in turn, each time with another seed."""
    kinds = hostile_kinds()
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield kind, kind.make(number // len(kinds))


def _kind(name: str, make: Callable[[int], bytes], *outcomes: str) -> Kind:
    return Kind(name, make, frozenset(outcomes))


def _whole(file_format: str, seed: int) -> bytes:
    options = _FORMATS[file_format]
    return encode(photo(160, 120, seed=seed), file_format.rsplit(" ", maxsplit=1)[-1], **options)


def _cut() -> Iterator[Kind]:
    for file_format in _FORMATS:

        def cut(seed: int, *, file_format: str = file_format) -> bytes:
            whole = _whole(file_format, seed)
            return whole[: len(whole) * (10, 50, 90, 98)[seed % 4] // 100]

        yield _kind(f"a cut {file_format}", cut, _INVALID)
    yield _kind("no bytes", lambda _: b"", _INVALID)


def _damaged() -> Iterator[Kind]:
    for file_format in _FORMATS:

        def damaged(seed: int, *, file_format: str = file_format) -> bytes:
            data = bytearray(_whole(file_format, seed))
            chance = hashlib.shake_128(f"{file_format} {seed}".encode()).digest(5 * (1 + seed % 12))
            for start in range(0, len(chance), 5):
                data[4 + int.from_bytes(chance[start : start + 4]) % (len(data) - 4)] = chance[start + 4]
            return bytes(data)

        yield _kind(f"a damaged {file_format}", damaged, SERVED, *(code.value for code in FailureCode))


def _too_large() -> Iterator[Kind]:
    yield _kind("a JPEG that claims gigapixels", lambda _: jpeg_claiming(64_250, 64_250), _PIXELS)
    yield _kind("a PNG of one bit that claims gigapixels", lambda _: png_claiming(60_000, 60_000, depth=1), _PIXELS)
    yield _kind("an interlaced PNG too large", lambda _: png_claiming(20_000, 20_000, interlace=1), _PIXELS)
    yield _kind("a progressive JPEG too large", lambda _: jpeg_scan_bomb(20_000, 20_000, scans=2), _PIXELS)
    yield _kind("an AVIF that claims 49 megapixels", lambda _: avif_claiming(7_000, 7_000), _PIXELS)
    yield _kind("an AVIF that claims 268 megapixels", lambda _: avif_claiming(16_384, 16_384), _PIXELS)
    yield _kind("a PNG too wide", lambda _: png_whole(65_000, 1), _SIDE)
    yield _kind("a PNG too tall", lambda _: png_whole(1, 1_000_000), _SIDE)
    yield _kind("a JPEG too tall", lambda _: jpeg_claiming(1, 65_500), _SIDE)
    yield _kind("a GIF that claims gigapixels", lambda _: gif_of((65_535, 65_535), frames=1), _PIXELS)
    yield _kind("a WebP that claims 268 megapixels", lambda _: webp_claiming(16_384, 16_384), _PIXELS)
    yield _kind("a TIFF that claims gigapixels", lambda _: tiff({256: 60_000, 257: 60_000}), _PIXELS)


def _too_complex() -> Iterator[Kind]:
    yield _kind("a JPEG of 882 scans", lambda seed: jpeg_scan_bomb(640 + seed, 480), _COMPLEX)
    yield _kind("a JPEG of endless markers", lambda _: b"\xff\xd8" + b"\xff\x01" * 100_000, _COMPLEX)
    yield _kind("a PNG of texts that inflate", lambda _: png_text_bomb(chunks=20), SERVED)
    yield _kind("a PNG of many tiny chunks", lambda _: _png_with(*[png_chunk(b"teSt", b"")] * 50_000), SERVED, _INVALID)
    yield _kind("a PNG whose profile inflates", lambda _: png_profile_bomb(), SERVED, _INVALID, _MEMORY)
    yield _kind("a GIF of 20,000 frames", lambda _: gif_of((60, 40), frames=20_000), SERVED)
    yield _kind("a GIF of comments without end", lambda _: gif_of_comments(200_000), _INVALID)
    yield _kind("a TIFF of 5,000 directories", lambda _: tiff_of_directories(5_000), SERVED, _INVALID, _TIME)
    yield _kind("a TIFF whose directory follows itself", lambda _: tiff_of_directories(1, loop=True), SERVED, _INVALID)
    yield _kind("an animated WebP", lambda seed: animation("WEBP", frames=20 + seed), SERVED)
    yield _kind("an animated PNG", lambda seed: animation("PNG", frames=20 + seed), SERVED)


def _lying() -> Iterator[Kind]:
    """Sides in the head that are not those of the pixels."""
    yield _kind("a JPEG of fewer pixels than it claims", lambda _: jpeg_claiming(2_000, 2_000), SERVED, _INVALID)
    yield _kind("a PNG of fewer pixels than it claims", lambda _: png_claiming(5_000, 5_000), _INVALID)
    yield _kind("an AVIF of more pixels than it claims", lambda _: avif_claiming(64, 64, true_px=2_000), _INVALID)
    yield _kind("an AVIF of fewer pixels than it claims", lambda _: avif_claiming(3_000, 3_000), SERVED, _INVALID)
    yield _kind(
        "a GIF whose frame leaves its screen", lambda _: gif_of((4, 4), frames=1, frame_px=(600, 400)), SERVED, _INVALID
    )
    yield _kind("a GIF whose frame is gigapixels", lambda _: _gif_frame_claiming(65_000, 65_000), _PIXELS, _INVALID)
    yield _kind("a WebP whose frame leaves its canvas", lambda _: webp_claiming(8, 8), SERVED, _INVALID)
    yield _kind("a JPEG without a height", lambda _: jpeg_claiming(64, 0), _INVALID)
    yield _kind("a PNG with a second header", lambda _: _png_with(_ihdr(40_000, 40_000)), SERVED, _INVALID)
    yield _kind("a TIFF whose strips are elsewhere", lambda _: tiff({273: 2**31, 279: 2**31}), _INVALID)
    yield _kind("a TIFF of one endless strip", lambda _: tiff({278: 2**32 - 1, 279: 2**32 - 1}), SERVED, _INVALID)
    yield _kind("a TIFF of 60,000 bands", lambda _: tiff({277: 60_000}), _FORMAT, _INVALID)
    yield _kind("a TIFF of 64 bands", lambda _: tiff({277: 64, 262: 1}), _FORMAT, _INVALID)


def _odd() -> Iterator[Kind]:
    """Strange, but images: whatever is in them besides pixels changes nothing and is kept nowhere."""
    yield _kind("a JPEG with a film behind it", lambda seed: jpeg_with_motion(appended_bytes=90_000 + seed), SERVED)
    yield _kind("a JPEG with a script in a comment", lambda _: jpeg_with_segment(0xFE, SCRIPT), SERVED)
    yield _kind("a JPEG with a script behind it", lambda _: encode(scene(60, 40), "JPEG") + SCRIPT, SERVED)
    yield _kind("a PNG with a script in a text", lambda _: _png_with(png_chunk(b"tEXt", b"Comment\0" + SCRIPT)), SERVED)
    yield _kind("a PNG with a key that is no text", lambda _: _png_with(png_chunk(b"tEXt", b"\xff\xfe\0x")), SERVED)
    yield _kind("a GIF that is a script too", lambda _: gif_of((60, 40), frames=1, comment=b"*/=1;" + SCRIPT), SERVED)
    yield _kind("a TIFF with a text that is no text", lambda _: tiff({}, text=b"\xff\xfe\x00"), SERVED)
    yield _kind("an EXIF block that follows itself", lambda _: jpeg_with_segment(0xE1, _exif_loop()), SERVED)
    yield _kind("an orientation that is none", lambda seed: _oriented((0, 9, 255, 65_535)[seed % 4]), SERVED)
    yield _kind("a JPEG one pixel wide", lambda _: encode(Image.new("RGB", (1, 3_000), (9, 9, 9)), "JPEG"), SERVED)
    yield _kind("a PNG 30,000 wide", lambda _: png_whole(30_000, 1), SERVED)
    yield _kind("a PNG 30,000 tall", lambda _: png_whole(2, 30_000, colour=RGB), SERVED)
    yield _kind("a profile that is none", lambda _: encode(scene(60, 40), "JPEG", icc_profile=b"x" * 70_000), SERVED)


def _not_served() -> Iterator[Kind]:
    for name, data in unsupported().items():
        yield _kind(f"a file of type {name}", partial(_given, data), _FORMAT)


def _given(data: bytes, _: int) -> bytes:
    return data


def avif_claiming(width_px: int, height_px: int, *, true_px: int = 64) -> bytes:
    """Return an AVIF whose box says these sides, and whose picture has others."""
    data = large_flat_avif(true_px, true_px)
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", width_px, height_px) + data[at + 8 :]


def webp_claiming(width_px: int, height_px: int) -> bytes:
    """Return a WebP whose canvas has these sides, and whose picture has others."""
    data = bytearray(encode(scene(60, 40), "WEBP", icc_profile=b"x" * 200))
    data[24:30] = (width_px - 1).to_bytes(3, "little") + (height_px - 1).to_bytes(3, "little")
    return bytes(data)


def gif_of(
    screen_px: tuple[int, int], *, frames: int, frame_px: tuple[int, int] = (1, 1), comment: bytes = b""
) -> bytes:
    """Return a GIF of black frames on a screen of this size; a comment of up to 255 bytes may be in it."""
    head = b"GIF89a" + struct.pack("<HHBBB", *screen_px, 0x80, 0, 0) + b"\x00\x00\x00\xff\xff\xff"
    note = b"\x21\xfe" + bytes((len(comment),)) + comment + b"\x00" if comment else b""
    still = Image.new("P", frame_px)
    still.putpalette([0, 0, 0, 255, 255, 255])
    drawn = encode(still, "GIF")
    picture = drawn[drawn.index(b"\x2c") : -1]
    return head + note + picture * frames + b"\x3b"


def _gif_frame_claiming(width_px: int, height_px: int) -> bytes:
    data = bytearray(gif_of((4, 4), frames=1))
    frame = data.rindex(b"\x2c\x00\x00\x00\x00")
    data[frame + 5 : frame + 9] = struct.pack("<HH", width_px, height_px)
    return bytes(data)


def gif_of_comments(count: int) -> bytes:
    """Return a GIF that has nothing but comments, and no end."""
    return b"GIF89a" + struct.pack("<HHBBB", 60, 40, 0, 0, 0) + b"\x21\xfe\x01x\x00" * count


def png_profile_bomb(*, inflated_bytes: int = 40_000_000) -> bytes:
    """Return a good small PNG whose ICC profile inflates to much."""
    return _png_with(png_chunk(b"iCCP", b"profile\0\0" + zlib.compress(b"\x00" * inflated_bytes, 9)))


def tiff(changed: dict[int, int], *, text: bytes = b"") -> bytes:
    """Return a little grey TIFF with some tags changed, and a description."""
    tags = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 8, 279: 64} | changed
    return b"II*\x00" + struct.pack("<I", 8 + 64 + len(text)) + b"\x80" * 64 + text + _directory(tags, text=text)


def tiff_of_directories(count: int, *, loop: bool = False) -> bytes:
    """Return a TIFF of so many pages, all with the same pixels; in a loop the last is followed by the first."""
    first = 8 + 64
    tags = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 8, 279: 64}
    length = len(_directory(tags))
    following = [first + length * (number + 1) for number in range(count - 1)] + [first if loop else 0]
    return (
        b"II*\x00"
        + struct.pack("<I", first)
        + b"\x80" * 64
        + b"".join(_directory(tags, next_at=at) for at in following)
    )


def _directory(tags: dict[int, int], *, text: bytes = b"", next_at: int = 0) -> bytes:
    entries = {tag: struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()}
    if text:
        entries[270] = struct.pack(
            "<HHII", 270, 2, len(text), 8 + 64 if len(text) > 4 else int.from_bytes(text, "little")
        )
    return (
        struct.pack("<H", len(entries)) + b"".join(entries[tag] for tag in sorted(entries)) + struct.pack("<I", next_at)
    )


def _ihdr(width_px: int, height_px: int) -> bytes:
    return png_chunk(b"IHDR", struct.pack(">IIBBBBB", width_px, height_px, 8, RGB, 0, 0, 0))


def _png_with(*chunks: bytes) -> bytes:
    image = encode(scene(60, 40), "PNG")
    cut = image.index(b"IDAT") - 4
    return image[:cut] + b"".join(chunks) + image[cut:]


def _exif_loop() -> bytes:
    """Return an EXIF block whose first directory is its own next one and its own sub-directory."""
    entry = struct.pack("<HHII", 0x8769, 4, 1, 8)
    return b"Exif\0\0II*\x00" + struct.pack("<I", 8) + struct.pack("<H", 1) + entry + struct.pack("<I", 8)


def _oriented(orientation: int) -> bytes:
    exif = b"Exif\0\0II*\x00" + struct.pack("<IHHHIII", 8, 1, 0x0112, 3, 1, orientation, 0)
    return jpeg_with_segment(0xE1, exif)
