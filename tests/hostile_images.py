"""Hostile images made by our own code: small files that ask for much time, memory or trust."""

import hashlib
import struct
import zlib

from PIL import Image

from tests.image_makers import encode, photo, png, png_chunk, scene

GREY, RGB, INTERLACED = 0, 2, 1

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EOI = b"\xff\xd9"
#: Zero-run symbols of a progressive AC scan: an end-of-band run of up to 2^(n+1) - 1 blocks for symbol n << 4.
_EOB_RUN_BITS_MAX = 14


def png_claiming(width_px: int, height_px: int, *, depth: int = 8, colour: int = RGB, interlace: int = 0) -> bytes:
    """Return a PNG with such a header and almost no pixels."""
    return png((width_px, height_px, depth, colour, interlace), b"\x00" * 64)


def jpeg_claiming(width_px: int, height_px: int) -> bytes:
    """Return a small baseline JPEG whose frame header was patched."""
    data = bytearray(encode(photo(64, 64), "JPEG", quality=80))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height_px, width_px)
    return bytes(data)


def png_whole(width_px: int, height_px: int, *, depth: int = 8, colour: int = GREY, interlace: int = 0) -> bytes:
    """Return a whole black PNG; an interlaced one only with sides that eight divides."""
    samples = {GREY: 1, RGB: 3}[colour]
    if not interlace:
        row = b"\x00" * (1 + (width_px * samples * depth + 7) // 8)
        return png((width_px, height_px, depth, colour, 0), row * height_px)
    passes = ((8, 8), (8, 8), (4, 8), (4, 4), (2, 4), (2, 2), (1, 2))  # Adam7: one pixel of (columns, rows)
    rows = (
        b"\x00" * (1 + width_px // columns * samples * depth // 8) * (height_px // rows_) for columns, rows_ in passes
    )
    return png((width_px, height_px, depth, colour, INTERLACED), b"".join(rows))


def png_text_bomb(*, chunks: int = 100, inflated_bytes: int = 4_000_000) -> bytes:
    """Return a good small PNG with text chunks of each kind that inflate to much."""
    packed = zlib.compress(b" " * inflated_bytes, 9)
    international = png_chunk(b"iTXt", b"Comment\0\x01\0\0\0" + packed)
    zipped = png_chunk(b"zTXt", b"Comment\0\0" + packed)
    image = encode(scene(60, 40), "PNG")
    cut = image.index(b"IDAT") - 4
    texts = (international + zipped) * (chunks // 2) + png_chunk(b"tEXt", b"Comment\0\xff\xfe not UTF-8")
    return image[:cut] + texts + image[cut:]


def jpeg_scan_bomb(width_px: int, height_px: int, *, scans: int = 882) -> bytes:
    """Return a legal progressive grey JPEG, all black, that must be walked `scans` times to decode it.

    Every coefficient comes bit by bit in scans of its own: 14 scans for each of the 63.
    """
    blocks = ((width_px + 7) // 8) * ((height_px + 7) // 8)
    frame = struct.pack(">BHHB", 8, height_px, width_px, 1) + b"\x01\x11\x00"
    head = b"\xff\xd8" + _segment(0xDB, b"\x00" + b"\x01" * 64) + _segment(0xC2, frame)
    # One code for "difference 0"; 15 codes of four bits for the end-of-band runs of 2^0 to 2^14 blocks.
    dc_table = _segment(0xC4, b"\x00" + b"\x01" + b"\x00" * 15 + b"\x00")
    runs = bytes(bits << 4 for bits in range(_EOB_RUN_BITS_MAX + 1))
    ac_table = _segment(0xC4, b"\x10" + b"\x00\x00\x00\x0f" + b"\x00" * 12 + runs)
    dc_scan = _segment(0xDA, b"\x01\x01\x00\x00\x00\x00") + _packed("0" * blocks)
    empty_band = _packed(_eob_runs(blocks))
    ac_scans = (
        _segment(0xDA, bytes((1, 1, 0, position, position, ((high << 4) | (high - 1)) if high < 14 else 13)))
        + empty_band
        for position in range(1, 64)
        for high in range(14, 0, -1)
    )
    body = b"".join(scan for _, scan in zip(range(scans - 1), ac_scans, strict=False))
    return head + dc_table + ac_table + dc_scan + body + _EOI


def jpeg_with_motion(*, appended_bytes: int) -> bytes:
    """Return a good JPEG followed by random bytes, as phones append a film to a photograph."""
    return encode(scene(60, 40), "JPEG", quality=95) + hashlib.shake_128(b"film").digest(appended_bytes)


def jpeg_with_segment(kind: int, body: bytes, *, behind_frame: bool = False) -> bytes:
    """Return a good JPEG with one more segment, at its start or just before its first scan."""
    image = encode(scene(60, 40), "JPEG", quality=95)
    at = image.index(b"\xff\xda") if behind_frame else 2
    return image[:at] + _segment(kind, body) + image[at:]


def large_flat_avif(width_px: int, height_px: int) -> bytes:
    """Return an AVIF of one colour: few bytes, many pixels."""
    return encode(Image.new("RGB", (width_px, height_px), (10, 20, 30)), "AVIF", speed=10)


def unsupported() -> dict[str, bytes]:
    """Return beginnings of files that libraries may know but that are not served, by name."""
    return {
        "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "svg with a link": b'<svg xmlns:x="http://www.w3.org/1999/xlink"><image x:href="file:///etc/passwd"/></svg>',
        "heic": b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic",
        "mif1": b"\x00\x00\x00\x1cftypmif1\x00\x00\x00\x00mif1heicavif",
        "bmp": encode(scene(8, 8), "BMP"),
        "ico": b"\x00\x00\x01\x00\x01\x00\x08\x08",
        "ppm": encode(scene(8, 8), "PPM"),
        "pdf": b"%PDF-1.7\n1 0 obj\n",
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n",
        "mat": b"MATLAB 5.0 MAT-file, Platform: GLNXA64",
        "fits": b"SIMPLE  =                    T",
        "csv": b"1,2,3\n4,5,6\n",
        "vips": b"\xb6\xa6\xf2\x08" + b"\x00" * 60,
        "jpeg 2000": b"\x00\x00\x00\x0cjP  \r\n\x87\n",
        "jpeg xl": b"\xff\x0a\x00\x00",
        "psd": b"8BPS\x00\x01",
        "html": b"<!doctype html><script>alert(1)</script>",
        "php": b"<?php system($_GET[0]); ?>",
        "riff without webp": b"RIFF\x24\x00\x00\x00WAVEfmt ",
        "text": b"not an image at all",
        "one byte": b"\xff",
    }


def _segment(kind: int, body: bytes) -> bytes:
    return bytes((0xFF, kind)) + struct.pack(">H", len(body) + 2) + body


def _eob_runs(blocks: int) -> str:
    bits = ""
    while blocks:
        exponent = min(_EOB_RUN_BITS_MAX, blocks.bit_length() - 1)
        length = min(blocks, (2 << exponent) - 1)
        extra = f"{length - (1 << exponent):0{exponent}b}" if exponent else ""
        bits += f"{exponent:04b}{extra}"
        blocks -= length
    return bits


def _packed(bits: str) -> bytes:
    """Return entropy-coded bits: padded with ones, each 0xFF stuffed."""
    padded = bits + "1" * (-len(bits) % 8)
    return int(padded, 2).to_bytes(len(padded) // 8, "big").replace(b"\xff", b"\xff\x00")
