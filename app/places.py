"""Reserve, then upload: a place is taken for a file that its client then sends straight to the store.

Invariant: the client's link writes one key, which nothing but the completion reads, and the bytes that become a job are
those that were verified: they are copied on the condition that they have not changed since, to a key the client never
held.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from app.accepting import Accepting, CountFailure, header_of, source_of, unavailable
from app.core.jobstore import Declared, JobStore, Place, Reservation, Source
from app.core.objects import (
    ObjectChangedError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    StoreUnavailableError,
)
from app.core.postgres import DatabaseUnavailableError
from app.core.settings import Settings
from app.core.signed import SignedBody, SignedPut
from app.core.telemetry import logger
from app.reserving import Reserving, Wanted
from app.staging import STAGING_MEDIA_TYPE
from contracts.errors import ErrorCode, ServiceError
from contracts.keys import inbox_key, staging_key
from contracts.limits import SNIFF_BYTES

#: Files that one process verifies at once; connections to the store are left to uploads.
COMPLETIONS_MAX = 16
#: Said when the file is not in the store yet.
INCOMPLETE_RETRY_AFTER_S = 1.0

#: After these the same completion may be tried again.
_PLACE_STAYS = frozenset({ErrorCode.UPLOAD_INCOMPLETE, ErrorCode.DEPENDENCY_UNAVAILABLE})

log = logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A place and the link for its file; both end after `left_s` seconds."""

    job_id: UUID
    image_id: UUID
    put: SignedPut
    left_s: float


class Places:
    """The use case of one process; what it keeps is in the database and the store alone."""

    def __init__(
        self,
        settings: Settings,
        *,
        jobs: JobStore,
        store: ObjectStore,
        reserving: Reserving,
        count_failure: CountFailure,
    ) -> None:
        self._settings = settings
        self._limits = settings.image_limits()
        self._jobs = jobs
        self._store = store
        self._reserving = reserving
        self._count_failure = count_failure
        self._turns = asyncio.Semaphore(COMPLETIONS_MAX)
        self._accepting = Accepting(settings, jobs=jobs, store=store, count_failure=count_failure)

    async def take(self, declared: Declared, *, owner: str) -> Taken:
        """Return a place for the declared file.

        Raises:
            ServiceError: the refusal.
        """
        left_s = self._settings.place_deadline_s
        # Nobody renews it: it has only its deadline.
        wanted = Wanted(
            owner=owner, held_bytes=declared.source_bytes, lease_s=left_s, deadline_s=left_s, declared=declared
        )
        reservation = await self._reserving.reserve(wanted)
        if reservation is None:  # cannot be: there is no key
            raise unavailable("The place was not given.")
        put = await self._store.presigned_put(
            inbox_key(reservation.job_id),
            promise=SignedBody(
                size_bytes=declared.source_bytes, media_type=declared.media_type, sha256=declared.sha256
            ),
            expires_s=max(1, int(left_s)),
        )
        return Taken(job_id=reservation.job_id, image_id=reservation.image_id, put=put, left_s=left_s)

    async def complete(self, job_id: UUID, *, owner: str) -> bool:
        """Verify the file and make the place a queued job; False when there is no such place (any more).

        Raises:
            ServiceError: `upload_incomplete` when the file is not there yet; the place stays. With any other code of a
                bad file the place is given back. `reservation_lost` or `dependency_unavailable`.
        """
        place = await self._jobs.find_place(job_id, owner=owner)
        if place is None:
            return False
        try:
            async with self._store_in_time():
                source = await self._verify_and_copy(place)
        except ServiceError as error:
            if error.code is ErrorCode.UPLOAD_INCOMPLETE and await self._is_taken(job_id, owner=owner):
                return False  # another completion was faster, and has deleted what it copied
            if error.code not in _PLACE_STAYS:
                await self._drop(place)
            raise
        await self._accepting.accept(_reservation_of(place, owner), source)
        await self._delete_inbox(place)
        log.info("job.accepted", job_id=str(place.job_id), source_bytes=source.source_bytes)
        return True

    async def give_back(self, job_id: UUID, *, owner: str) -> bool:
        """End a place whose file is not wanted any more; False when there is none. The janitor deletes the file."""
        place = await self._jobs.find_place(job_id, owner=owner)
        return place is not None and await self._jobs.drop_upload(job_id=job_id, upload_token=place.upload_token)

    async def _verify_and_copy(self, place: Place) -> Source:
        key = inbox_key(place.job_id)
        try:
            info = await self._store.head(key)
            await self._check(key, info, place.declared)
            head = await self._store.get_range(key, start=0, length_bytes=SNIFF_BYTES)
            header = header_of(head, self._limits)
            await self._store.copy(key, staging_key(place.job_id), media_type=STAGING_MEDIA_TYPE, if_match=info.etag)
        except (ObjectMissingError, ObjectChangedError) as error:
            message = "The file is not in the store yet, or it is being replaced."
            retry_after_s = INCOMPLETE_RETRY_AFTER_S
            raise ServiceError(ErrorCode.UPLOAD_INCOMPLETE, message, retry_after_s=retry_after_s) from error
        return source_of(header, source_bytes=info.size_bytes, sha256=place.declared.sha256)

    async def _check(self, key: str, info: ObjectInfo, declared: Declared) -> None:
        if info.size_bytes > self._limits.source_bytes_max:
            raise ServiceError(ErrorCode.TOO_MANY_BYTES, f"At most {self._limits.source_bytes_max} bytes.")
        # A store that keeps no checksums, or that somebody wrote to in another way, is read.
        sha256 = info.sha256 or await self._hash(key)
        if (info.size_bytes, sha256) != (declared.source_bytes, declared.sha256):
            raise ServiceError(ErrorCode.DIGEST_MISMATCH, "The file is not the one that was announced.")

    async def _hash(self, key: str) -> str:
        digest = hashlib.sha256()
        async with aclosing(self._store.stream(key)) as chunks:
            async for chunk in chunks:
                digest.update(chunk)
        return digest.hexdigest()

    async def _is_taken(self, job_id: UUID, *, owner: str) -> bool:
        return await self._jobs.find_place(job_id, owner=owner) is None

    async def _delete_inbox(self, place: Place) -> None:
        # The link may bring the same bytes once more; the job's own sweeps delete them with its staged file.
        try:
            async with asyncio.timeout(self._settings.s3_timeout_s):
                await self._store.delete([inbox_key(place.job_id)])
        except (StoreUnavailableError, TimeoutError):
            self._count_failure("store", "delete")

    async def _drop(self, place: Place) -> None:
        try:
            await self._jobs.drop_upload(job_id=place.job_id, upload_token=place.upload_token)
        except DatabaseUnavailableError:
            self._count_failure("database", "drop_upload")  # its deadline ends it

    @asynccontextmanager
    async def _store_in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._settings.s3_timeout_s), self._turns:
                yield
        except (StoreUnavailableError, TimeoutError) as error:
            self._count_failure("store", "complete_place")
            raise unavailable("The store for uploads does not answer.") from error


def _reservation_of(place: Place, owner: str) -> Reservation:
    return Reservation(
        job_id=place.job_id,
        image_id=place.image_id,
        owner=owner,
        upload_token=place.upload_token,
        held_bytes=place.declared.source_bytes,
        declared=place.declared,
    )
