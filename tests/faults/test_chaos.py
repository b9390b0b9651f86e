"""A chaos run as a command: two minutes of faults under load in which every promise is kept, and fifteen of them."""

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from stack.chaos_plan import KINDS
from stack.docs import ROOT

SHORT_S, LONG_S = 120, 900
#: Start, stop, pictures, rest and the verdict come on top.
OVERHEAD_S_MAX = 600
RECOVERY_S_MAX = 30.0
#: The servers stop in order.
BREAK_OFF_S_MAX = 90.0


def command(folder: Path, *, seed: int, seconds: int) -> list[str]:
    """What a person would type."""
    options = [f"--seed={seed}", f"--seconds={seconds}", "--json", f"--runs={folder}"]
    return [sys.executable, "-m", "stack.cli", "chaos", *options]


def run_chaos(environment: Mapping[str, str], folder: Path, *, seed: int, seconds: int) -> dict[str, Any]:
    """Run it to its end and return the report with its last line."""
    done = subprocess.run(
        command(folder, seed=seed, seconds=seconds),
        cwd=ROOT,
        env=dict(environment),
        stdout=subprocess.PIPE,
        timeout=seconds + OVERHEAD_S_MAX,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    report = json.loads(Path(found["report"]).read_text(encoding="utf-8"))
    assert done.returncode == 0, report["violations"][:20]
    return {**report, **found}


def working_in(folder: Path) -> list[str]:
    """The processes that have to do with a folder: its name is in their arguments or their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in text for text in (*process.cmdline(), *process.environ().values())):
                found.append(process.name())
    return found


def assert_kept(found: Mapping[str, Any]) -> None:
    assert (found["lost"], found["duplicated_effects"], found["failed_valid"]) == (0, 0, 0)
    assert found["accepted"] == found["ready"] + found["failed"] + found["cancelled"]
    assert found["slowest_recovery_s"] <= RECOVERY_S_MAX
    assert found["holds"] is True
    assert found["exits"] == []


@pytest.mark.alone
def test_two_minutes_of_chaos_break_no_promise_and_leave_no_process(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    stacks = tmp_path / "stacks"
    stacks.mkdir()
    found = run_chaos({**environment, "TMPDIR": str(stacks)}, tmp_path, seed=7, seconds=SHORT_S)
    assert_kept(found)
    assert found["seed"] == 7
    assert found["faults"] == len(found["spans"]) >= 10
    assert found["accepted"] >= 150
    assert working_in(stacks) == []
    assert list(stacks.iterdir()) == []


def test_a_run_that_is_broken_off_in_the_middle_of_a_fault_ends_everything(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    stacks = tmp_path / "stacks"
    stacks.mkdir()
    with subprocess.Popen(
        command(tmp_path, seed=7, seconds=SHORT_S),
        cwd=ROOT,
        env={**environment, "TMPDIR": str(stacks)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stderr is not None
        first_fault = next((line for line in run.stderr if "crash-api" in line), "")
        assert first_fault
        run.send_signal(signal.SIGTERM)
        said = run.stderr.read()
        assert run.wait(BREAK_OFF_S_MAX) == 1, said
    assert working_in(stacks) == []
    assert list(stacks.iterdir()) == []


@pytest.mark.long
@pytest.mark.alone
def test_fifteen_minutes_of_chaos_break_no_promise(environment: Mapping[str, str], tmp_path: Path) -> None:
    found = run_chaos(environment, tmp_path, seed=2026, seconds=LONG_S)
    assert_kept(found)
    kinds = Counter(span["kind"] for span in found["spans"])
    assert kinds.keys() == {kind.name for kind in KINDS}
    assert min(kinds.values()) >= 3
    assert found["faults"] >= 60
    assert found["accepted"] >= 2000
