"""What a request asks of a representation: conditions (RFC 9110, 13) and one range of bytes (14). Pure.

Invariant: a header that is not understood is as good as none, so the whole content is sent; a range that is
understood and lies outside is refused.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.errors import ErrorCode, ServiceError

_RANGE = re.compile(rb"bytes[ \t]*=[ \t]*([0-9]*)-([0-9]*)", re.IGNORECASE)
#: Digits of any real size; longer numbers are just as far outside.
_DIGITS_MAX = 18
_ETAG = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


@dataclass(frozen=True, slots=True)
class Span:
    """Some bytes of a content, at least one."""

    start: int
    length_bytes: int


def etag_of(body: bytes) -> str:
    """Return the strong ETag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def is_known(if_none_match: Sequence[bytes], *, etag: str) -> bool:
    """Return whether the client has this representation already."""
    joined = b",".join(if_none_match)
    return joined == b"*" or etag.encode() in _ETAG.findall(joined)


def span_of(ranges: Sequence[bytes], if_range: Sequence[bytes], *, etag: str, size_bytes: int) -> Span | None:
    """Return the one range asked for, None for the whole: also for several ranges, or another version's.

    Raises:
        ServiceError: `range_not_satisfiable`.
    """
    if len(ranges) != 1 or (if_range and list(if_range) != [etag.encode()]):
        return None
    found = _RANGE.fullmatch(ranges[0])
    if found is None or found.group(1, 2) == (b"", b""):
        return None
    first, last = (_number(text) for text in found.group(1, 2))
    if first is None:
        start, end = max(0, size_bytes - (last or 0)), size_bytes
    else:
        if last is not None and last < first:
            return None
        start, end = first, size_bytes if last is None else min(last + 1, size_bytes)
    if start >= end:
        raise ServiceError(ErrorCode.RANGE_NOT_SATISFIABLE, f"The content has {size_bytes} bytes.")
    return Span(start, end - start)


def _number(text: bytes) -> int | None:
    if not text:
        return None
    return int(text) if len(text) <= _DIGITS_MAX else 10**_DIGITS_MAX
