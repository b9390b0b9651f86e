"""Whether this process lives, and what of the system does: read from the snapshot, never asked for per request.

Invariant: a readiness answer costs no statement and no call. Only what an accept itself needs, the database and the
store, can make it 503; without the rest uploads are still accepted, and it says `degraded`. A server that answers and
takes no writes is away: what uploads themselves have met with counts for more than any probe.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from app.accepting import CountFailure
from app.core.processes import Snapshot

Part = Literal["up", "away"]

#: How `Uploads` counts a file that the store did not take.
_UPLOAD_CALL = ("store", "stage")


class ProbedStore(Protocol):
    """What is asked of a store to know whether it serves."""

    async def probe(self) -> bool:
        """Return whether it answers."""

    async def probe_work(self) -> bool:
        """Return whether it takes an object and gives it back."""


@dataclass(slots=True)
class StoreWatch:
    """What is known of the store: its answer to the last probe, and whether its newest write has failed."""

    answers: bool = False
    failed_writes: int = 0
    forgiven_writes: int = 0  #: of those, how many had failed when a write succeeded

    @property
    def up(self) -> bool:
        """Whether it answers, and has taken a write since one failed."""
        return self.answers and self.forgiven_writes == self.failed_writes

    def noting(self, count_failure: CountFailure) -> CountFailure:
        """Return what counts a failed call and takes note when it was an upload that the store did not take."""

        def count_and_note(server: str, call: str) -> None:
            count_failure(server, call)
            self.failed_writes += (server, call) == _UPLOAD_CALL

        return count_and_note

    def note_write(self) -> None:
        """Take note of an upload that the store took."""
        self.forgiven_writes = self.failed_writes

    async def probe(self, store: ProbedStore) -> bool:
        """Ask the store, and have it take a small write only while one of its own has failed; returns `up`."""
        failed_before = self.failed_writes
        self.answers = await store.probe()
        if not self.answers or self.up:
            return self.up
        if await store.probe_work():
            # One that failed meanwhile is newer than what has succeeded here.
            self.forgiven_writes = max(self.forgiven_writes, failed_before)
        return self.up


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What is up."""

    status: Literal["ready", "degraded", "unavailable"]
    components: dict[str, Part]


def readiness(snapshot: Snapshot | None, *, store_up: bool) -> Readiness:
    """Return what is up; without a fresh snapshot the database is away, and of the roles nothing is known.

    A database that takes no writes is away too: an upload needs it to.
    """
    needed = {"database": snapshot is not None and not snapshot.read_only, "store": store_up}
    others = {
        "broker": snapshot is not None and snapshot.workers + snapshot.relays > 0,
        "relay": snapshot is not None and snapshot.relays > 0,
        "workers": snapshot is not None and snapshot.workers > 0,
        "janitor": snapshot is not None and snapshot.janitors > 0,
    }
    components: dict[str, Part] = {name: "up" if up else "away" for name, up in {**needed, **others}.items()}
    if not all(needed.values()):
        return Readiness(status="unavailable", components=components)
    return Readiness(status="ready" if all(others.values()) else "degraded", components=components)
