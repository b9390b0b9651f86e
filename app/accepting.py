"""The last step of every upload, however its bytes came: the staged file's reservation becomes a queued job.

Invariant: an accept whose outcome is unknown is asked about by its token, and nothing is deleted while it is unknown.
"""

import asyncio
from collections.abc import Callable
from uuid import UUID

from app.core.jobstore import JobStore, Reservation, Source
from app.core.objects import ObjectStore, StoreUnavailableError
from app.core.postgres import DatabaseUnavailableError
from app.core.settings import Settings
from app.core.sniff import Header, check_header
from app.core.telemetry import logger
from contracts.errors import ErrorCode, FailureCode, ServiceError
from contracts.images import ImageLimits
from contracts.jobs import FINAL, JobState
from contracts.keys import staging_key

#: Times an accept is tried, and asked about, when the database does not answer.
ACCEPT_TRIES_MAX = 2
#: Said with refusals of an upload in hand.
RETRY_AFTER_S = 2.0

_HEADER_MESSAGES = {
    FailureCode.UNSUPPORTED_FORMAT: "The file is not an image of an accepted format.",
    FailureCode.TOO_MANY_PIXELS: "The image's header announces too many pixels.",
    FailureCode.TOO_LARGE_DIMENSION: "The image's header announces a side that is too long.",
}
#: States in which nobody needs the staged file any more.
_UNNEEDED = (FINAL - {JobState.FAILED}) | {JobState.DROPPED}

#: Counts a failed call: kind of server, call.
CountFailure = Callable[[str, str], None]


class Accepting:
    """Accepts reservations whose file is staged."""

    def __init__(self, settings: Settings, *, jobs: JobStore, store: ObjectStore, count_failure: CountFailure) -> None:
        self._settings = settings
        self._jobs = jobs
        self._store = store
        self._count_failure = count_failure

    async def accept(self, reservation: Reservation, source: Source, *, attachment_id: UUID | None = None) -> None:
        """Make the job; returns only when it is durable, also when an earlier accept had made it.

        Raises:
            ServiceError: `reservation_lost`, or `dependency_unavailable` when the outcome stays unknown.
        """
        for _ in range(ACCEPT_TRIES_MAX):
            state = await self._try(reservation, source, attachment_id)
            if state is JobState.UPLOADING:
                continue
            if state is None or state in _UNNEEDED:
                # A repeat that staged its file again, late: nothing else would find it.
                await self._delete_staged(reservation)
            if state in (None, JobState.DROPPED):
                raise reservation_lost()
            return
        logger().warning("upload.outcome_unknown", job_id=str(reservation.job_id))
        raise unavailable("The database does not answer.")

    async def _try(self, reservation: Reservation, source: Source, attachment_id: UUID | None) -> JobState | None:
        """Return the reservation's state after an accept; `uploading` when that did not happen."""
        job_id, token = reservation.job_id, reservation.upload_token
        try:
            if await self._jobs.accept(
                job_id=job_id,
                upload_token=token,
                source=source,
                job_deadline_s=self._settings.job_deadline_s,
                attachment_id=attachment_id,
            ):
                return JobState.QUEUED
        except DatabaseUnavailableError as error:
            self._count_failure("database", "accept")
            if not error.outcome_unknown:
                return JobState.UPLOADING
        try:
            return await self._jobs.upload_state(job_id=job_id, upload_token=token)
        except DatabaseUnavailableError as error:
            self._count_failure("database", "upload_state")
            logger().warning("upload.outcome_unknown", job_id=str(job_id))
            raise unavailable("The database does not answer.") from error

    async def _delete_staged(self, reservation: Reservation) -> None:
        # What fails here is repaired by the janitor as long as there is a row.
        try:
            async with asyncio.timeout(self._settings.s3_timeout_s):
                await self._store.delete([staging_key(reservation.job_id)])
        except (StoreUnavailableError, TimeoutError):
            self._count_failure("store", "delete")


def header_of(head: bytes | bytearray, limits: ImageLimits) -> Header:
    """Return what a file's first bytes tell.

    Raises:
        ServiceError: `unsupported_format`, `too_many_pixels` or `too_large_dimension`.
    """
    verdict = check_header(bytes(head), limits)
    if isinstance(verdict, FailureCode):
        raise ServiceError(ErrorCode(verdict.value), _HEADER_MESSAGES[verdict])
    return verdict


def source_of(header: Header, *, source_bytes: int, sha256: str) -> Source:
    """Return what is known of a file that was received whole."""
    return Source(
        source_bytes=source_bytes,
        sha256=sha256,
        format=header.image_format,
        width=header.width_px,
        height=header.height_px,
    )


def unavailable(message: str) -> ServiceError:
    """Return the refusal for a server that does not answer."""
    return ServiceError(ErrorCode.DEPENDENCY_UNAVAILABLE, message, retry_after_s=RETRY_AFTER_S)


def reservation_lost() -> ServiceError:
    """Return the refusal for an upload whose reservation is gone."""
    message = "The reservation of this upload ended early."
    return ServiceError(ErrorCode.RESERVATION_LOST, message, retry_after_s=RETRY_AFTER_S)
