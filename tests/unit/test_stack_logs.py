import os
import sys
from pathlib import Path

from stack.account import Account
from stack.children import LOG_BYTES_MAX, ChildSpec, bound_log, log_bytes, log_tail, spawn

WAIT_S = 10.0


def say(text: str, folder: Path) -> str:
    args = [sys.executable, "-c", f"print({text!r})"]
    env = {"PATH": os.defpath}
    child = spawn(
        ChildSpec(name="c", args=args, cwd=folder, env=env, log_path=folder / "log", account=Account()),
    )
    assert child.wait(WAIT_S) == 0
    return child.log_tail()


def test_a_childs_log_is_shown_without_that_of_an_earlier_life(tmp_path: Path) -> None:
    assert say("one", tmp_path) == "one\n"
    assert say("two", tmp_path) == "two\n"
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_a_log_that_was_set_aside_since_is_shown_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (LOG_BYTES_MAX + 1))
    start_bytes = log_bytes(path)
    bound_log(path)
    assert log_bytes(path) == 0
    assert log_tail(path, since_bytes=start_bytes) == ""
    path.write_text("new")
    assert log_tail(path, since_bytes=start_bytes) == "new"
