"""One life of a stack in trouble: its state is lost, a server hangs at its start, nothing can be written down."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stack.identity import wait_gone
from stack.ports import weed_sockets
from stack.state import StateFile
from tests.integration.test_stack import WAIT_S, Stack, stack_in, until


@pytest.fixture
def hangups_count() -> Iterator[None]:
    """Undo what `nohup` in front of the tests makes every child inherit: that SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups_count")
def test_supervision_outlives_a_lost_state_a_server_that_hangs_and_a_full_disk(
    environment: Mapping[str, str], fresh_env: Mapping[str, str], tmp_path: Path
) -> None:
    # Of the servers only the object store is its own, which keeps the test quick.
    existing = {name: value for name, value in fresh_env.items() if not name.startswith("SPILLWAY_S3_")}
    with stack_in(tmp_path / "data", {**environment, **existing}) as stack:
        stack.up()
        before = stack.state()
        stack_file = StateFile(stack.folder).path
        stack_file.unlink()
        until(stack_file.exists)
        assert stack.state() == before

        s3 = stack.process("s3")
        s3.signal(signal.SIGKILL)
        until(lambda: stack.process("s3") != s3)
        stack.process("s3").signal(signal.SIGSTOP)  # it is being started, and will not serve
        killed_and_back(stack, "relay")

        blocked = stack.folder / "stack.new"
        blocked.mkdir()  # nothing can be written in its place, as on a full disk
        relay = stack.process("relay")
        relay.signal(signal.SIGKILL)
        log = stack.folder / "log" / "launcher.log"
        until(lambda: "cannot be written" in log.read_text())
        blocked.rmdir()
        until(lambda: stack.process("relay") != relay and stack.process("relay").alive)

        launcher = stack.state().launcher
        assert launcher is not None
        stack.process("s3").signal(signal.SIGCONT)
        left = stack.left()
        sockets = [path for name, port in stack.state().ports.items() for path in weed_sockets(port)]
        until(lambda: any(path.exists() for path in sockets))
        stack_file.unlink()
        os.kill(launcher.pid, signal.SIGHUP)  # the terminal is closed
        assert wait_gone([launcher, *left], timeout_s=WAIT_S)
        assert not any(path.exists() for path in sockets)
        assert stack.state().processes == ()


def killed_and_back(stack: Stack, name: str) -> None:
    """Kill a role and return when another process is in its place."""
    killed = stack.process(name)
    killed.signal(signal.SIGKILL)
    until(lambda: stack.process(name) != killed and stack.process(name).alive)
