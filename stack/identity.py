"""Which process is meant by a pid read from a file.

Invariant: a pid is trusted only together with the moment its process was born, so a number that the system has
given to somebody else's process since is never signalled.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

_POLL_S = 0.02
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: Field 22 of /proc/PID/stat, counted from the end of the parenthesised name (field 2).
_START_TICKS = 22 - 3
_ZOMBIE = "Z"


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for ever: its pid and an opaque birth mark."""

    pid: int
    born: str

    @property
    def alive(self) -> bool:
        """Tell whether this very process still runs; a zombie does not."""
        return birth_mark(self.pid) == self.born

    def signal(self, number: signal.Signals, *, group: bool = False) -> bool:
        """Send a signal to the process, or to its whole group; False when it is gone."""
        if not self.alive:
            return False
        try:
            # Group and pid are one number for our children, each of which leads a session of its own.
            (os.killpg if group and os.getpgid(self.pid) == self.pid else os.kill)(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def birth_mark(pid: int) -> str | None:
    """Return what tells this process from every other that has or had the pid; None when there is none.

    On Linux it is the boot's id with the start in ticks since boot: steps of the wall clock do not move it.
    """
    if sys.platform != "linux":
        return _birth_mark_psutil(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] == _ZOMBIE:
        return None
    return f"{_BOOT_ID.read_text().strip()}/{fields[_START_TICKS]}"


def identify(pid: int) -> Identity:
    """Return the identity of a process that runs now.

    Raises:
        ProcessLookupError: there is no such process.
    """
    born = birth_mark(pid)
    if born is None:
        raise ProcessLookupError(pid)
    return Identity(pid, born)


def end_all(identities: Iterable[Identity], *, grace_s: float) -> list[Identity]:
    """End these processes: SIGTERM, wait up to `grace_s`, SIGKILL of each group; return those that were alive."""
    found = [identity for identity in identities if identity.signal(signal.SIGTERM)]
    if not wait_gone(found, timeout_s=grace_s):
        for identity in found:
            identity.signal(signal.SIGKILL, group=True)
        wait_gone(found, timeout_s=grace_s)
    return found


def wait_gone(identities: Iterable[Identity], *, timeout_s: float) -> bool:
    """Wait until none of these processes runs; False when some still does after `timeout_s`."""
    pending = list(identities)
    deadline = time.monotonic() + timeout_s
    while pending := [identity for identity in pending if identity.alive]:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def marked_processes(variable: str, value: str) -> list[Identity]:
    """Return the processes whose environment holds this variable with this value, ourselves excepted.

    It finds what children of ours have started, also after their parent died.
    """
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError, ProcessLookupError):
            if process.environ().get(variable) == value:
                found.append(identify(process.pid))
    return found


def _birth_mark_psutil(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
