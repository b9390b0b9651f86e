"""`up`, `down` and `status`: one launcher per data folder that starts, supervises and stops everything.

Invariant: whatever the launcher starts ends with it, in order when it is asked to stop, at once when it is killed;
and what a crash could still leave is found and ended by the next `up` or `down`.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from stack.errors import EnvironmentUnfitError
from stack.identity import identify, wait_gone
from stack.ports import is_free
from stack.roles import RUN_FOLDER, Role, RoleProcess, Roles
from stack.server import LocalServer
from stack.servers import Progress, Servers, reap
from stack.state import FolderLock, StateFile

API_PORT_DEFAULT = 8080

READY_S_MAX = 60.0
#: How long `down` waits for an orderly stop before it kills.
DOWN_S_MAX = 90.0
#: How long the folder may stay locked after its launcher has gone.
LOCK_S_MAX = 10.0

#: A process that ends is started again after this long, doubled each time it ends again soon.
BACKOFF_S_MIN = 0.5
BACKOFF_S_MAX = 30.0
#: A process that has lived this long starts with the shortest wait again.
SETTLED_S = 60.0

_TICK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `up` is asked for."""

    folder: Path
    port: int = API_PORT_DEFAULT
    api_processes: int = 1
    workers: int = 1


class Backoff:
    """When a thing that keeps ending may be started again; pure but for the clock it is given."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_s: dict[str, float] = {}
        self._wait_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}

    def started(self, name: str) -> None:
        """Note that the thing was started now."""
        self._started_s[name] = self._clock()
        self._due_s.pop(name, None)

    def ended(self, name: str) -> float | None:
        """Note that the thing is seen ended; return its wait in seconds when that is news, else None."""
        if name in self._due_s:
            return None
        now = self._clock()
        lived_s = now - self._started_s.get(name, now)
        earlier_s = 0.0 if lived_s >= SETTLED_S else self._wait_s.get(name, 0.0)
        wait_s = min(BACKOFF_S_MAX, max(BACKOFF_S_MIN, 2 * earlier_s))
        self._wait_s[name] = wait_s
        self._due_s[name] = now + wait_s
        return wait_s

    def due(self, name: str) -> bool:
        """Tell whether an ended thing may be started again."""
        return name in self._due_s and self._clock() >= self._due_s[name]


class Launcher:
    """One life of a stack, from `up` to SIGTERM."""

    def __init__(self, options: UpOptions, environment: Mapping[str, str], *, progress: Progress) -> None:
        self._options = options
        self._environment = environment
        self._progress = progress
        self._backoff = Backoff(time.monotonic)
        self._state = StateFile(options.folder.absolute())
        self._stop = threading.Event()

    def run(self, on_ready: Callable[[Servers, Roles], None]) -> None:
        """Start everything, call `on_ready`, supervise until SIGTERM or SIGINT, stop everything.

        Raises:
            EnvironmentUnfitError: something does not start, or another launcher holds the folder.
        """
        lock = FolderLock(self._state.folder)
        if not lock.acquire():
            raise EnvironmentUnfitError(f"{self._state.folder} is in use: `spillway down` it first, or use --data DIR.")
        try:
            self._state.change(launcher=identify(os.getpid()), ready=False)
            self._run_locked(on_ready)
        finally:
            self._state.change(launcher=None, ready=False)
            lock.release()

    def _run_locked(self, on_ready: Callable[[Servers, Roles], None]) -> None:
        reap(self._state)
        if not is_free(self._options.port):
            raise EnvironmentUnfitError(f"Port {self._options.port} is taken: choose another with --port N.")
        shutil.rmtree(self._state.folder / RUN_FOLDER, ignore_errors=True)
        servers = Servers(self._state.folder, self._environment, progress=self._progress)
        self._stop = servers.site.abort
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        roles = Roles(servers, self._environment)
        try:
            self._start(servers, roles)
            if not self._stop.is_set():
                self._state.change(ready=True)
                on_ready(servers, roles)
                self._supervise(servers, roles)
        except EnvironmentUnfitError:
            if not self._stop.is_set():  # asked to stop while starting: nothing is wrong
                raise
        finally:
            self._state.change(ready=False)
            roles.stop()
            servers.stop()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()

    def _start(self, servers: Servers, roles: Roles) -> None:
        servers.start(with_database=lambda: self._migrate(roles))
        for name, role in self._wanted():
            self._spawn(roles, role, name)
        self._await_ready(roles)

    def _migrate(self, roles: Roles) -> None:
        self._progress("schema", "migrating")
        roles.migrate()
        self._progress("schema", "ready")

    def _wanted(self) -> list[tuple[str, Role]]:
        workers: list[tuple[str, Role]] = [(f"worker-{i + 1}", "worker") for i in range(self._options.workers)]
        return [("api", "api"), ("relay", "relay"), ("janitor", "janitor"), *workers]

    def _spawn(self, roles: Roles, role: Role, name: str) -> None:
        self._progress(name, "starting")
        if role == "api":
            env = {"SPILLWAY_API_PROCESSES": str(self._options.api_processes)}
            api = roles.spawn(role, name=name, port=self._options.port, env=env)
            self._state.change(url=api.url)
        else:
            roles.spawn(role, name=name)
        self._backoff.started(name)

    def _await_ready(self, roles: Roles) -> None:
        waiting = {process.name: process for process in roles.processes}
        deadline = time.monotonic() + READY_S_MAX
        api = waiting["api"]
        # Without a worker the whole stays degraded, which is then what was asked for.
        whole = {"ready"} if self._options.workers else {"ready", "degraded"}
        while not self._stop.wait(_TICK_S / 4):
            for process in roles.processes:
                if not process.alive:
                    raise process.failure(f"ended at its start with code {process.child.returncode}")
                if process.name in waiting and process.is_live():
                    del waiting[process.name]
                    self._progress(process.name, "ready")
            if not waiting and api.readiness() in whole:
                return
            if time.monotonic() > deadline:
                late = ", ".join(waiting) or f"the whole (/health/ready says `{api.readiness()}`)"
                raise api.failure(f"not ready within {READY_S_MAX:.0f} s: {late}")

    def _supervise(self, servers: Servers, roles: Roles) -> None:
        while not self._stop.wait(_TICK_S):
            for server in servers.local:
                self._tend_server(server)
            for process in list(roles.processes):
                self._tend_role(roles, process)

    def _tend_server(self, server: LocalServer) -> None:
        if server.alive or not self._may_start_again(server.name):
            return
        try:
            server.start()
        except EnvironmentUnfitError as error:
            self._progress(server.name, str(error))
        self._backoff.started(server.name)

    def _tend_role(self, roles: Roles, process: RoleProcess) -> None:
        if not process.alive and self._may_start_again(process.name):
            process.kill()  # what is left of its group
            self._spawn(roles, process.role, process.name)

    def _may_start_again(self, name: str) -> bool:
        wait_s = self._backoff.ended(name)
        if wait_s is not None:
            self._progress(name, f"has ended, starts again in {wait_s:.1f} s")
        return self._backoff.due(name)


def down(folder: Path) -> int:
    """Stop the stack of a data folder, however little of it is left; return how many processes had to be ended.

    Raises:
        EnvironmentUnfitError: the folder stays locked by somebody else.
    """
    file = StateFile(folder.absolute())
    state = file.read()
    if state is None:
        return 0
    launcher = state.launcher
    asked = launcher is not None and launcher.signal(signal.SIGTERM)
    if launcher is not None and asked and not wait_gone([launcher], timeout_s=DOWN_S_MAX):
        launcher.signal(signal.SIGKILL)
    lock = FolderLock(file.folder)
    deadline = time.monotonic() + LOCK_S_MAX
    while not lock.acquire():
        if time.monotonic() > deadline:
            raise EnvironmentUnfitError(f"{file.folder} stays locked by a process that is not in its state.")
        time.sleep(_TICK_S)
    try:
        file.change(launcher=None, ready=False)
        return reap(file)
    finally:
        lock.release()
