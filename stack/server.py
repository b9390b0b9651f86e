"""What the three local servers have in common.

Invariant: every process that a server starts is recorded in the state file before anything waits for it, so a
crash at any moment leaves a record that the next start can clean up by.
"""

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack.account import Account
from stack.children import Child, ChildSpec, log_bytes, log_tail, run_once, spawn
from stack.errors import EnvironmentUnfitError
from stack.state import LOG_FOLDER, STACK_VARIABLE, ProcessRecord, StateFile

_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a stack lives: its folder, the user of its children, its state, and the way to programs."""

    folder: Path
    account: Account
    state: StateFile
    search_path: str  #: the PATH of all children
    cache: Path  #: folder for what is fetched once for all stacks
    abort: threading.Event = field(default_factory=threading.Event)  #: set: give up starting
    progress: Callable[[str, str], None] = field(default=lambda _name, _text: None)  #: called with server and step

    def log_path(self, name: str) -> Path:
        """The log file of one process."""
        return self.folder / LOG_FOLDER / f"{name}.log"

    def child_env(self, home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the whole environment of a server: nothing of ours leaks in to change what it does."""
        return {
            "PATH": self.search_path,
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            STACK_VARIABLE: self.state.load().stack_id,
            **(extra or {}),
        }


class LocalServer(ABC):
    """A server run as one main child process, perhaps with helpers beside it."""

    name: str
    port_names: tuple[str, ...]  #: the first one is where clients connect
    ready_s_max: float
    stop_s_max: float
    spawns_max = 1  #: tries of one start; more than one only where a first may fail for a passing reason

    def __init__(self, site: Site) -> None:
        self.site = site
        self.home = site.folder / self.name
        self.child: Child | None = None
        self._lock = threading.RLock()
        self._log_start_bytes = 0

    @abstractmethod
    def prepare(self) -> None:
        """Do what is needed once for a data folder, before the first start."""

    @abstractmethod
    def spec(self) -> ChildSpec:
        """Return how to run the server."""

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether clients are served."""

    @abstractmethod
    def env(self) -> dict[str, str]:
        """Return the SPILLWAY_* variables that reach this server."""

    def furnish(self) -> None:  # noqa: B027 - most servers need nothing here
        """Do what is needed once for a data folder with the server running."""

    @property
    def alive(self) -> bool:
        """Tell whether the main process runs."""
        return self.child is not None and self.child.alive

    def port(self, name: str | None = None) -> int:
        """Return the port of this name, the client port by default."""
        return self.site.state.load().ports[name or self.port_names[0]]

    def start(self) -> None:
        """Start the server and return when it serves.

        Raises:
            EnvironmentUnfitError: it does not come up; the message holds the end of its log.
        """
        with self._lock:
            if self.alive:
                return
            self._log_start_bytes = log_bytes(self.site.log_path(self.name))
            self.site.account.make_folder(self.home)
            self.prepare()
            self.site.progress(self.name, "starting")
            self._launch()
            self._furnish_once()
            self.site.progress(self.name, "ready")

    def stop(self) -> None:
        """Stop the server in order, within `stop_s_max`; nothing happens when it does not run."""
        with self._lock:
            if self.child is not None:
                self.child.stop(self.stop_s_max)
                self.site.state.forget(self.name)
                self.child = None

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL); `start` brings it back with its data."""
        with self._lock:
            if self.child is not None:
                self.child.kill()
                self.site.state.forget(self.name)
                self.child = None

    def restart(self) -> None:
        """Stop the server and start it again on the same ports."""
        with self._lock:
            self.stop()
            self.start()

    def freeze(self) -> None:
        """Let the server hang with its connections open (SIGSTOP)."""
        if self.child is not None:
            self.child.freeze()

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        if self.child is not None:
            self.child.thaw()

    def run(self, args: list[str], *, env: Mapping[str, str] | None = None, timeout_s: float) -> int | None:
        """Run one of the server's tools as its user, output to its log; return the exit code."""
        return run_once(self._spec(f"{self.name}-tool", args, env or {}), timeout_s=timeout_s)

    def log_tail(self) -> str:
        """Return the end of what the server and its tools have logged since its last start."""
        return log_tail(self.site.log_path(self.name), since_bytes=self._log_start_bytes)

    def fail(self, what: str) -> EnvironmentUnfitError:
        """Return the error that says what went wrong, with the end of the log."""
        return EnvironmentUnfitError(f"{self.name}: {what}\n{self.log_tail()}".rstrip())

    def secret(self, name: str, value: str) -> str:
        """Return the server's secret of this name; `value` becomes it for a folder without data.

        Raises:
            EnvironmentUnfitError: the secret of existing data is lost.
        """
        return self.site.state.secret(name, value, beside=self.home, in_use=self._has_data())

    def spawn_recorded(self, spec: ChildSpec, *, port: int | None = None) -> Child:
        """Start a process of this server and record it."""
        child = spawn(spec)
        self.site.state.record(ProcessRecord(spec.name, child.identity, port))
        return child

    def _spec(self, name: str, args: list[str], env: Mapping[str, str]) -> ChildSpec:
        return ChildSpec(
            name=name,
            args=args,
            cwd=self.home,
            env=self.site.child_env(self.home, env),
            log_path=self.site.log_path(self.name),
            account=self.site.account,
        )

    def _has_data(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return any((self.home / "data").iterdir())
        return False

    def _launch(self) -> None:
        for left in reversed(range(self.spawns_max)):
            self.child = self.spawn_recorded(self.spec(), port=self.port())
            if self._await_answer():
                return
            if self.child.alive:
                reason = "given up" if self.site.abort.is_set() else f"not ready within {self.ready_s_max:.0f} s"
                error = self.fail(reason)
                self.kill()
                raise error
            if left:
                time.sleep(_POLL_S)
        raise self.fail(f"ended at its start with code {self.child.returncode if self.child else None}")

    def _await_answer(self) -> bool:
        deadline = time.monotonic() + self.ready_s_max
        while self.alive and time.monotonic() < deadline and not self.site.abort.is_set():
            if self.answers():
                return True
            time.sleep(_POLL_S)
        return False

    def _furnish_once(self) -> None:
        done = self.site.folder / self.name / ".furnished"
        if not done.exists():
            self.furnish()
            done.touch()
