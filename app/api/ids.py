"""Ids in paths: one spelling each, and everything else is an unknown id."""

import uuid

from contracts.errors import ErrorCode, ServiceError


def path_id(text: str) -> uuid.UUID:
    """Return the id that a path names.

    Raises:
        ServiceError: `not_found`.
    """
    try:
        found = uuid.UUID(text)
    except ValueError:
        raise not_found() from None
    # Braces and prefixes that Python also reads are no ids of ours.
    if str(found) != text.lower():
        raise not_found()
    return found


def not_found() -> ServiceError:
    """Return the error of what is not there, or not the caller's."""
    return ServiceError(ErrorCode.NOT_FOUND, "There is nothing here for this token.")
