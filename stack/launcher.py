"""`up`, `down` and `status`: one launcher per data folder that starts, supervises and stops everything.

Invariant: whatever the launcher starts ends with it, in order when it is asked to stop, at once when it is killed;
and what a crash could still leave is found and ended by the next `up` or `down`. Nothing but a stop ends it once it
is ready: not a file that cannot be written, nor a server that does not come back.
"""

import contextlib
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
from stack.identity import Identity, identify, wait_gone
from stack.ports import is_free
from stack.roles import RUN_FOLDER, Role, RoleProcess, Roles
from stack.server import LocalServer
from stack.servers import Progress, Servers, reap
from stack.state import FolderLock, StateFile, using

API_PORT_DEFAULT = 8080

READY_S_MAX = 60.0
#: How long `down` waits for an orderly stop before it kills.
DOWN_S_MAX = 90.0
#: How long a server that is just being started may take to notice that all is to stop.
GIVE_UP_S_MAX = 30.0
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


class Revival:
    """Starts again what has ended; a server in a thread of its own, so that nothing else waits until it serves.

    One thread at most for each server, and `join` waits for all of them.
    """

    def __init__(self, backoff: Backoff, progress: Progress) -> None:
        self._backoff = backoff
        self._progress = progress
        self._threads: dict[str, threading.Thread] = {}

    def due(self, name: str) -> bool:
        """Tell whether a thing that is seen ended may be started again; its wait begins when that is news."""
        wait_s = self._backoff.ended(name)
        if wait_s is not None:
            self._progress(name, f"has ended, starts again in {wait_s:.1f} s")
        return self._backoff.due(name)

    def tend(self, server: LocalServer) -> None:
        """Begin to start the server when it has ended and is due; returns at once."""
        thread = self._threads.get(server.name)
        if thread is not None:
            if thread.is_alive():
                return
            del self._threads[server.name]
            self._backoff.started(server.name)
        if not server.alive and self.due(server.name):
            thread = threading.Thread(target=self._start, args=(server,), name=f"start-{server.name}")
            self._threads[server.name] = thread
            thread.start()

    def join(self, timeout_s: float = GIVE_UP_S_MAX) -> None:
        """Wait until no server is being started any more; they give up when their site's `abort` is set."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self, server: LocalServer) -> None:
        try:
            server.start()
        except (EnvironmentUnfitError, OSError) as error:
            if not server.site.abort.is_set():  # given up because all is to stop: nothing is wrong
                self._progress(server.name, str(error))


class Launcher:
    """One life of a stack, from `up` to SIGTERM."""

    def __init__(self, options: UpOptions, environment: Mapping[str, str], *, progress: Progress) -> None:
        self._options = options
        self._environment = environment
        self._progress = unfailing(progress)
        self._backoff = Backoff(time.monotonic)
        self._revival = Revival(self._backoff, self._progress)
        self._state = StateFile(options.folder.absolute())
        self._stop = threading.Event()

    def run(self, on_ready: Callable[[Servers, Roles], None]) -> None:
        """Start everything, call `on_ready`, supervise until SIGTERM, SIGINT or SIGHUP, stop everything.

        Raises:
            EnvironmentUnfitError: something does not start, or another launcher holds the folder.
        """
        lock = FolderLock(self._state.folder)
        if not lock.acquire():
            raise folder_in_use(self._state)
        with contextlib.ExitStack() as end, using(self._state.folder):
            end.callback(lock.release)
            own = identify(os.getpid())
            lock.sign(own)
            self._state.hold(lambda text: self._progress("state", text), launcher=own, ready=False)
            end.callback(self._state.drop)
            end.callback(self._state.change, launcher=None, ready=False)
            self._run_locked(on_ready)

    def _run_locked(self, on_ready: Callable[[Servers, Roles], None]) -> None:
        reap(self._state)
        if not is_free(self._options.port):
            raise EnvironmentUnfitError(f"Port {self._options.port} is taken: choose another with --port N.")
        shutil.rmtree(self._state.folder / RUN_FOLDER, ignore_errors=True)
        # Before the servers choose theirs: a kept port of one of them may be the API's by now.
        self._state.change(ports={**self._state.load().ports, "api": self._options.port})
        servers = Servers(self._state.folder, self._environment, progress=self._progress, state=self._state)
        self._listen(servers.site.abort)
        with contextlib.ExitStack() as end:  # from the last to the first, each whatever another one raises
            end.callback(servers.stop)
            roles = Roles(servers, self._environment)
            end.callback(self._revival.join)
            end.callback(roles.stop)
            end.callback(self._state.change, ready=False)
            self._live(servers, roles, on_ready)

    def _live(self, servers: Servers, roles: Roles, on_ready: Callable[[Servers, Roles], None]) -> None:
        try:
            self._start(servers, roles)
        except EnvironmentUnfitError:
            if self._stop.is_set():  # asked to stop while starting: nothing is wrong
                return
            raise
        if not self._stop.is_set():
            self._state.change(ready=True)
            with contextlib.suppress(OSError):  # it prints, perhaps into a log on a full disk
                on_ready(servers, roles)
            self._supervise(servers, roles)

    def _listen(self, stop: threading.Event) -> None:
        self._stop = stop
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` wants the stack to outlive the terminal
                signal.signal(number, self._on_signal)

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
                late = ", ".join(waiting) or api.lacking()
                raise api.failure(f"not ready within {READY_S_MAX:.0f} s: {late}")

    def _supervise(self, servers: Servers, roles: Roles) -> None:
        while not self._stop.wait(_TICK_S):
            self._state.keep()
            for server in servers.local:
                self._revival.tend(server)
            for process in list(roles.processes):
                self._tend_role(roles, process)

    def _tend_role(self, roles: Roles, process: RoleProcess) -> None:
        if process.alive or not self._revival.due(process.name):
            return
        try:
            process.kill()  # what is left of its group
            self._spawn(roles, process.role, process.name)
        except (EnvironmentUnfitError, OSError) as error:
            self._progress(process.name, str(error))
            self._backoff.started(process.name)


def unfailing(progress: Progress) -> Progress:
    """Return a progress that says nothing where it cannot: a full disk, or a terminal that is closed."""

    def say(name: str, step: str) -> None:
        with contextlib.suppress(OSError):
            progress(name, step)

    return say


def folder_in_use(file: StateFile) -> EnvironmentUnfitError:
    """Return the error that says who has the folder, and what to do about it."""
    holder = FolderLock(file.folder).holder()
    state = file.read()
    if holder is None or (state is not None and state.ready):
        return EnvironmentUnfitError(f"{file.folder} is in use: `spillway down` it first, or use --data DIR.")
    return EnvironmentUnfitError(
        f"{file.folder} is being started by another process (pid {holder.pid}), or is just stopping: "
        "wait for it, or `spillway down` it."
    )


def down(folder: Path) -> int:
    """Stop the stack of a data folder, however little of it is left; return how many processes had to be ended.

    Raises:
        EnvironmentUnfitError: the folder stays locked by somebody else.
    """
    file = StateFile(folder.absolute())
    lock = FolderLock(file.folder)
    launcher = _launcher_of(file, lock)
    if launcher is not None:
        _end_launcher(launcher)
    if not lock.exists and file.read() is None:
        return 0
    deadline = time.monotonic() + LOCK_S_MAX
    while not lock.acquire():
        if time.monotonic() > deadline:
            raise EnvironmentUnfitError(f"{file.folder} stays locked by a process that is not in its state.")
        time.sleep(_TICK_S)
    with contextlib.ExitStack() as end:
        end.callback(lock.release)
        return _reap_left(file)


def _launcher_of(file: StateFile, lock: FolderLock) -> Identity | None:
    # The lock knows also when the state is lost, empty or damaged.
    holder = lock.holder()
    if holder is not None:
        return holder
    state = file.read()
    return state.launcher if state is not None else None


def _end_launcher(launcher: Identity) -> None:
    if launcher.signal(signal.SIGTERM):
        launcher.signal(signal.SIGCONT)  # a frozen one would never see that it is to stop
        if not wait_gone([launcher], timeout_s=DOWN_S_MAX):
            launcher.signal(signal.SIGKILL)


def _reap_left(file: StateFile) -> int:
    state = file.read()
    if state is None:
        return 0  # nobody knows of a process: a launcher that ends in order has left none
    try:
        ended = reap(file)
        if state.launcher is not None or state.ready:
            file.change(launcher=None, ready=False)
    except EnvironmentUnfitError as error:  # it is raised by the writing, which comes last
        raise EnvironmentUnfitError(f"{error} Everything of it is stopped all the same.") from error
    return ended
