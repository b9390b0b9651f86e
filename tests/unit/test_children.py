import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stack.account import Account
from stack.children import LOG_BYTES_MAX, Child, ChildSpec, bound_log, run_once, spawn
from stack.identity import Identity, birth_mark, end_all, identify, marked_processes, wait_gone

WAIT_S = 10.0
SLEEP = ["sleep", "60"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]

Spawn = Callable[[list[str]], Child]


def spec_of(args: list[str], folder: Path) -> ChildSpec:
    env = {"PATH": os.defpath, "MARK": str(folder)}
    return ChildSpec(name="c", args=args, cwd=folder, env=env, log_path=folder / "log", account=Account())


@pytest.fixture
def spawned(tmp_path: Path) -> Spawn:
    return lambda args: spawn(spec_of(args, tmp_path))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def test_a_child_ends_on_its_stop_signal(spawned: Spawn) -> None:
    child = spawned(SLEEP)
    assert child.alive
    assert child.stop(WAIT_S) == -signal.SIGTERM
    assert not child.alive


def test_a_child_that_ignores_its_stop_signal_is_killed_after_the_grace(spawned: Spawn) -> None:
    child = spawned(STUBBORN)
    until(lambda: "up" in child.log_tail())
    assert child.stop(0.2) == -signal.SIGKILL


def test_what_a_child_has_started_ends_with_it(spawned: Spawn) -> None:
    child = spawned(["sh", "-c", "sleep 60 & echo $!; wait"])
    until(lambda: child.log_tail().strip().isdigit())
    grandchild = identify(int(child.log_tail()))
    child.kill()
    assert wait_gone([grandchild], timeout_s=WAIT_S)


def test_a_frozen_child_can_be_stopped(spawned: Spawn) -> None:
    child = spawned(SLEEP)
    child.freeze()
    until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert child.alive
    assert child.stop(WAIT_S) == -signal.SIGTERM


def test_a_program_is_run_to_its_end_and_killed_when_it_takes_too_long(tmp_path: Path) -> None:
    assert run_once(spec_of(["sh", "-c", "exit 7"], tmp_path), timeout_s=WAIT_S) == 7
    assert run_once(spec_of(SLEEP, tmp_path), timeout_s=0.1) is None


def test_a_pid_with_another_birth_is_nobody(spawned: Spawn) -> None:
    child = spawned(SLEEP)
    assert child.identity.alive
    stranger = Identity(child.pid, "another boot/1")
    assert not stranger.alive
    assert not stranger.signal(signal.SIGKILL)
    assert end_all([stranger], grace_s=0.1) == []
    assert child.alive
    child.kill()
    assert birth_mark(child.pid) is None


def test_descendants_are_found_by_the_mark_in_their_environment(spawned: Spawn, tmp_path: Path) -> None:
    child = spawned(["sh", "-c", "setsid sleep 60 & wait"])  # a session of its own: no group signal reaches it
    until(lambda: len(marked_processes("MARK", str(tmp_path))) == 2)
    child.kill()
    left = marked_processes("MARK", str(tmp_path))
    assert len(left) == 1
    assert end_all(left, grace_s=WAIT_S) == left
    assert marked_processes("MARK", str(tmp_path)) == []


def test_a_log_that_has_grown_too_large_is_set_aside_once(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"x" * LOG_BYTES_MAX)
    bound_log(log)
    assert log.exists()
    log.write_bytes(b"x" * (LOG_BYTES_MAX + 1))
    bound_log(log)
    assert [path.name for path in tmp_path.iterdir()] == ["x.log.1"]


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_children_die_with_their_parent_also_when_a_passing_thread_asked_for_them(tmp_path: Path) -> None:
    program = """
import sys, threading
from pathlib import Path
from tests.unit.test_children import spec_of
from stack.account import choose_account
from stack.children import spawn
from dataclasses import replace
folder = Path(sys.argv[1])
account = choose_account([Path(sys.executable)], search_path="/usr/sbin:/usr/bin:/sbin:/bin")
spec = replace(spec_of(["sleep", "60"], folder), account=account)
asked = threading.Thread(target=lambda: print(spawn(spec).pid, flush=True))
asked.start(); asked.join()
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as parent:
        assert parent.stdout is not None
        child = identify(int(parent.stdout.readline()))
        assert not wait_gone([child], timeout_s=0.3), "the end of the thread that asked must not end the child"
        parent.kill()
    assert wait_gone([child], timeout_s=WAIT_S)
