"""Pictures for demonstrations, made without an image library: noise, which is the most work for its size. Pure."""

import hashlib
import struct
import zlib

_PNG = b"\x89PNG\r\n\x1a\n"
_BITS, _RGB = 8, 2


def noise_png(width: int, height: int, *, seed: int) -> bytes:
    """Return an RGB image of noise; another one for each seed, the same one for the same seed."""
    row_bytes = 3 * width
    noise = hashlib.shake_256(str(seed).encode()).digest(row_bytes * height)
    rows = b"".join(b"\x00" + noise[start : start + row_bytes] for start in range(0, len(noise), row_bytes))
    head = struct.pack(">IIBBBBB", width, height, _BITS, _RGB, 0, 0, 0)
    # Noise does not get smaller: level 1 only wraps it.
    return _PNG + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 1)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
