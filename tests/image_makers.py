"""Good images made by our own code, the same at every run, for tests that must know what is in them.

Pillow makes and checks: it is not the library under test.
"""

import hashlib
import io
import struct
import zlib
from collections.abc import Iterable

from PIL import Image, ImageOps

RED, GREEN, BLUE, YELLOW = (220, 30, 40), (30, 180, 60), (40, 60, 200), (230, 210, 40)
#: The corners of `scene`, as fractions of its sides, with their colours.
CORNERS = (((0.25, 0.25), RED), ((0.75, 0.25), GREEN), ((0.25, 0.75), BLUE), ((0.75, 0.75), YELLOW))

ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def scene(width_px: int, height_px: int) -> Image.Image:
    """Return four plain quadrants: red and green above blue and yellow."""
    image = Image.new("RGB", (width_px, height_px))
    for (x, y), colour in CORNERS:
        left, top = (0 if x < 0.5 else width_px // 2), (0 if y < 0.5 else height_px // 2)
        image.paste(colour, (left, top, width_px, height_px))
        if x < 0.5:
            image.paste(colour, (0, top, width_px // 2, height_px))
    return image


def photo(width_px: int, height_px: int, *, seed: int = 1) -> Image.Image:
    """Return soft shapes with fine noise, which compresses about like a photograph."""
    bits = hashlib.shake_128(seed.to_bytes(4, "big"))
    coarse_size = (max(2, width_px // 40), max(2, height_px // 40))
    coarse = Image.frombytes("RGB", coarse_size, bits.digest(3 * coarse_size[0] * coarse_size[1]))
    soft = coarse.resize((width_px, height_px), Image.Resampling.BICUBIC)
    noise = Image.frombytes("RGB", (width_px, height_px), bits.digest(3 * width_px * height_px))
    return Image.blend(soft, noise, 0.06)


def encode(image: Image.Image, file_format: str, **options: object) -> bytes:
    """Return the image in a format of Pillow's."""
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


def decode(data: bytes) -> Image.Image:
    """Return the image as Pillow reads it, loaded, with nothing applied."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def turned(image: Image.Image, orientation: int) -> tuple[Image.Image, bytes]:
    """Return the pixels that a camera would store under this orientation, and the EXIF block that says so."""
    stored = image.transpose(_TURNS[orientation]) if orientation in _TURNS else image
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    probe = stored.copy()
    probe.getexif()[ORIENTATION_TAG] = orientation
    upright = ImageOps.exif_transpose(probe)
    if upright.tobytes() != image.tobytes():
        raise AssertionError(f"orientation {orientation} does not turn back")
    return stored, exif.tobytes()


def animation(file_format: str, *, frames: int = 10, size_px: tuple[int, int] = (60, 40)) -> bytes:
    """Return an animation whose first frame is red and all others blue."""
    first = Image.new("RGB", size_px, RED)
    others = [Image.new("RGB", size_px, (*BLUE[:2], BLUE[2] - index)) for index in range(frames - 1)]
    return encode(first, file_format, save_all=True, append_images=others, duration=50, lossless=True)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """Return one PNG chunk with its right checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(header: tuple[int, int, int, int, int], pixels: bytes, *, chunks: Iterable[bytes] = ()) -> bytes:
    """Return a PNG of (width, height, bit depth, colour type, interlace) and raw filtered rows.

    `chunks` stand between the header and the pixels.
    """
    width_px, height_px, depth, colour, interlace = header
    ihdr = struct.pack(">IIBBBBB", width_px, height_px, depth, colour, 0, 0, interlace)
    body = png_chunk(b"IDAT", zlib.compress(pixels, 6))
    return _PNG_SIGNATURE + png_chunk(b"IHDR", ihdr) + b"".join(chunks) + body + png_chunk(b"IEND", b"")


def png_rgb16(width_px: int, height_px: int, colour: tuple[int, ...]) -> bytes:
    """Return a plain PNG of 16 bits a sample, with three or four samples of 8 bits given."""
    row = b"\x00" + b"".join(struct.pack(">H", sample * 257) for sample in colour) * width_px
    return png((width_px, height_px, 16, 2 if len(colour) == 3 else 6, 0), row * height_px)


def display_p3_profile() -> bytes:
    """Return a small ICC profile with the primaries of Display P3 (adapted to D50) and gamma 2.2."""
    primaries = {
        b"rXYZ": (0.51512, 0.24120, -0.00105),
        b"gXYZ": (0.29198, 0.69225, 0.04189),
        b"bXYZ": (0.15710, 0.06657, 0.78407),
        b"wtpt": (0.96420, 1.0, 0.82491),
    }
    tags = {name: b"XYZ \0\0\0\0" + _s15_fixed16(values) for name, values in primaries.items()}
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(2.2 * 256)) + b"\0\0"
    tags |= {b"rTRC": curve, b"gTRC": curve, b"bTRC": curve, b"cprt": b"text\0\0\0\0none\0\0\0\0"}
    directory, body, offset = b"", b"", 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        directory += name + struct.pack(">II", offset + len(body), len(data))
        body += data
    head = struct.pack(">I4sI", offset + len(body), b"none", 0x02400000) + b"mntrRGB XYZ "
    head += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + b"\0" * 28 + _s15_fixed16((0.9642, 1.0, 0.82491))
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + directory + body


def _s15_fixed16(values: tuple[float, ...]) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))
