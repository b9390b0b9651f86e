"""Whether this process lives, and what of the system does: read from the snapshot, never asked for per request.

Invariant: a readiness answer costs no statement and no call. Only what an accept itself needs, the database and the
store, can make it 503; without the rest uploads are still accepted, and it says `degraded`.
"""

from dataclasses import dataclass
from typing import Literal

from app.core.processes import Snapshot

Part = Literal["up", "away"]


@dataclass(slots=True)
class StoreWatch:
    """The last answer of the store's probe."""

    up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What is up."""

    status: Literal["ready", "degraded", "unavailable"]
    components: dict[str, Part]


def readiness(snapshot: Snapshot | None, *, store_up: bool) -> Readiness:
    """Return what is up; without a fresh snapshot the database is away, and of the roles nothing is known."""
    needed = {"database": snapshot is not None, "store": store_up}
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
