"""What one data folder knows about its stack: ports, secrets, processes. Kept in DIR/stack.json, mode 0600.

Invariant: the file is replaced whole, never half written, and only the holder of the folder's lock writes it.
"""

import fcntl
import json
import os
import threading
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stack.errors import EnvironmentUnfitError
from stack.identity import Identity

STATE_FILE = "stack.json"
LOCK_FILE = "stack.lock"
SERVERS_LOCK_FILE = "servers.lock"
LOG_FOLDER = "log"
STATE_VERSION = 1

#: Every child carries this variable with the stack's id, which finds also what children of ours have started.
STACK_VARIABLE = "SPILLWAY_STACK_ID"


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


class StateFile:
    """Reads and rewrites stack.json; safe to use from several threads of its one writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / STATE_FILE
        self._lock = threading.Lock()

    def read(self) -> StackState | None:
        """Return the state, or None when this folder has none yet.

        Raises:
            EnvironmentUnfitError: the file is not a state of this version, or another user's.
        """
        try:
            return _parse(json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except PermissionError:
            raise EnvironmentUnfitError(f"{self.path} belongs to another user: use --data DIR.") from None
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

    def secret(self, name: str, value: str) -> str:
        """Return the secret kept under this name; `value` becomes it when there is none."""
        with self._lock:
            state = self.load()
            if name not in state.secrets:
                state = self._save(replace(state, secrets={**state.secrets, name: value}))
            return state.secrets[name]

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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = self.path.with_suffix(".new")
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(asdict(state), file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
        except PermissionError as error:
            raise EnvironmentUnfitError(f"{self.folder} cannot be written to: use --data DIR.") from error
        return state


class FolderLock:
    """Keeps a second user off a data folder. The kernel drops it with the process, however that ends."""

    def __init__(self, folder: Path, name: str = LOCK_FILE) -> None:
        self._path = folder / name
        self._file = -1

    @property
    def held(self) -> bool:
        """Tell whether we hold it."""
        return self._file >= 0

    def acquire(self) -> bool:
        """Take the lock and return True, or False when somebody else holds it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise EnvironmentUnfitError(f"{self._path} cannot be opened: use --data DIR.") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Let others have the folder."""
        if self.held:
            os.close(self._file)
            self._file = -1


def _parse(raw: dict[str, Any]) -> StackState:
    if raw["version"] != STATE_VERSION:
        raise ValueError(raw["version"])
    launcher = raw["launcher"]
    processes = tuple(
        ProcessRecord(entry["name"], Identity(**entry["identity"]), entry["port"]) for entry in raw["processes"]
    )
    return StackState(**{**raw, "launcher": launcher and Identity(**launcher), "processes": processes})
