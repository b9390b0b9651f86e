"""How many connections a process keeps open: what its limit on open files leaves beside the files that it needs itself.

Invariant: with all of its connections taken, and many more being turned away, a process can still open what it needs to
serve them: a connection that cannot even be accepted is reset without an answer.
"""

import resource
import sys
from dataclasses import dataclass

from app.api.content_response import CONTENTS_MAX
from app.core.settings import Settings

#: Connections that one process keeps open where its limit on open files allows it.
CONNECTIONS_MAX = 4_000
#: Files of the process itself: standard streams, counters, the listener, what the loop has, libraries loaded late.
OWN_FILES = 64
#: Connections to the database that no request waits for, and those by which stores are probed.
BACKGROUND_CONNECTIONS, PROBE_CONNECTIONS = 2, 4
#: At most this part of the limit is kept for what the settings allow to be opened to servers.
RESERVED_PART = 0.5
#: Of what is left, this part is for connections that are being turned away, each for a moment.
REFUSALS_PART = 0.25
REFUSALS_MAX = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Connections that are served at once, and those beyond them that are answered and closed."""

    connections_max: int = CONNECTIONS_MAX
    refusals_max: int = REFUSALS_MAX


def room_of(settings: Settings, *, files_max: int) -> Room:
    """Return the room that so many open files leave."""
    # The store of uploads has clients of its own for parts.
    to_servers = settings.database_pool_connections_max + 2 * settings.s3_connections_max + CONTENTS_MAX
    reserved = OWN_FILES + to_servers + BACKGROUND_CONNECTIONS + PROBE_CONNECTIONS
    left = files_max - min(reserved, int(files_max * RESERVED_PART))
    refusals_max = min(REFUSALS_MAX, int(left * REFUSALS_PART))
    return Room(connections_max=min(CONNECTIONS_MAX, left - refusals_max), refusals_max=refusals_max)


def files_max() -> int:
    """Return how many files this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
