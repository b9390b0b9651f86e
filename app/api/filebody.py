"""The one file of an upload's body, in either form: a field of a multipart form, or the body itself.

Invariant: the form is decided by the Content-Type before a place is taken; what the file is, by its content alone.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable

from app.api.multipart import OVERHEAD_BYTES_MAX, boundary_of, file_chunks
from contracts.errors import ErrorCode, ServiceError

#: A body of such a type is the file; any subtype, since clients know it from the file's name at best.
_RAW_PREFIX = b"image/"


def form_of(content_type: bytes | None) -> bytes | None:
    """Return the boundary of a multipart body, or None for a body that is the file itself.

    Raises:
        ServiceError: `malformed_request` or `unsupported_format`.
    """
    if content_type is not None and content_type.lower().startswith(_RAW_PREFIX):
        return None
    return boundary_of(content_type)


def overhead_bytes_max(boundary: bytes | None) -> int:
    """Return how many bytes a body may be longer than its file."""
    return 0 if boundary is None else OVERHEAD_BYTES_MAX


async def file_of(body: AsyncIterable[bytes], *, boundary: bytes | None) -> AsyncGenerator[memoryview]:
    """Yield the file as it arrives; ends when the whole body was read and well formed.

    Raises:
        ServiceError: `malformed_request`, `truncated_body` or `invalid_field`.
    """
    if boundary is not None:
        async for view in file_chunks(body, boundary=boundary):
            yield view
        return
    async for chunk in body:
        yield memoryview(chunk)


async def verified(body: AsyncIterable[bytes], *, sha256: str) -> AsyncGenerator[bytes]:
    """Yield the body; at its end it must have had the SHA-256 that was announced.

    Raises:
        ServiceError: `digest_mismatch`.
    """
    digest = hashlib.sha256()
    async for chunk in body:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256:
        raise ServiceError(ErrorCode.DIGEST_MISMATCH, "The body is not the one that the Content-Digest announced.")
