"""What the launcher and `down` do in trouble, with small real processes in place of the servers."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stack.account import Account
from stack.children import ChildSpec
from stack.errors import EnvironmentUnfitError
from stack.identity import Identity, identify
from stack.launcher import Backoff, Revival, down, folder_in_use, unfailing
from stack.server import LocalServer, Site
from stack.state import FolderLock, ProcessRecord, StateFile

WAIT_S = 20.0

#: Holds a folder as a launcher does, until a signal ends it.
HOLDER = """
import os, sys, time
from pathlib import Path
from stack.identity import identify
from stack.state import FolderLock
lock = FolderLock(Path(sys.argv[1]))
assert lock.acquire()
lock.sign(identify(os.getpid()))
print("held", flush=True)
time.sleep(60)
"""


class Sleeper(LocalServer):
    """A process that serves as soon as its file says so."""

    port_names = ("sleeper",)
    ready_s_max = WAIT_S
    stop_s_max = 1.0

    def __init__(self, site: Site, name: str, *, log: str = "") -> None:
        self.name = name
        self.log = log
        super().__init__(site)

    @property
    def opened(self) -> Path:
        return self.home / "open"

    def prepare(self) -> None:
        """Nothing."""

    def spec(self) -> ChildSpec:
        return self._spec(self.name, ["sh", "-c", f"echo {self.log}; exec sleep 60"], {})

    def answers(self) -> bool:
        return self.opened.exists()

    def env(self) -> dict[str, str]:
        return {}


def until(condition: Callable[[], bool], *, meanwhile: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        meanwhile()
        time.sleep(0.01)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    file = StateFile(tmp_path)
    file.change(ports={"sleeper": 12000})
    return Site(folder=tmp_path, account=Account(), state=file, search_path=os.defpath, cache=tmp_path)


@pytest.fixture
def held(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds the folder and is in no state."""
    with ExitStack() as end:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
        end.callback(process.wait)
        end.callback(process.kill)
        assert process.stdout is not None
        end.callback(process.stdout.close)
        assert process.stdout.readline() == b"held\n"
        yield process


def test_a_server_that_starts_slowly_keeps_no_other_from_coming_back(site: Site) -> None:
    revival = Revival(Backoff(time.monotonic), lambda _name, _text: None)
    slow, quick = Sleeper(site, "slow"), Sleeper(site, "quick")
    for server in (slow, quick):
        server.home.mkdir()
        server.opened.touch()
        server.start()
    slow.opened.unlink()
    with ExitStack() as end:
        end.callback(revival.join)
        end.callback(site.abort.set)
        for server in (slow, quick):
            server.kill()

        def tend() -> None:
            for server in (slow, quick):
                revival.tend(server)

        until(lambda: slow.alive, meanwhile=tend)
        until(lambda: quick.alive, meanwhile=tend)
        first = slow.child
        tend()
        assert slow.child is first, "it is being started once, not twice"
    assert not slow.alive, "asked to stop, a start is given up"
    assert quick.alive
    quick.kill()


def test_an_error_shows_the_log_of_this_start_only(site: Site) -> None:
    server = Sleeper(site, "talker", log="of-an-earlier-life")
    server.home.mkdir()
    server.opened.touch()
    server.start()
    until(lambda: "of-an-earlier-life" in server.log_tail())
    server.kill()
    server.log = "of-this-life"
    server.start()
    until(lambda: "of-this-life" in server.log_tail())
    assert "earlier" not in str(server.fail("does not serve"))
    server.kill()


@pytest.mark.parametrize("state", ["gone", "empty", "damaged"])
def test_down_ends_the_launcher_that_holds_the_folder_though_its_state_is_lost(
    tmp_path: Path, held: "subprocess.Popen[bytes]", state: str
) -> None:
    if state != "gone":
        (tmp_path / "stack.json").write_text("" if state == "empty" else '{"version"')
    reaper = threading.Thread(target=held.wait)
    reaper.start()
    if state == "damaged":
        with pytest.raises(EnvironmentUnfitError, match="move"):
            down(tmp_path)
    else:
        assert down(tmp_path) == 0
    reaper.join(WAIT_S)
    assert held.returncode == -signal.SIGTERM


def test_down_wakes_a_frozen_launcher_so_that_it_stops_in_order(
    tmp_path: Path, held: "subprocess.Popen[bytes]"
) -> None:
    held.send_signal(signal.SIGSTOP)
    reaper = threading.Thread(target=held.wait)
    reaper.start()
    began_s = time.monotonic()
    down(tmp_path)
    assert time.monotonic() - began_s < WAIT_S
    reaper.join(WAIT_S)
    assert held.returncode == -signal.SIGTERM


def test_down_ends_what_is_left_also_when_it_cannot_write_it_down(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    file.change(launcher=Identity(left.pid, "another boot"), ready=True)
    file.record(ProcessRecord("api", identify(left.pid)))
    (tmp_path / "stack.new").mkdir()
    with pytest.raises(EnvironmentUnfitError, match="stopped all the same"):
        down(tmp_path)
    assert left.wait(WAIT_S) == -signal.SIGTERM


def test_down_of_a_folder_that_never_was_makes_none(tmp_path: Path) -> None:
    assert down(tmp_path / "data") == 0
    assert not (tmp_path / "data").exists()


def test_a_folder_whose_stack_is_just_starting_is_said_so(tmp_path: Path, held: "subprocess.Popen[bytes]") -> None:
    file = StateFile(tmp_path)
    assert f"is being started by another process (pid {held.pid})" in str(folder_in_use(file))
    file.change(launcher=FolderLock(tmp_path).holder(), ready=True)
    assert "`spillway down` it first" in str(folder_in_use(file))


def test_progress_that_cannot_be_written_ends_nothing() -> None:
    with Path("/dev/full").open("w", buffering=1) as full:

        def write(name: str, step: str) -> None:
            os.write(full.fileno(), f"{name} {step}".encode())

        with pytest.raises(OSError, match="No space"):
            write("api", "ready")
        unfailing(write)("api", "ready")
