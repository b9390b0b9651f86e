"""The way to a place: refused by the snapshot, or asked for in the database. Uploads and places share it.

Invariant: what a refusal costs is no lock and no statement, unless `admit` itself says no.
"""

import uuid
from dataclasses import dataclass

from app.accepting import CountFailure
from app.admission import Admission
from app.core.jobstore import AdmitOutcome, Declared, JobStore, Reservation, UploadKey
from app.core.postgres import DatabaseUnavailableError
from contracts.errors import ErrorCode, ServiceError

#: Said by a process that stops: another one, or its successor, takes the upload.
STOPPING_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a client asks a place for; it lasts `lease_s` seconds unless renewed, and never beyond `deadline_s`."""

    owner: str
    held_bytes: int
    lease_s: float
    deadline_s: float
    key: UploadKey | None = None
    declared: Declared | None = None


class Reserving:
    """One process's only caller of `admit`."""

    def __init__(self, *, jobs: JobStore, admission: Admission, count_failure: CountFailure) -> None:
        self._jobs = jobs
        self._admission = admission
        self._count_failure = count_failure
        #: Set when the process is told to stop: nothing more is admitted.
        self.shutting_down = False

    async def reserve(self, wanted: Wanted) -> Reservation | None:
        """Return the place, or None when the key stands for another upload already.

        Raises:
            ServiceError: the refusal.
        """
        if self.shutting_down:
            message = "This process is being stopped; try again."
            raise ServiceError(ErrorCode.SHUTTING_DOWN, message, retry_after_s=STOPPING_RETRY_AFTER_S)
        refusal = self._admission.refuse(owner=wanted.owner, held_bytes=wanted.held_bytes)
        if refusal is not None:
            raise refusal
        self._admission.note_try()
        reservation = _reservation(wanted)
        outcome = await self._ask(reservation, wanted)
        refusal = self._admission.note_outcome(outcome, owner=wanted.owner, held_bytes=wanted.held_bytes)
        if refusal is not None:
            raise refusal
        return reservation if outcome is AdmitOutcome.ADMITTED else None

    async def _ask(self, reservation: Reservation, wanted: Wanted) -> AdmitOutcome:
        try:
            return await self._jobs.admit(
                reservation, bounds=self._admission.bounds, lease_s=wanted.lease_s, deadline_s=wanted.deadline_s
            )
        except DatabaseUnavailableError as error:
            # Should it have been admitted all the same, its lease runs out and the janitor gives the place back.
            self._count_failure("database", "admit")
            raise self._admission.note_outage() from error


def _reservation(wanted: Wanted) -> Reservation:
    return Reservation(
        job_id=uuid.uuid4(),
        image_id=uuid.uuid4(),
        owner=wanted.owner,
        upload_token=uuid.uuid4(),
        held_bytes=wanted.held_bytes,
        key=wanted.key,
        declared=wanted.declared,
    )
