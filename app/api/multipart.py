"""The one file field of a multipart body, streamed: the library's low-level parser driven by hand.

Invariant: no more is kept than the chunk in hand. All that is not a field's content (preamble, part headers,
delimiters, padding, epilogue) is bounded together, so junk in any place is refused soon and in linear time.
File names are never looked at.
"""

from collections.abc import AsyncGenerator, AsyncIterable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from contracts.errors import ErrorCode, ServiceError

FILE_FIELD = b"file"

#: Everything but the contents of fields; room for a file name of ten thousand characters.
STRUCTURE_BYTES_MAX = 128 * 1024
#: Contents of all other fields together; they are ignored.
FIELD_BYTES_MAX = 64 * 1024
PARTS_MAX = 32
PART_HEADERS_MAX = 16
PART_HEADER_BYTES_MAX = 64 * 1024
#: Semicolons in a part's header: each may begin a parameter, and ten thousand may be in a file name.
SEMICOLONS_MAX = 12_000
#: Fed to the parser at once, so that junk which it walks through byte by byte is noticed soon.
SLICE_BYTES = 32 * 1024
#: What a body may be longer than its file.
OVERHEAD_BYTES_MAX = STRUCTURE_BYTES_MAX + FIELD_BYTES_MAX


def boundary_of(content_type: bytes | None) -> bytes:
    """Return the boundary that a Content-Type names.

    Raises:
        ServiceError: it is missing, or has no boundary (`malformed_request`); it is another type
            (`unsupported_format`).
    """
    if not content_type:
        raise ServiceError(ErrorCode.MALFORMED_REQUEST, "The Content-Type is missing.")
    media_type, options = parse_options_header(content_type)
    if media_type != b"multipart/form-data":
        raise ServiceError(ErrorCode.UNSUPPORTED_FORMAT, "The body must be multipart/form-data.")
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise ServiceError(ErrorCode.MALFORMED_REQUEST, "The Content-Type names no boundary.")
    return boundary


async def file_chunks(body: AsyncIterable[bytes], *, boundary: bytes) -> AsyncGenerator[memoryview]:
    """Yield the content of the field `file` as it arrives; ends when the whole body was read and well formed.

    Raises:
        ServiceError: `malformed_request`, `truncated_body` or `invalid_field`.
    """
    parts = _Parts(boundary)
    async for chunk in body:
        for view in parts.feed(chunk):
            yield view
    parts.finish()


class _Parts:
    """What the parser's calls back amount to."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._delimiters = self._parts = 0
        self._structure_bytes = self._field_bytes = 0
        self._views: list[memoryview] = []
        self._header_name = self._header_value = self._disposition = b""
        self._in_file = self._file_seen = self._ended = False
        self._parser = _parser(self, boundary)

    def feed(self, chunk: bytes) -> list[memoryview]:
        """Return what of the file is in this chunk."""
        self._views = []
        # A delimiter that is none costs the parser a slow path for each; well-formed bodies hold but a few.
        self._delimiters += chunk.count(self._delimiter)
        if self._delimiters > PARTS_MAX + 1:
            raise _malformed("The body has too many parts.")
        for start in range(0, len(chunk), SLICE_BYTES):
            self._parse(chunk[start : start + SLICE_BYTES])
        return self._views

    def _parse(self, part: bytes) -> None:
        self._structure_bytes += len(part)
        try:
            self._parser.write(part)
        except FormParserError as error:
            raise _malformed("The body is not well-formed multipart.") from error
        if self._structure_bytes > STRUCTURE_BYTES_MAX:
            raise _malformed("The body holds too much that is not a field.")

    def finish(self) -> None:
        """Check that the body was whole and had the file."""
        if not self._ended:
            raise ServiceError(ErrorCode.TRUNCATED_BODY, "The body ended before its closing boundary.")
        if not self._file_seen:
            raise ServiceError(ErrorCode.INVALID_FIELD, "The field `file` is missing.")

    def on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise _malformed("The body has too many parts.")
        self._in_file = False
        self._header_name = self._header_value = self._disposition = b""

    def on_header_field(self, chunk: bytes, start: int, end: int) -> None:
        self._header_name += chunk[start:end]

    def on_header_value(self, chunk: bytes, start: int, end: int) -> None:
        self._header_value += chunk[start:end]

    def on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def on_headers_finished(self) -> None:
        if self._disposition.count(b";") > SEMICOLONS_MAX:
            raise _malformed("A part's header has too many parameters.")
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if name is None:
            raise _malformed("A part has no name.")
        self._in_file = name == FILE_FIELD
        if self._in_file and self._file_seen:
            raise ServiceError(ErrorCode.INVALID_FIELD, "The field `file` is given twice.")
        self._file_seen |= self._in_file

    def on_part_data(self, chunk: bytes, start: int, end: int) -> None:
        self._structure_bytes -= end - start
        if self._in_file:
            self._views.append(memoryview(chunk)[start:end])
            return
        self._field_bytes += end - start
        if self._field_bytes > FIELD_BYTES_MAX:
            raise ServiceError(ErrorCode.INVALID_FIELD, "The fields beside `file` are too large.")

    def on_end(self) -> None:
        self._ended = True


def _parser(parts: _Parts, boundary: bytes) -> MultipartParser:
    try:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": parts.on_part_begin,
                "on_header_field": parts.on_header_field,
                "on_header_value": parts.on_header_value,
                "on_header_end": parts.on_header_end,
                "on_headers_finished": parts.on_headers_finished,
                "on_part_data": parts.on_part_data,
                "on_end": parts.on_end,
            },
            max_header_count=PART_HEADERS_MAX,
            max_header_size=PART_HEADER_BYTES_MAX,
        )
    except FormParserError as error:
        raise _malformed("The boundary is too long.") from error


def _malformed(message: str) -> ServiceError:
    return ServiceError(ErrorCode.MALFORMED_REQUEST, message)
