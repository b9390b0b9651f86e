"""JSON bodies and cursors from clients: what is read, what is malformed, what is not valid."""

import json
import uuid
from datetime import UTC, datetime

import pytest

from app.api.attachment_schemas import NAMED_ATTACHMENTS_MAX, TEXT_CHARS_MAX, NewAttachments, NewMessage
from app.api.cursors import cursor_of, cursor_text
from app.api.json_body import JSON_BYTES_MAX, check_json_headers, parse_json
from app.core.jobviews import Cursor
from contracts.errors import ErrorCode, ServiceError

ID = str(uuid.uuid4())


def code_of(body: bytes) -> ErrorCode:
    with pytest.raises(ServiceError) as caught:
        parse_json(body, NewMessage)
    assert caught.value.message
    return caught.value.code


@pytest.mark.parametrize("text", ["a", "x" * TEXT_CHARS_MAX, "\U0001f600" * TEXT_CHARS_MAX, "\u0001\n\t", " "])
def test_any_text_of_a_fitting_length_is_a_message(text: str) -> None:
    assert parse_json(json.dumps({"text": text}).encode(), NewMessage).text == text


def test_the_largest_message_fits_into_a_body() -> None:
    largest = {"text": "\U0001f600" * TEXT_CHARS_MAX, "attachment_ids": [ID] * NAMED_ATTACHMENTS_MAX}
    assert len(json.dumps(largest)) <= JSON_BYTES_MAX


def test_attachments_are_named_by_their_ids() -> None:
    sent = {"text": "a", "attachment_ids": [ID, ID.upper()]}
    assert parse_json(json.dumps(sent).encode(), NewMessage).attachment_ids == [ID, ID.upper()]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"text": "a"} x',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        '{"text": "a"}'.encode("utf-16"),
        b'{"text": NaN}',
        b'{"text": -Infinity}',
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"text": ' + b"9" * 60_000 + b"}",
        b'{"text": "\x00"}',
        b"{'text': 'a'}",
    ],
)
def test_what_is_no_json_is_malformed(body: bytes) -> None:
    assert code_of(body) is ErrorCode.MALFORMED_REQUEST


@pytest.mark.parametrize(
    "document",
    [
        None,
        1,
        "a",
        [],
        {},
        {"text": ""},
        {"text": None},
        {"text": 5},
        {"text": "x" * (TEXT_CHARS_MAX + 1)},
        {"text": "a\x00b"},
        {"text": "\ud800"},
        {"text": "a", "more": 1},
        {"text": "a", "\ud800": 1},
        {"text": "a", "attachment_ids": None},
        {"text": "a", "attachment_ids": ID},
        {"text": "a", "attachment_ids": [5]},
        {"text": "a", "attachment_ids": ["x"]},
        {"text": "a", "attachment_ids": [f"{{{ID}}}"]},
        {"text": "a", "attachment_ids": [ID + "\n"]},
        {"text": "a", "attachment_ids": [ID] * 1001},
    ],
)
def test_what_is_no_message_is_not_valid(document: object) -> None:
    assert code_of(json.dumps(document).encode()) is ErrorCode.INVALID_FIELD


def test_naming_no_attachment_is_not_valid() -> None:
    with pytest.raises(ServiceError):
        parse_json(b'{"attachment_ids": []}', NewAttachments)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], ErrorCode.UNSUPPORTED_FORMAT),
        ([(b"content-type", b"text/plain")], ErrorCode.UNSUPPORTED_FORMAT),
        ([(b"content-type", b"application/json")] * 2, ErrorCode.UNSUPPORTED_FORMAT),
        ([(b"content-type", b"application/json"), (b"content-length", b"11")], ErrorCode.TOO_MANY_BYTES),
    ],
)
def test_a_body_is_refused_by_its_headers(headers: list[tuple[bytes, bytes]], code: ErrorCode) -> None:
    with pytest.raises(ServiceError) as caught:
        check_json_headers(headers, body_bytes_max=10)
    assert caught.value.code is code


def test_json_with_a_charset_is_json() -> None:
    check_json_headers([(b"content-type", b"Application/JSON; charset=utf-8")], body_bytes_max=10)


def test_a_cursor_comes_back_as_it_went() -> None:
    cursor = Cursor(datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC), uuid.uuid4())
    assert cursor_of(cursor_text(cursor)) == cursor
    assert cursor_of(None) is None


@pytest.mark.parametrize("text", ["", "x", "a" * 31, "a" * 33, "!" * 32, "é" * 32, "-" * 32, "_" * 32, "\x00" * 32])
def test_a_cursor_of_somebody_elses_making_is_refused(text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        cursor_of(text)
    assert caught.value.code is ErrorCode.INVALID_FIELD
