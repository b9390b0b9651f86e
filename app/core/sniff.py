"""What an image claims to be, read from its first bytes: format, sides, and whether the limits allow them.

Invariant: pure, standard library only, linear in its input, and never raises, whatever the bytes are. What
is not in the bytes is None, and the decoder decides. Sides are as stored, before any orientation is applied.

Sources: ISO 10918-1 (JPEG), PNG 3rd edition, GIF89a, TIFF 6.0 and BigTIFF, the WebP container and RFC 6386
(VP8), ISO 14496-12 and 23008-12 (boxes, `ispe`).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from contracts.errors import FailureCode
from contracts.images import ImageFormat, ImageLimits

#: JPEG markers looked at in one file. Good files have some hundreds at most (an ICC profile may take 255).
JPEG_MARKERS_MAX = 10_000
#: TIFF directory entries looked at; sorted by tag, and the sides have the lowest tags in use.
TIFF_ENTRIES_MAX = 1_024
#: Boxes looked at on one level of an AVIF file.
AVIF_BOXES_MAX = 1_024

_MAGIC: tuple[tuple[re.Pattern[bytes], ImageFormat], ...] = (
    (re.compile(rb"\xff\xd8\xff"), ImageFormat.JPEG),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), ImageFormat.PNG),
    (re.compile(rb"GIF8[79]a"), ImageFormat.GIF),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), ImageFormat.WEBP),
    (re.compile(rb"II[*+]\x00|MM\x00[*+]"), ImageFormat.TIFF),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), ImageFormat.AVIF),
)

# A marker is the last 0xFF of a run and a byte that is neither stuffing nor a restart, as decoders skip.
_JPEG_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
_JPEG_EOI, _JPEG_SOS = 0xD9, 0xDA
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
# Decoders refuse all others, so skipping by their "length" could only hide scans from the count.
_JPEG_WITH_LENGTH = frozenset({*range(0xC0, 0xD0), *range(0xDA, 0xF0), 0xFE})

_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_VALUE_BYTES = {1: 1, 3: 2, 4: 4, 13: 4, 16: 8}

_ByteOrder = Literal["big", "little"]


class _OutsideHeadError(Exception):
    """What was looked for is not in these bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the bytes say. A side is None when they do not say it."""

    image_format: ImageFormat
    width_px: int | None
    height_px: int | None
    #: Decoding holds the whole picture in memory: progressive JPEG, interlaced PNG, any AVIF.
    whole_frame: bool


@dataclass(frozen=True, slots=True)
class _Frame:
    width_px: int
    height_px: int
    whole_frame: bool = False


def sniff_format(head: bytes) -> ImageFormat | None:
    """Return the format that the magic bytes name, or None for anything that is not accepted."""
    return next((image_format for magic, image_format in _MAGIC if magic.match(head)), None)


def read_dimensions(head: bytes, image_format: ImageFormat) -> tuple[int, int] | None:
    """Return (width, height) in stored pixels, or None when `head` does not hold them."""
    frame = _read_frame(head, image_format)
    return (frame.width_px, frame.height_px) if frame else None


def check_header(head: bytes, limits: ImageLimits) -> Header | FailureCode:
    """Return what `head` says, or the code that refuses it.

    The codes are `unsupported_format`, `too_many_pixels` and `too_large_dimension`, whose values are error
    codes of the HTTP interface too.
    """
    image_format = sniff_format(head)
    if image_format is None:
        return FailureCode.UNSUPPORTED_FORMAT
    frame = _read_frame(head, image_format)
    if frame is None:
        return Header(image_format=image_format, width_px=None, height_px=None, whole_frame=False)
    width_px, height_px = frame.width_px, frame.height_px
    return check_dimensions(image_format, width_px=width_px, height_px=height_px, limits=limits) or Header(
        image_format=image_format, width_px=width_px, height_px=height_px, whole_frame=frame.whole_frame
    )


def check_dimensions(
    image_format: ImageFormat, *, width_px: int, height_px: int, limits: ImageLimits
) -> FailureCode | None:
    """Return the code that refuses these sides, or None. Pixels are named when both are too many."""
    pixels_max = limits.avif_pixels_max if image_format is ImageFormat.AVIF else limits.pixels_max
    if width_px * height_px > pixels_max:
        return FailureCode.TOO_MANY_PIXELS
    if max(width_px, height_px) > limits.side_px_max:
        return FailureCode.TOO_LARGE_DIMENSION
    return None


def exceeds_jpeg_scans(source: bytes, *, scans_max: int) -> bool:
    """Return whether a JPEG has more scans than `scans_max`, or more markers than any good file.

    Counts as a decoder meets them, up to the end of the image: neither an embedded preview nor data that
    cameras append (motion photos) counts.
    """
    scans = markers = 0
    for marker, _ in _jpeg_markers(source):
        markers += 1
        scans += marker == _JPEG_SOS
        if scans > scans_max:
            return True
    return markers >= JPEG_MARKERS_MAX


def _read_frame(head: bytes, image_format: ImageFormat) -> _Frame | None:
    try:
        frame = _READERS[image_format](head)
    except _OutsideHeadError:
        return None
    return frame if frame.width_px and frame.height_px else None


def _uint(head: bytes, at: int, width_bytes: int, order: _ByteOrder = "big") -> int:
    field = head[at : at + width_bytes]
    if len(field) < width_bytes:
        raise _OutsideHeadError
    return int.from_bytes(field, order)


def _jpeg_markers(source: bytes) -> Iterator[tuple[int, int]]:
    """Yield each marker and the offset behind it, as a decoder meets them, at most `JPEG_MARKERS_MAX`."""
    position = 2
    for _ in range(JPEG_MARKERS_MAX):
        found = _JPEG_MARKER.search(source, position)
        if found is None:
            return
        marker, position = found[1][0], found.end()
        yield marker, position
        if marker == _JPEG_EOI:
            return
        if marker in _JPEG_WITH_LENGTH:
            position += max(2, int.from_bytes(source[position : position + 2], "big"))


def _read_jpeg(head: bytes) -> _Frame:
    for marker, body in _jpeg_markers(head):
        if marker in _JPEG_FRAMES:
            height_px, width_px = _uint(head, body + 3, 2), _uint(head, body + 5, 2)
            return _Frame(width_px, height_px, whole_frame=marker in _JPEG_PROGRESSIVE)
        if marker == _JPEG_SOS:
            break
    raise _OutsideHeadError


def _read_png(head: bytes) -> _Frame:
    if head[12:16] != b"IHDR":
        raise _OutsideHeadError
    return _Frame(_uint(head, 16, 4), _uint(head, 20, 4), whole_frame=_uint(head, 28, 1) != 0)


def _read_gif(head: bytes) -> _Frame:
    return _Frame(_uint(head, 6, 2, "little"), _uint(head, 8, 2, "little"))


def _read_webp(head: bytes) -> _Frame:
    kind = head[12:16]
    if kind == b"VP8X":
        return _Frame(_uint(head, 24, 3, "little") + 1, _uint(head, 27, 3, "little") + 1)
    if kind == b"VP8L" and head[20:21] == b"\x2f":
        bits = _uint(head, 21, 4, "little")
        return _Frame((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return _Frame(_uint(head, 26, 2, "little") & 0x3FFF, _uint(head, 28, 2, "little") & 0x3FFF)
    raise _OutsideHeadError


def _read_tiff(head: bytes) -> _Frame:
    order: _ByteOrder = "little" if head.startswith(b"II") else "big"
    big = _uint(head, 2, 2, order) == 0x2B  # noqa: PLR2004 - BigTIFF's version number
    directory = _uint(head, 8, 8, order) if big else _uint(head, 4, 4, order)
    count_bytes, entry_bytes, value_at = (8, 20, 12) if big else (2, 12, 8)
    sides: dict[int, int] = {}
    for index in range(min(_uint(head, directory, count_bytes, order), TIFF_ENTRIES_MAX)):
        entry = directory + count_bytes + index * entry_bytes
        tag, kind = _uint(head, entry, 2, order), _uint(head, entry + 2, 2, order)
        if tag in {_TIFF_WIDTH, _TIFF_HEIGHT} and kind in _TIFF_VALUE_BYTES:
            sides[tag] = _uint(head, entry + value_at, _TIFF_VALUE_BYTES[kind], order)
        if len(sides) == len({_TIFF_WIDTH, _TIFF_HEIGHT}):
            return _Frame(sides[_TIFF_WIDTH], sides[_TIFF_HEIGHT])
    raise _OutsideHeadError


def _read_avif(head: bytes) -> _Frame:
    """Return the largest picture described: tiles, previews and alpha are never larger than the whole."""
    meta_start, meta_end = _find_box(head, b"meta", 0, len(head))
    properties_start, properties_end = _find_box(head, b"iprp", meta_start + 4, meta_end)
    start, end = _find_box(head, b"ipco", properties_start, properties_end)
    frames = [
        _Frame(_uint(head, body + 4, 4), _uint(head, body + 8, 4), whole_frame=True)
        for kind, body, _ in _boxes(head, start, end)
        if kind == b"ispe"
    ]
    if not frames:
        raise _OutsideHeadError
    return max(frames, key=lambda frame: frame.width_px * frame.height_px)


def _find_box(head: bytes, wanted: bytes, start: int, end: int) -> tuple[int, int]:
    for kind, body, box_end in _boxes(head, start, end):
        if kind == wanted:
            return body, box_end
    raise _OutsideHeadError


def _boxes(head: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start of the body, end) of the boxes of one level, at most `AVIF_BOXES_MAX`."""
    return islice(_all_boxes(head, start, end), AVIF_BOXES_MAX)


def _all_boxes(head: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    position = start
    while position < end:
        box_bytes, body = _uint(head, position, 4), position + 8
        kind = head[position + 4 : body]
        if box_bytes == 1:  # a 64-bit length follows
            box_bytes, body = _uint(head, body, 8), body + 8
        box_end = position + box_bytes if box_bytes else end
        if box_end < body:
            raise _OutsideHeadError
        yield kind, body, box_end
        position = box_end


_READERS: dict[ImageFormat, Callable[[bytes], _Frame]] = {
    ImageFormat.JPEG: _read_jpeg,
    ImageFormat.PNG: _read_png,
    ImageFormat.GIF: _read_gif,
    ImageFormat.WEBP: _read_webp,
    ImageFormat.TIFF: _read_tiff,
    ImageFormat.AVIF: _read_avif,
}
