"""What headers promise of an upload, and what is no promise."""

import base64
import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.promises import digest_of, key_of, promise_of
from contracts.errors import ErrorCode, ServiceError

DIGEST = hashlib.sha256(b"file")
VALUE = b"sha-256=:" + base64.b64encode(DIGEST.digest()) + b":"


def attempt(read: Callable[[], str | None]) -> str | None:
    """Return what is read, or the code of the refusal."""
    try:
        return read()
    except ServiceError as error:
        return error.code


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255))
def test_visible_ascii_is_a_key_as_it_is(key: str) -> None:
    assert key_of([(b"idempotency-key", key.encode())]) == key


@given(st.binary(max_size=300))
def test_any_bytes_are_a_key_or_are_refused(value: bytes) -> None:
    key = attempt(lambda: key_of([(b"idempotency-key", value)]))
    if key is not ErrorCode.INVALID_FIELD:
        assert key is not None
        assert 1 <= len(key) <= 255
        assert all("!" <= char <= "~" for char in key)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_digest_or_none_or_are_refused(value: bytes) -> None:
    digest = attempt(lambda: digest_of([(b"repr-digest", value)], b"repr-digest"))
    if digest is not ErrorCode.INVALID_FIELD:
        assert digest is None or len(bytes.fromhex(digest)) == 32


@pytest.mark.parametrize(
    "values", [[VALUE], [b"sha-512=:AAAA:, " + VALUE], [b"md5=:AAAA:", VALUE], [b" " + VALUE + b" ,\tunixsum=:AA==:"]]
)
def test_the_digest_by_sha_256_is_found_among_others(values: list[bytes]) -> None:
    assert digest_of([(b"repr-digest", value) for value in values], b"repr-digest") == DIGEST.hexdigest()


def test_a_digest_by_other_algorithms_alone_is_passed_over() -> None:
    assert digest_of([(b"repr-digest", b"sha-512=:AAAA:")], b"repr-digest") is None


def test_of_a_body_that_is_the_file_both_digests_say_the_same() -> None:
    headers = [(b"content-digest", VALUE)]
    assert promise_of(headers, body_is_file=True).file_sha256 == DIGEST.hexdigest()
    assert promise_of(headers, body_is_file=False).file_sha256 is None
    assert promise_of(headers, body_is_file=False).body_sha256 == DIGEST.hexdigest()
