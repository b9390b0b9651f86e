"""`up --detach` where nothing starts: what it says, and whose log it leaves alone."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from random import SystemRandom

import pytest

from stack.detach import up_detached
from stack.errors import EnvironmentUnfitError
from stack.identity import identify
from stack.launcher import UpOptions
from stack.ports import LOOPBACK, free_port
from stack.state import LOG_FOLDER, FolderLock

PROJECT = Path(__file__).parents[2]
WAIT_S = 60.0
EARLIER = "of another life\n"


def silent(_text: str) -> None:
    pass


def log_in(folder: Path) -> Path:
    """Return a launcher's log that says something already."""
    path = folder / LOG_FOLDER / "launcher.log"
    path.parent.mkdir(parents=True)
    path.write_text(EARLIER)
    return path


def test_a_stack_that_is_just_starting_is_said_so_and_its_log_stays(tmp_path: Path) -> None:
    log, lock = log_in(tmp_path), FolderLock(tmp_path)
    assert lock.acquire()
    lock.sign(identify(os.getpid()))
    with pytest.raises(EnvironmentUnfitError, match="is being started by another process"):
        up_detached(UpOptions(folder=tmp_path), progress=silent)
    lock.release()
    assert log.read_text() == EARLIER


def test_a_launcher_that_ends_shows_its_own_log_only_and_adds_it_to_what_was_there(tmp_path: Path) -> None:
    log, port = log_in(tmp_path), free_port((), SystemRandom())
    with (
        socket.create_server((LOOPBACK, port)),
        pytest.raises(EnvironmentUnfitError, match=f"Port {port} is taken") as caught,
    ):
        up_detached(UpOptions(folder=tmp_path, port=port), progress=silent)
    assert EARLIER.strip() not in str(caught.value)
    assert log.read_text().startswith(EARLIER)
    assert f"Port {port} is taken" in log.read_text()


@pytest.mark.parametrize("args", [["up", "--detach"], ["down"]])
def test_a_data_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "file").touch()
    ended = subprocess.run(
        [sys.executable, "-m", "stack.cli", *args, "--data", str(tmp_path / "file" / "data")],
        env={"PATH": os.defpath},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 3
    assert ended.stderr.startswith("spillway: ")
    assert ended.stderr.count("\n") == 1
    assert "--data" in ended.stderr
