"""The three servers that the product stands on, each ours or an existing one.

Invariant: after `stop`, and after the end of the process that called `start`, no process of theirs is left.

What a power cut may still lose: PostgreSQL nothing that it has acknowledged (fsync on); RabbitMQ nothing confirmed
in quorum queues (their log is fsynced); SeaweedFS the names of the newest objects (object data is fsynced, the
filer's index is not). A crash of any of the processes loses nothing.
"""

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import SystemRandom

from stack.account import choose_account
from stack.errors import EnvironmentUnfitError
from stack.identity import end_all, marked_processes
from stack.ports import remove_weed_sockets, settle_ports
from stack.postgres import Postgres, postgres_binaries
from stack.rabbit import Rabbit
from stack.rabbit_fetch import cache_folder
from stack.s3 import S3, weed_binary
from stack.server import LocalServer, Site
from stack.state import SERVERS_LOCK_FILE, STACK_VARIABLE, FolderLock, StateFile

#: A variable that is set means: this server exists already; do not start ours.
DATABASE_VARIABLE = "SPILLWAY_DATABASE_URL"
BROKER_VARIABLE = "SPILLWAY_BROKER_URL"
S3_VARIABLE = "SPILLWAY_S3_ENDPOINT_URL"

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Short: whatever is left over is made to be killed, and an orderly stop is no longer owed to it.
_LEFTOVER_GRACE_S = 3.0
_PROJECT = Path(__file__).resolve().parents[1]

Progress = Callable[[str, str], None]


class Servers:
    """PostgreSQL, S3 and RabbitMQ of one data folder. All methods block; use them from one thread or several."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        *,
        progress: Progress | None = None,
        state: StateFile | None = None,
    ) -> None:
        """Prepare without starting anything; `environment` is the caller's and names existing servers.

        `state` is the folder's, of a caller who holds it already.

        Raises:
            EnvironmentUnfitError: this machine or user cannot run them.
        """
        self.folder = folder.absolute()
        self._environment = dict(environment)
        self._lock = FolderLock(self.folder, SERVERS_LOCK_FILE)
        self._holds_state = False
        self.site = make_site(self.folder, environment, progress=progress, state=state)
        self.postgres = None if environment.get(DATABASE_VARIABLE) else Postgres(self.site)
        self.s3 = None if environment.get(S3_VARIABLE) else S3(self.site)
        self.rabbit = None if environment.get(BROKER_VARIABLE) else Rabbit(self.site)

    @property
    def local(self) -> list[LocalServer]:
        """The servers that are ours."""
        return [server for server in (self.postgres, self.s3, self.rabbit) if server is not None]

    def server(self, name: str) -> LocalServer:
        """Return one of our servers by its name: `postgres`, `s3` or `rabbit`."""
        return next(server for server in self.local if server.name == name)

    def start(self, *, with_database: Callable[[], None] = lambda: None) -> None:
        """Start all of them at once and return when all serve; stops what has started when one does not.

        Call it once; single servers are brought back by their own `start`.

        `with_database` is called as soon as the database serves, beside the start of the others.

        Raises:
            EnvironmentUnfitError: the first failure, with the end of that server's log.
        """
        state = self.site.state
        if not (self._lock.held or self._lock.acquire()):
            raise EnvironmentUnfitError(f"The servers of {self.folder} are in use by another process.")
        if not state.held:
            state.hold(lambda text: self.site.progress("state", text))
            self._holds_state = True
        reap(state)
        names = [name for server in self.local for name in server.port_names]
        state.change(ports=settle_ports(state.load().ports, names, rng=SystemRandom()))
        try:
            with ThreadPoolExecutor(max_workers=len(self.local) + 1) as threads:
                starts = [threads.submit(server.start) for server in self.local if server is not self.postgres]
                starts.append(threads.submit(self._start_database, with_database))
                for started in starts:
                    started.result()
        except BaseException:  # whatever it was, nothing half-started may stay
            self.stop()
            raise
        state.change(env=self.env())

    def _start_database(self, with_database: Callable[[], None]) -> None:
        if self.postgres is not None:
            self.postgres.start()
        with_database()

    def stop(self) -> None:
        """Stop all of them; what is left of their processes is ended too. May be called twice."""
        with contextlib.ExitStack() as end:  # each step happens, whatever an earlier one raises
            end.callback(self._let_go)
            with ThreadPoolExecutor(max_workers=max(1, len(self.local))) as threads:
                stops = [threads.submit(server.stop) for server in self.local]
            for stopped in stops:
                stopped.result()

    def _let_go(self) -> None:
        if not self._lock.held:
            return
        try:
            reap(self.site.state)
        finally:
            if self._holds_state:
                self.site.state.drop()
                self._holds_state = False
            self._lock.release()

    def env(self) -> dict[str, str]:
        """Return the SPILLWAY_* variables that roles need to reach the servers, ours or existing."""
        given = {name: value for name, value in self._environment.items() if name.startswith("SPILLWAY_")}
        given.pop(STACK_VARIABLE, None)  # of another stack, in whose environment we happen to run
        return {**given, **{name: value for server in self.local for name, value in server.env().items()}}


def make_site(
    folder: Path,
    environment: Mapping[str, str],
    *,
    progress: Progress | None = None,
    state: StateFile | None = None,
) -> Site:
    """Return the site of a data folder, whose log folder and state it makes.

    Raises:
        EnvironmentUnfitError: children could not run as an unprivileged user here.
    """
    search_path = environment.get("PATH", _DEFAULT_PATH)
    cache = cache_folder(environment)
    programs = [postgres_binaries() / "postgres", weed_binary(search_path)]
    account = choose_account([folder / "postgres", cache / "rabbitmq", *programs], search_path=search_path)
    state = state or StateFile(folder)
    if state.read() is None:
        state.change()  # every child bears the stack's id, which must be the same for all
    return Site(
        folder=folder,
        account=account,
        state=state,
        search_path=search_path,
        cache=cache,
        progress=progress or (lambda _name, _text: None),
    )


def reap(state: StateFile) -> int:
    """End what an earlier life of this stack has left running and return how many processes that were.

    They are recognised by pid and birth, or by the stack's id in their environment; never by a name. What they leave
    outside the folder goes too.

    Raises:
        EnvironmentUnfitError: the state cannot be written; everything is ended all the same.
    """
    kept = state.load()
    recorded = [record.identity for record in kept.processes]
    found = end_all(recorded, grace_s=_LEFTOVER_GRACE_S)
    found += end_all(marked_processes(STACK_VARIABLE, kept.stack_id), grace_s=_LEFTOVER_GRACE_S)
    remove_weed_sockets(kept.ports, S3.port_names)
    if kept.processes:
        state.change(processes=())
    return len(found)
