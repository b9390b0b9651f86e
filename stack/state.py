"""What one data folder knows about its stack: ports, secrets, processes. Kept in DIR/stack.json, mode 0600.

Invariant: the file is replaced whole, never half written, and only the holder of the folder's lock writes it. A
secret is kept a second time beside what it opens, and none is ever made beside data that another one opens.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stack.errors import EnvironmentUnfitError
from stack.identity import Identity

STATE_FILE = "stack.json"
LOCK_FILE = "stack.lock"
SERVERS_LOCK_FILE = "servers.lock"
SECRETS_FILE = "secrets.json"
LOG_FOLDER = "log"
STATE_VERSION = 1

#: Every child carries this variable with the stack's id, which finds also what children of ours have started.
STACK_VARIABLE = "SPILLWAY_STACK_ID"

#: A state file that could not be written is tried again this often, beside every change of the state.
REWRITE_S = 1.0

_LOCK_BYTES_MAX = 1_000

#: Inode, length and time of change: what tells our own file from another in its place.
_Mark = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process that the stack has started."""

    name: str
    identity: Identity
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """The content of stack.json."""

    version: int = STATE_VERSION
    stack_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    launcher: Identity | None = None
    ready: bool = False
    url: str = ""  #: of the API
    ports: dict[str, int] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    processes: tuple[ProcessRecord, ...] = ()
    env: dict[str, str] = field(default_factory=dict)  #: the SPILLWAY_* variables that reach this stack's servers


@contextlib.contextmanager
def using(place: Path) -> Iterator[None]:
    """Turn what the system says against files of ours into the error that a person is meant to read."""
    try:
        yield
    except OSError as error:
        where = f", {error.filename}" if error.filename is not None else ""
        reason = f"{error.strerror or error}{where}"
        raise EnvironmentUnfitError(f"{place} cannot be used ({reason}): make room, or use --data DIR.") from error


class StateFile:
    """Reads and rewrites stack.json; safe to use from several threads of its one writer.

    From `hold` to `drop` the truth is in memory: the file may then be lost or impossible to write, and nothing fails.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / STATE_FILE
        self._lock = threading.Lock()
        self._held: StackState | None = None
        self._report: Callable[[str], None] = lambda _text: None
        self._written: _Mark | None = None  #: None: what we hold is not in the file
        self._retry_s = 0.0
        self._copied: dict[tuple[Path, str], str] = {}

    @property
    def held(self) -> bool:
        """Tell whether the state is kept in memory."""
        return self._held is not None

    def hold(self, report: Callable[[str], None], **changes: Any) -> StackState:
        """Replace fields, and keep the state in memory from now on; `report` hears when the file cannot be written.

        Raises:
            EnvironmentUnfitError: the file cannot be written now.
        """
        with self._lock:
            state = self._save(replace(self.load(), **changes))
            self._report, self._held = report, state
            return state

    def drop(self) -> None:
        """Keep the state in the file only."""
        with self._lock:
            self._held = None

    def keep(self) -> None:
        """Write a held state again when its file is gone, is another, or could not be written. Cheap: call it often."""
        with self._lock:
            if self._held is None or (self._written is not None and self._mark() == self._written):
                return
            if self._written is not None:
                self._report(f"{self.path} is gone or not ours any more: writing it again")
            elif time.monotonic() < self._retry_s:
                return
            self._try_to_write(self._held)

    def read(self) -> StackState | None:
        """Return the state, or None when this folder has none yet or its file is empty (as a full disk leaves it).

        Raises:
            EnvironmentUnfitError: the file is not a state of this version, or another user's.
        """
        if self._held is not None:
            return self._held
        try:
            raw = self.path.read_bytes()
            return _parse(json.loads(raw)) if raw else None
        except FileNotFoundError:
            return None
        except PermissionError:
            raise EnvironmentUnfitError(f"{self.path} belongs to another user: use --data DIR.") from None
        except OSError as error:
            raise EnvironmentUnfitError(f"{self.path} cannot be read ({error.strerror}): use --data DIR.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentUnfitError(
                f"{self.path} was not written by this version: move {self.folder} away, or use --data DIR."
            ) from error

    def load(self) -> StackState:
        """Return the state, a new one when there is none yet."""
        return self.read() or StackState()

    def change(self, **changes: Any) -> StackState:
        """Replace fields of the state and return the new one."""
        with self._lock:
            return self._save(replace(self.load(), **changes))

    def secret(self, name: str, value: str, *, beside: Path, in_use: bool) -> str:
        """Return the secret kept under this name, here or in the second copy in the folder `beside`.

        `value` becomes it when there is none, unless `in_use`: then data are there already that another one opens.

        Raises:
            EnvironmentUnfitError: the secret of existing data is lost, or the copy cannot be written.
        """
        copy = beside / SECRETS_FILE
        with self._lock:
            state = self.load()
            if name in state.secrets and self._copied.get((copy, name)) == state.secrets[name]:
                return state.secrets[name]
            copied = _read_secrets(copy)
            kept = state.secrets.get(name) or copied.get(name)
            if kept is None and in_use:
                raise EnvironmentUnfitError(
                    f"The secret {name} of the data in {beside} is missing: put back {self.path} or {copy}, "
                    f"move {self.folder} away, or use --data DIR."
                )
            found = kept or value
            if copied.get(name) != found:  # the copy comes first: it is what outlives the other
                with using(copy):
                    _write_whole(copy, {**copied, name: found})
            self._copied[copy, name] = found
            if state.secrets.get(name) != found:
                self._save(replace(state, secrets={**state.secrets, name: found}))
            return found

    def record(self, process: ProcessRecord) -> None:
        """Add a process, in place of an earlier one of the same name."""
        self._change_processes(remove=process.name, add=[process])

    def forget(self, name: str) -> None:
        """Remove the process of this name."""
        self._change_processes(remove=name, add=[])

    def _change_processes(self, *, remove: str, add: Iterable[ProcessRecord]) -> None:
        with self._lock:
            state = self.load()
            kept = [record for record in state.processes if record.name != remove]
            self._save(replace(state, processes=(*kept, *add)))

    def _save(self, state: StackState) -> StackState:
        if self._held is None:
            with using(self.folder):
                self._write(state)
        else:
            self._held = state
            self._try_to_write(state)
        return state

    def _try_to_write(self, state: StackState) -> None:
        told = self._written is None
        try:
            self._write(state)
        except OSError as error:
            self._written, self._retry_s = None, time.monotonic() + REWRITE_S
            if not told:
                self._report(f"{self.path} cannot be written ({error.strerror}): going on without it")
        else:
            if told:
                self._report(f"{self.path} is written again")

    def _write(self, state: StackState) -> None:
        _write_whole(self.path, asdict(state))
        self._written = self._mark()

    def _mark(self) -> _Mark | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


class FolderLock:
    """Keeps a second user off a data folder. The kernel drops it with the process, however that ends."""

    def __init__(self, folder: Path, name: str = LOCK_FILE) -> None:
        self._path = folder / name
        self._file = -1

    @property
    def held(self) -> bool:
        """Tell whether we hold it."""
        return self._file >= 0

    @property
    def exists(self) -> bool:
        """Tell whether anybody has ever locked the folder."""
        return self._path.exists()

    def acquire(self) -> bool:
        """Take the lock and return True, or False when somebody else holds it.

        Raises:
            EnvironmentUnfitError: the folder is none, or not ours.
        """
        with using(self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        return True

    def sign(self, holder: Identity) -> None:
        """Leave word of who holds the folder, for those who cannot learn it from its state.

        Raises:
            EnvironmentUnfitError: the lock file cannot be written.
        """
        with using(self._path.parent):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(asdict(holder)).encode(), 0)

    def holder(self) -> Identity | None:
        """Return who has signed the lock and still runs, whether or not it is ours."""
        try:
            with self._path.open("rb") as file:
                holder = Identity(**json.loads(file.read(_LOCK_BYTES_MAX)))
        except (OSError, ValueError, TypeError):
            return None
        return holder if holder.alive else None

    def release(self) -> None:
        """Let others have the folder."""
        if self.held:
            os.close(self._file)
            self._file = -1


def _read_secrets(path: Path) -> dict[str, str]:
    with using(path):
        try:
            kept = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
    return {str(name): str(value) for name, value in kept.items()} if isinstance(kept, dict) else {}


def _write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Put a file of mode 0600 in the place of an earlier one, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)  # half a file would only take the room that is missing
        raise


def _parse(raw: dict[str, Any]) -> StackState:
    if raw["version"] != STATE_VERSION:
        raise ValueError(raw["version"])
    launcher = raw["launcher"]
    processes = tuple(
        ProcessRecord(entry["name"], Identity(**entry["identity"]), entry["port"]) for entry in raw["processes"]
    )
    return StackState(**{**raw, "launcher": launcher and Identity(**launcher), "processes": processes})
