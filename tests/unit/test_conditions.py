"""Ranges and conditions: what is asked for, what is ignored, what is refused."""

import pytest

from app.api.conditions import Span, etag_of, is_known, span_of
from contracts.errors import ErrorCode, ServiceError

SIZE_BYTES = 100
ETAG = '"abc"'


@pytest.mark.parametrize(
    ("text", "span"),
    [
        (b"bytes=0-0", Span(0, 1)),
        (b"bytes=0-", Span(0, 100)),
        (b"bytes=10-19", Span(10, 10)),
        (b"bytes=99-", Span(99, 1)),
        (b"bytes=90-1000", Span(90, 10)),
        (b"bytes=90-99999999999999999999999999", Span(90, 10)),
        (b"bytes=-1", Span(99, 1)),
        (b"bytes=-100", Span(0, 100)),
        (b"bytes=-1000", Span(0, 100)),
        (b"Bytes = 1-2", Span(1, 2)),
        (b"bytes=00001-0000000000000000000000000000000000002", Span(1, 99)),
    ],
)
def test_one_range_is_understood(text: bytes, span: Span) -> None:
    assert span_of([text], [], etag=ETAG, size_bytes=SIZE_BYTES) == span


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"bytes",
        b"bytes=",
        b"bytes=-",
        b"bytes=a-b",
        b"bytes=5-4",
        b"bytes=0-0,5-9",
        b"items=0-4",
        b"bytes=0-4;q=1",
        b"bytes=+1-2",
        b"bytes=1.5-2",
        b"bytes=\xd9\xa1-\xd9\xa2",  # digits of another script
        b"bytes=0-4\n",
    ],
)
def test_what_is_no_single_range_is_ignored(text: bytes) -> None:
    assert span_of([text], [], etag=ETAG, size_bytes=SIZE_BYTES) is None


def test_two_range_headers_are_ignored() -> None:
    assert span_of([b"bytes=0-1", b"bytes=2-3"], [], etag=ETAG, size_bytes=SIZE_BYTES) is None


@pytest.mark.parametrize("text", [b"bytes=100-", b"bytes=100-200", b"bytes=-0", b"bytes=" + b"9" * 5000 + b"-"])
def test_a_range_outside_is_refused(text: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        span_of([text], [], etag=ETAG, size_bytes=SIZE_BYTES)
    assert caught.value.code is ErrorCode.RANGE_NOT_SATISFIABLE


@pytest.mark.parametrize(
    ("if_range", "applies"),
    [
        ([], True),
        ([b'"abc"'], True),
        ([b'"other"'], False),
        ([b'W/"abc"'], False),
        ([b"Sat, 29 Oct 1994 19:43:31 GMT"], False),
        ([b'"abc"', b'"abc"'], False),
    ],
)
def test_a_range_of_another_version_is_the_whole(if_range: list[bytes], applies: bool) -> None:  # noqa: FBT001 - a table's column
    assert (span_of([b"bytes=0-1"], if_range, etag=ETAG, size_bytes=SIZE_BYTES) is not None) is applies


@pytest.mark.parametrize(
    ("values", "known"),
    [
        ([], False),
        ([b'"abc"'], True),
        ([b'W/"abc"'], True),
        ([b'"x", "abc"'], True),
        ([b'"x"', b'W/"abc"'], True),
        ([b"*"], True),
        ([b'"x"'], False),
        ([b"abc"], False),
        ([b'"abc'], False),
    ],
)
def test_a_known_representation_is_recognised(values: list[bytes], known: bool) -> None:  # noqa: FBT001 - a table's column
    assert is_known(values, etag=ETAG) is known


def test_an_etag_is_strong_and_of_the_bytes() -> None:
    assert etag_of(b"a") == etag_of(b"a")
    assert etag_of(b"a") != etag_of(b"b")
    assert etag_of(b"a").startswith('"')
