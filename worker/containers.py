"""What must be known or changed about a file's outer structure before a decoder sees it.

Invariant: pure, standard library only, linear in its input, and never raises. Where the structure is unclear
the bytes are left as they are, and the decoder decides.
"""

from collections.abc import Iterator

from contracts.images import ImageFormat

_PNG_SIGNATURE_BYTES = 8
_PNG_TEXT = frozenset({b"tEXt", b"zTXt", b"iTXt"})

_GIF_HEADER_BYTES = 13
_GIF_FRAME_HEAD_BYTES = 10
_GIF_TRAILER, _GIF_EXTENSION, _GIF_FRAME = 0x3B, 0x21, 0x2C

_BOX_HEAD_BYTES = 8


def prepare(source: bytes, image_format: ImageFormat) -> bytes | None:
    """Return the bytes to decode, or None when their end is missing though a decoder would not notice.

    Decoders stop at the last row of the first frame, so that a cut behind it would pass for a whole file.
    """
    if image_format is ImageFormat.PNG:
        return _without_text(source) if _png_has_end(source) else None
    if image_format is ImageFormat.GIF:
        return source if _gif_has_end(source) else None
    if image_format is ImageFormat.AVIF:
        return _as_still(source) if _boxes_have_end(source) else None
    return source


def _png_chunks(source: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start, end) of each chunk; the end may lie behind the source's."""
    start = _PNG_SIGNATURE_BYTES
    while start + 8 <= len(source):
        end = start + 12 + int.from_bytes(source[start : start + 4], "big")
        yield source[start + 4 : start + 8], start, end
        start = end


def _png_has_end(source: bytes) -> bool:
    return any(kind == b"IEND" and end <= len(source) for kind, _, end in _png_chunks(source))


def _without_text(source: bytes) -> bytes:
    # Reading the header inflates each text chunk: 100 of them can take seconds.
    if not any(kind in source for kind in _PNG_TEXT):
        return source
    kept = [source[start:end] for kind, start, end in _png_chunks(source) if kind not in _PNG_TEXT]
    return b"".join((source[:_PNG_SIGNATURE_BYTES], *kept))


def _gif_has_end(source: bytes) -> bool:
    position = _GIF_HEADER_BYTES + _gif_table_bytes(source, 10)
    while position < len(source):
        kind = source[position]
        if kind == _GIF_EXTENSION:
            position = _behind_sub_blocks(source, position + 2)
        elif kind == _GIF_FRAME:
            head_bytes = _GIF_FRAME_HEAD_BYTES + _gif_table_bytes(source, position + 9)
            position = _behind_sub_blocks(source, position + head_bytes + 1)
        else:  # the trailer, or junk that the decoder may judge
            return True
    return False


def _gif_table_bytes(source: bytes, at: int) -> int:
    """Return the length of the colour table that the flags at this offset announce."""
    flags = source[at] if at < len(source) else 0
    return 3 * (2 << (flags & 7)) if flags & 0x80 else 0


def _behind_sub_blocks(source: bytes, position: int) -> int:
    while position < len(source) and source[position]:
        position += 1 + source[position]
    return position + 1


def _boxes_have_end(source: bytes) -> bool:
    position = 0
    while position < len(source):
        head_bytes = _BOX_HEAD_BYTES
        box_bytes = int.from_bytes(source[position : position + 4], "big")
        if box_bytes == 1:  # a 64-bit length follows
            head_bytes = 2 * _BOX_HEAD_BYTES
            box_bytes = int.from_bytes(source[position + 8 : position + 16], "big")
        if box_bytes < head_bytes:  # up to the end of the file, or junk that the decoder may judge
            return True
        position += box_bytes
    return position == len(source)


def _as_still(source: bytes) -> bytes:
    # libvips does not know sequences by their brand, but decodes their still picture when told it is one.
    return source[:8] + b"avif" + source[12:] if source[8:12] == b"avis" else source
