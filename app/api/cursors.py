"""Cursors of pages: opaque to clients, the last entry's moment and id inside.

Invariant: a cursor that we did not make is refused before it reaches the database.
"""

import base64
import binascii
import struct
from datetime import UTC, datetime, timedelta
from uuid import UUID

from app.core.jobviews import Cursor
from contracts.errors import ErrorCode, ServiceError

#: Microseconds since the epoch and the id; 24 bytes are 32 characters of base64 without padding.
_LAYOUT = struct.Struct(">q16s")
CURSOR_CHARS = 32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: The end of the year 9999: what a datetime can hold.
_MICROSECONDS_MAX = 253_402_300_799_999_999


def cursor_text(cursor: Cursor) -> str:
    """Return a cursor as clients carry it."""
    return base64.urlsafe_b64encode(_LAYOUT.pack((cursor.at - _EPOCH) // _MICROSECOND, cursor.id.bytes)).decode()


def cursor_of(text: str | None) -> Cursor | None:
    """Return the cursor that a client sent back, None for the first page.

    Raises:
        ServiceError: `invalid_field` when it is none of ours.
    """
    if text is None:
        return None
    try:
        if len(text) != CURSOR_CHARS:
            raise _invalid()
        raw = base64.b64decode(text.encode(), altchars=b"-_", validate=True)
        microseconds, id_bytes = _LAYOUT.unpack(raw)
    except (UnicodeError, binascii.Error, struct.error) as error:
        raise _invalid() from error
    if not 0 <= microseconds <= _MICROSECONDS_MAX:
        raise _invalid()
    return Cursor(_EPOCH + microseconds * _MICROSECOND, UUID(bytes=id_bytes))


def _invalid() -> ServiceError:
    return ServiceError(ErrorCode.INVALID_FIELD, "The cursor is not one that was given out here.")
