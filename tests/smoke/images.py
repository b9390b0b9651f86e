"""Images without a library: a PNG to send, and the proof that an answer is a whole JPEG."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

#: Frame headers of JPEG (ITU-T T.81, table B.1): all SOF markers, without DHT, JPG and DAC.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


def png(width: int, height: int, *, seed: int) -> bytes:
    """Return a colourful RGB PNG; another one for each seed."""
    rows = b"".join(
        b"\x00" + bytes(value for x in range(width) for value in _colour(x, y, seed=seed)) for y in range(height)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"tEXt", b"Comment\x00" + str(seed).encode())
        + _chunk(b"IDAT", zlib.compress(rows, 6))
        + _chunk(b"IEND", b"")
    )


def _colour(x: int, y: int, *, seed: int) -> tuple[int, int, int]:
    return (x + seed) % 256, (y * 2) % 256, ((x ^ y) + seed) % 256


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg_size(data: bytes) -> Size | None:
    """Return the size that a whole JPEG announces, None when this is none: start, frame, scan and end must be there."""
    if not (data.startswith(b"\xff\xd8") and data.endswith(b"\xff\xd9")):
        return None
    size, at = None, 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, (length_bytes,) = data[at + 1], struct.unpack(">H", data[at + 2 : at + 4])
        if marker in _FRAMES and at + 9 <= len(data):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            size = Size(width, height)
        if marker == _START_OF_SCAN:
            return size
        at += 2 + length_bytes
    return None
