"""`up --detach`: a launcher in the background that is waited for until everything is ready.

Invariant: when this returns without an error the stack is ready and its launcher is nobody's child but init's;
when it raises, no launcher of this call is left.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from stack.children import bound_log, log_tail
from stack.errors import EnvironmentUnfitError
from stack.launcher import DOWN_S_MAX, UpOptions
from stack.state import LOG_FOLDER, StackState, StateFile

#: Installing the broker's packages is the longest part of a first start.
DETACH_S_MAX = 900.0

_TICK_S = 0.1


def up_detached(options: UpOptions, *, progress: Callable[[str], None]) -> StackState:
    """Start a launcher in the background and return the state when everything is ready.

    `progress` gets the newest line of the launcher's log. A stack of this folder that is ready already is left as
    it is.

    Raises:
        EnvironmentUnfitError: it did not get ready; the message holds the end of the launcher's log.
    """
    file = StateFile(options.folder.absolute())
    running = file.read()
    if running is not None and running.ready and running.launcher is not None and running.launcher.alive:
        return running
    log_path = file.folder / LOG_FOLDER / "launcher.log"
    process = _start(options, log_path)
    try:
        return _await_ready(process, file, log_path, progress)
    except BaseException:  # also Ctrl-C: nobody would know of it any more
        process.terminate()
        process.wait(DOWN_S_MAX)
        raise


def _start(options: UpOptions, log_path: Path) -> "subprocess.Popen[bytes]":
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        bound_log(log_path)
        log = log_path.open("wb")
    except PermissionError as error:
        raise EnvironmentUnfitError(f"{log_path} cannot be written to: use --data DIR.") from error
    args = [sys.executable, "-m", "stack.cli", "up", "--data", str(options.folder.absolute())]
    args += [f"--port={options.port}", f"--api-processes={options.api_processes}", f"--workers={options.workers}"]
    with log:
        return subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _await_ready(
    process: "subprocess.Popen[bytes]", file: StateFile, log_path: Path, progress: Callable[[str], None]
) -> StackState:
    deadline = time.monotonic() + DETACH_S_MAX
    while process.poll() is None and time.monotonic() < deadline:
        state = file.read()
        if state is not None and state.ready and state.launcher is not None and state.launcher.pid == process.pid:
            return state
        progress(log_tail(log_path).strip().rpartition("\n")[2])
        time.sleep(_TICK_S)
    what = "did not get ready in time" if process.returncode is None else f"ended with code {process.returncode}"
    raise EnvironmentUnfitError(f"the launcher {what}:\n{log_tail(log_path)}".rstrip())
