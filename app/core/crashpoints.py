"""Named places at which a process can be told to die, so that tests can show what each death leaves behind.

Off (the default) a point costs one attribute look-up. On, the process kills itself the hard way: no clean-up runs.
"""

import os
import signal
from typing import Literal, get_args

CrashPoint = Literal[
    "api.reserved",
    "api.staged",
    "api.accepted",
    "relay.leased",
    "relay.published",
    "worker.claimed",
    "worker.stored",
    "worker.settled",
    "janitor.deleted",
]

CRASH_POINTS: tuple[CrashPoint, ...] = get_args(CrashPoint)


class Crasher:
    """Dies at one armed point, or never."""

    def __init__(self, armed: CrashPoint | None) -> None:
        self._armed = armed

    def reach(self, point: CrashPoint) -> None:
        """Die here when this point is armed."""
        if self._armed == point:
            os.kill(os.getpid(), signal.SIGKILL)
