"""Spawning, freezing and ending child processes.

Invariant: a child does not outlive us, however we end. The kernel is told to end it when the thread that spawned
it ends, so all spawning is done by one thread that lives as long as the process; and whatever slips through that
(on systems without it, or grandchildren) is found by its recorded identity at the next start.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from stack.account import Account
from stack.identity import Identity, birth_mark

#: A log file is set aside (one predecessor is kept) when it has grown past this at the start of its process.
LOG_BYTES_MAX = 8 * 1024 * 1024

#: How long a killed process may take to go; only an uninterruptible disk wait takes longer than an instant.
KILL_WAIT_S = 10.0

_TAIL_BYTES = 4_000
_POLL_S = 0.02

# Never shut down by us: its end at interpreter exit is what ends the children.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to run, where, and how it likes to be ended."""

    name: str
    args: list[str]
    cwd: Path
    env: Mapping[str, str]
    log_path: Path
    account: Account
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: str = "KILL"  #: sent by the kernel when we die; name without SIG
    stdin_path: Path = field(default=Path(os.devnull))


class Child:
    """One child process in a session of its own, with its output in a log file."""

    def __init__(self, spec: ChildSpec, process: "subprocess.Popen[bytes]", *, log_start_bytes: int = 0) -> None:
        """`log_start_bytes` is how long the log was before this life of it."""
        self.spec = spec
        self._log_start_bytes = log_start_bytes
        self.name = spec.name
        self._process = process
        self.pid = process.pid
        self.identity = Identity(process.pid, birth_mark(process.pid) or "")
        self._swept = False

    @property
    def alive(self) -> bool:
        """Tell whether the process runs (a frozen one does)."""
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None when it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, grace_s: float) -> int:
        """End the process: its stop signal, up to `grace_s`, then SIGKILL; what is left of its group goes too."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, self.spec.stop_signal)
                os.kill(self.pid, signal.SIGCONT)  # a frozen process would never see its stop signal
            self.wait(grace_s)
        return self.kill()

    def kill(self) -> int:
        """End the process and its group with SIGKILL and reap it; return the exit code.

        Raises:
            TimeoutError: the process is still there after KILL_WAIT_S.
        """
        if not self._swept:  # once: the number may be somebody else's when it is long reaped
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        code = self.wait(KILL_WAIT_S)
        if code is None:
            raise TimeoutError(f"{self.name} (pid {self.pid}) does not end on SIGKILL")
        self._swept = True
        return code

    def freeze(self) -> None:
        """Stop the process and all its descendants in their tracks (SIGSTOP)."""
        self._signal_tree(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process and its descendants go on (SIGCONT)."""
        self._signal_tree(signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the end of what this process has written to its log, for an error message."""
        return log_tail(self.spec.log_path, since_bytes=self._log_start_bytes)

    def _signal_tree(self, number: signal.Signals) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            # The parent first: it must not see its children vanish, nor start new ones meanwhile.
            for member in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(number)


def spawn(spec: ChildSpec) -> Child:
    """Start the process and return at once.

    Raises:
        OSError: the program cannot be run.
    """
    return _spawner.submit(_spawn, spec).result()


def bound_log(path: Path) -> None:
    """Set a log aside when it has passed LOG_BYTES_MAX, so that two files of that size are the most kept."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(path.suffix + ".1"))


def log_bytes(path: Path) -> int:
    """Return how long a log file is, 0 when there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def log_tail(path: Path, *, since_bytes: int = 0) -> str:
    """Return the last lines of a log file, empty when there is none.

    What stands before `since_bytes` is left out: it is of an earlier life. A file that has been set aside since then
    is shorter, and new as a whole.
    """
    try:
        with path.open("rb") as file:
            size = log_bytes(path)
            file.seek(max(since_bytes if since_bytes <= size else 0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def run_once(spec: ChildSpec, *, timeout_s: float) -> int | None:
    """Run a program to its end and return its exit code; None when it was killed after `timeout_s`."""
    child = spawn(spec)
    code = child.wait(timeout_s)
    child.kill()
    return code


def wait_all(children: list[Child], *, timeout_s: float) -> list[Child]:
    """Return those children that still run after at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (running := [child for child in children if child.alive]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return running


def _spawn(spec: ChildSpec) -> Child:
    spec.log_path.parent.mkdir(parents=True, exist_ok=True)
    bound_log(spec.log_path)
    with spec.log_path.open("ab") as log, spec.stdin_path.open("rb") as stdin:
        start_bytes = log.tell()
        process = subprocess.Popen(
            spec.account.command(spec.args, death_signal=spec.death_signal),
            cwd=spec.cwd,
            env=dict(spec.env),
            stdin=stdin,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Child(spec, process, log_start_bytes=start_bytes)
