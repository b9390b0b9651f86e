"""The file field of a multipart body: found at every way of cutting it, and junk refused soon."""

import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.multipart import (
    FIELD_BYTES_MAX,
    PARTS_MAX,
    STRUCTURE_BYTES_MAX,
    boundary_of,
    file_chunks,
)
from contracts.errors import ErrorCode, ServiceError
from tests.edge import BOUNDARY, END, body, part

FILE = b"\xff\xd8\xff" + bytes(range(256)) * 3 + b"\r\n--edg\r\n--\r\r\n"


async def read(pieces: Iterable[bytes]) -> bytes:
    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return b"".join([bytes(view) async for view in file_chunks(stream(), boundary=BOUNDARY.encode())])


async def code_of(*pieces: bytes) -> ErrorCode:
    with pytest.raises(ServiceError) as caught:
        await read(pieces)
    return caught.value.code


@given(st.lists(st.integers(0, len(body(FILE))), max_size=8))
async def test_the_file_is_the_same_however_the_body_is_cut(cuts: list[int]) -> None:
    data, places = body(FILE), [0, *sorted(cuts), len(body(FILE))]
    assert await read(data[a:b] for a, b in itertools.pairwise(places)) == FILE


@given(st.binary(max_size=400))
async def test_any_content_comes_out_as_it_went_in(content: bytes) -> None:
    assert await read([body(content)]) == content


@given(st.binary(max_size=400), st.integers(0, 400))
async def test_garbage_ends_in_a_code_and_never_in_another_error(junk: bytes, at: int) -> None:
    data = body(FILE)
    with suppress(ServiceError):
        await read([data[:at] + junk + data[at:]])


async def test_other_fields_are_ignored() -> None:
    data = part("note", b"x" * 1000, filename=None) + part("file", FILE) + part("more", b"y", filename=b"b") + END
    assert await read([data]) == FILE


@pytest.mark.parametrize(
    "name", [b"", b"\0", b"../../etc/passwd", b"a" * 10_000, "\u4e00".encode() * 10_000, b"\xed\xa0\x80", b"a;b" * 3000]
)
async def test_file_names_are_never_looked_at(name: bytes) -> None:
    assert await read([body(FILE, filename=name)]) == FILE


async def test_a_part_without_a_file_name_is_a_file_all_the_same() -> None:
    assert await read([body(FILE, filename=None)]) == FILE


async def test_a_missing_field_is_told() -> None:
    assert await code_of(part("image", FILE) + END) is ErrorCode.INVALID_FIELD


async def test_a_field_given_twice_is_told() -> None:
    assert await code_of(part("file", FILE) + part("file", FILE) + END) is ErrorCode.INVALID_FIELD


@pytest.mark.parametrize("cut", [0, 1, 30, 100, -1, -4])
async def test_a_body_without_its_end_is_truncated(cut: int) -> None:
    data = body(FILE).removesuffix(b"\r\n")
    assert await code_of(data[:cut] if cut else b"") is ErrorCode.TRUNCATED_BODY


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"hello", id="no boundary"),
        pytest.param(b"\r\n" * STRUCTURE_BYTES_MAX + body(FILE), id="endless line ends before"),
        pytest.param(body(FILE) + b"x" * (STRUCTURE_BYTES_MAX + 1), id="endless epilogue"),
        pytest.param(b"--edge\r\n" + b"A: b\r\n" * 1000, id="endless headers"),
        pytest.param(b"--edge\r\nA: " + b"b" * 200_000, id="endless header"),
        pytest.param(b"--edge\r\n" + b"A" * 200_000, id="endless header name"),
        pytest.param(part("file", FILE)[:-2] + b"\r\n--edge" + b" " * 200_000, id="endless padding"),
        pytest.param(part("file", b"") + b"\r\n--edgex" * (PARTS_MAX + 2), id="delimiters that are none"),
        pytest.param(part("a", b"", filename=None) * (PARTS_MAX + 1) + END, id="too many parts"),
        pytest.param(b'--edge\r\nContent-Disposition: form-data; filename="x"\r\n\r\nx\r\n' + END, id="no name"),
        pytest.param(b"--edge\r\n\r\nx\r\n" + END, id="no headers"),
        pytest.param(b"--edge\r\nContent-Disposition: a" + b";" * 13_000 + b"\r\n\r\nx", id="endless parameters"),
    ],
)
async def test_junk_is_malformed(data: bytes) -> None:
    assert await code_of(*(data[at : at + 4096] for at in range(0, len(data), 4096))) is ErrorCode.MALFORMED_REQUEST


async def test_large_other_fields_are_refused() -> None:
    data = part("note", b"x" * (FIELD_BYTES_MAX + 1), filename=None)
    assert await code_of(data) is ErrorCode.INVALID_FIELD


def test_the_boundary_is_read_from_the_type() -> None:
    assert boundary_of(b'Multipart/Form-Data; charset=utf-8; boundary="a b"') == b"a b"


@pytest.mark.parametrize(
    ("content_type", "code"),
    [
        (None, ErrorCode.MALFORMED_REQUEST),
        (b"multipart/form-data", ErrorCode.MALFORMED_REQUEST),
        (b"multipart/form-data; boundary=", ErrorCode.MALFORMED_REQUEST),
        (b"image/jpeg", ErrorCode.UNSUPPORTED_FORMAT),
        (b"application/json", ErrorCode.UNSUPPORTED_FORMAT),
    ],
)
def test_other_types_are_refused(content_type: bytes | None, code: ErrorCode) -> None:
    with pytest.raises(ServiceError) as caught:
        boundary_of(content_type)
    assert caught.value.code is code


async def test_a_boundary_that_is_too_long_is_malformed() -> None:
    with pytest.raises(ServiceError) as caught:
        _ = [view async for view in file_chunks(_nothing(), boundary=b"x" * 300)]
    assert caught.value.code is ErrorCode.MALFORMED_REQUEST


async def _nothing() -> AsyncIterator[bytes]:
    for _ in range(0):
        yield b""
