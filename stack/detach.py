"""`up --detach`: a launcher in the background that is waited for until everything is ready.

Invariant: when this returns without an error the stack is ready and its launcher is nobody's child but init's;
when it raises, no launcher of this call is left.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stack.children import bound_log, log_tail
from stack.errors import EnvironmentUnfitError
from stack.launcher import DOWN_S_MAX, UpOptions, folder_in_use
from stack.state import LOG_FOLDER, FolderLock, StackState, StateFile, using

#: Installing the broker's packages is the longest part of a first start.
DETACH_S_MAX = 900.0

_TICK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """One launcher in the background, and where its part of the log begins."""

    process: "subprocess.Popen[bytes]"
    log_path: Path
    log_start_bytes: int

    def log_tail(self) -> str:
        return log_tail(self.log_path, since_bytes=self.log_start_bytes).strip()


def up_detached(options: UpOptions, *, progress: Callable[[str], None]) -> StackState:
    """Start a launcher in the background and return the state when everything is ready.

    `progress` gets the newest line of the launcher's log. A stack of this folder that is ready already is left as
    it is.

    Raises:
        EnvironmentUnfitError: it did not get ready; the message holds the end of what its launcher has logged.
    """
    file = StateFile(options.folder.absolute())
    running = file.read()
    if running is not None and running.ready and running.launcher is not None and running.launcher.alive:
        return running
    if FolderLock(file.folder).holder() is not None:
        raise folder_in_use(file)
    with using(file.folder):
        start = _start(options, file.folder / LOG_FOLDER / "launcher.log")
    try:
        return _await_ready(start, file, progress)
    except BaseException:  # also Ctrl-C: nobody would know of it any more
        start.process.terminate()
        start.process.wait(DOWN_S_MAX)
        raise


def _start(options: UpOptions, log_path: Path) -> _Start:
    log_path.parent.mkdir(parents=True, exist_ok=True)
    bound_log(log_path)
    args = [sys.executable, "-m", "stack.cli", "up", "--data", str(options.folder.absolute())]
    args += [f"--port={options.port}", f"--api-processes={options.api_processes}", f"--workers={options.workers}"]
    # Appended to, never emptied: another `up` may have begun at the same moment, and this may be its log.
    with log_path.open("ab", buffering=0) as log:
        log.write(b"==== spillway up\n")
        start_bytes = log.tell()
        process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return _Start(process=process, log_path=log_path, log_start_bytes=start_bytes)


def _await_ready(start: _Start, file: StateFile, progress: Callable[[str], None]) -> StackState:
    process = start.process
    deadline = time.monotonic() + DETACH_S_MAX
    while process.poll() is None and time.monotonic() < deadline:
        state = file.read()
        if state is not None and state.ready and state.launcher is not None and state.launcher.pid == process.pid:
            return state
        progress(start.log_tail().rpartition("\n")[2])
        time.sleep(_TICK_S)
    if process.returncode is not None and FolderLock(file.folder).holder() is not None:
        raise folder_in_use(file)  # another one was a moment faster
    what = "did not get ready in time" if process.returncode is None else f"ended with code {process.returncode}"
    raise EnvironmentUnfitError(f"the launcher {what}:\n{start.log_tail()}".rstrip())
