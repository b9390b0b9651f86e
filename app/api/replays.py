"""Repeated uploads: whether the same bytes came again, told by their digest or by hashing and throwing them away.

Invariant: a repeated upload takes no place and stages nothing; one owner has at most so many of them in hand here.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager

from app.api.wire import Promise
from app.core.jobstore import KnownKey
from app.core.settings import Settings
from contracts.errors import ErrorCode, ServiceError
from contracts.jobs import JobState

#: Said when the first upload with a key is still on its way.
KEY_IN_USE_RETRY_AFTER_S = 2.0
#: Said to an owner with too many repeated uploads at once.
RATE_LIMITED_RETRY_AFTER_S = 2.0


def check_replay(known: KnownKey, promise: Promise) -> None:
    """Check what can be said before the body.

    Raises:
        ServiceError: `key_in_use`, `expired`, or `key_conflict` when another file is announced.
    """
    if known.fingerprint is None:
        raise key_in_use()
    if known.state is JobState.EXPIRED:
        raise ServiceError(ErrorCode.EXPIRED, "The upload that the key stands for is no longer kept.")
    if promise.file_sha256 is not None and promise.file_sha256 != known.fingerprint:
        raise _conflict()


def key_in_use() -> ServiceError:
    """Return the refusal for a key whose first upload is on its way."""
    message = "The first upload with this key is still on its way."
    return ServiceError(ErrorCode.KEY_IN_USE, message, retry_after_s=KEY_IN_USE_RETRY_AFTER_S)


class Replays:
    """The repeated uploads that this process is hashing."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._in_hand: Counter[str] = Counter()

    async def compare(self, chunks: AsyncIterable[memoryview], *, owner: str, fingerprint: str) -> None:
        """Read a file to its end; returns when it has the fingerprint.

        Raises:
            ServiceError: `rate_limited`, `too_many_bytes`, `upload_too_slow`, `key_conflict`. Whatever `chunks`
                raises comes through.
        """
        with self._held(owner):
            try:
                async with asyncio.timeout(self._settings.upload_deadline_s):
                    sha256 = await self._hash(chunks)
            except TimeoutError as error:
                message = "The upload did not end within its time."
                raise ServiceError(ErrorCode.UPLOAD_TOO_SLOW, message) from error
        if sha256 != fingerprint:
            raise _conflict()

    @contextmanager
    def _held(self, owner: str) -> Iterator[None]:
        if self._in_hand[owner] >= self._settings.replays_per_owner_max:
            message = "Too many repeated uploads at once."
            raise ServiceError(ErrorCode.RATE_LIMITED, message, retry_after_s=RATE_LIMITED_RETRY_AFTER_S)
        self._in_hand[owner] += 1
        try:
            yield
        finally:
            self._in_hand[owner] -= 1
            if not self._in_hand[owner]:
                del self._in_hand[owner]

    async def _hash(self, chunks: AsyncIterable[memoryview]) -> str:
        digest, file_bytes = hashlib.sha256(), 0
        async for view in chunks:
            file_bytes += len(view)
            if file_bytes > self._settings.upload_bytes_max:
                message = f"At most {self._settings.upload_bytes_max} bytes."
                raise ServiceError(ErrorCode.TOO_MANY_BYTES, message)
            digest.update(view)
        return digest.hexdigest()


def _conflict() -> ServiceError:
    return ServiceError(ErrorCode.KEY_CONFLICT, "The key stands for the upload of another file.")
