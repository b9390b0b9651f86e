"""What a client says of its upload in headers: its Idempotency-Key, and digests of the bytes (RFC 9530).

Invariant: what is not understood is refused before a place is taken; digests by other algorithms than SHA-256 are
passed over, as the standard has it.
"""

import base64
import binascii
import re

from app.api.wire import Promise, header_values
from contracts.errors import ErrorCode, ServiceError

KEY_CHARS_MAX = 255
#: Entries of a digest header that are looked at.
DIGESTS_MAX = 16

_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
#: One member of a structured dictionary whose value is bytes: `sha-256=:base64:`.
_DIGEST = re.compile(rb"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*=*):")
_SHA256_BYTES = 32

Headers = list[tuple[bytes, bytes]]


def promise_of(headers: Headers, *, body_is_file: bool) -> Promise:
    """Return what the headers promise; of a body that is the file itself both digests say the same.

    Raises:
        ServiceError: `invalid_field`.
    """
    file_sha256 = digest_of(headers, b"repr-digest")
    body_sha256 = digest_of(headers, b"content-digest")
    if body_is_file:
        file_sha256 = file_sha256 or body_sha256
    return Promise(key=key_of(headers), file_sha256=file_sha256, body_sha256=body_sha256)


def key_of(headers: Headers) -> str | None:
    """Return the Idempotency-Key.

    Raises:
        ServiceError: `invalid_field` for anything but 1 to 255 visible ASCII characters.
    """
    values = header_values(headers, b"idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        message = f"The Idempotency-Key must be 1 to {KEY_CHARS_MAX} visible ASCII characters."
        raise ServiceError(ErrorCode.INVALID_FIELD, message)
    return values[0].decode("ascii")


def digest_of(headers: Headers, name: bytes) -> str | None:
    """Return the SHA-256 that a digest header gives, or None when it gives none.

    Raises:
        ServiceError: `invalid_field` for what is no digest header.
    """
    found: str | None = None
    members = b",".join(header_values(headers, name)).split(b",", DIGESTS_MAX)
    for member in members if members != [b""] else []:
        match = _DIGEST.fullmatch(member.strip(b" \t"))
        if match is None:
            raise _no_digest(name)
        if match[1] == b"sha-256":
            found = _hex(match[2], name)
    return found


def _hex(text: bytes, name: bytes) -> str:
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise _no_digest(name) from error
    if len(digest) != _SHA256_BYTES:
        raise _no_digest(name)
    return digest.hex()


def _no_digest(name: bytes) -> ServiceError:
    return ServiceError(ErrorCode.INVALID_FIELD, f"The header {name.decode()} must be like sha-256=:BASE64:.")
