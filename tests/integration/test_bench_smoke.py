"""The whole bench on real servers, small: interrupted by kill -9, resumed, reported, judged."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from analysis.load import load_run
from analysis.summary import summarize
from contracts.cells import CellKind

pytestmark = pytest.mark.alone

FIRST_CELLS_S_MAX = 120.0
BENCH_S_MAX = 240.0
PLAN = ("bench", "run", "--plan", "smoke")


def bench(folder: Path, env: Mapping[str, str], *args: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", "from stack.cli_bench import app; app()", *args, "--runs", str(folder)]
    return subprocess.Popen(command, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished_cells(folder: Path) -> dict[str, int]:
    return {file.parent.name: file.stat().st_mtime_ns for file in folder.glob("latest/cells/*/cell.json")}


def test_a_killed_bench_goes_on_where_it_was_and_its_report_holds(
    tmp_path: Path, environment: Mapping[str, str], fresh_env: dict[str, str]
) -> None:
    env = {**environment, **fresh_env}
    first = bench(tmp_path, env, *PLAN)
    deadline_s = time.monotonic() + FIRST_CELLS_S_MAX
    while len(finished_cells(tmp_path)) < 2 and time.monotonic() < deadline_s and first.poll() is None:
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept = finished_cells(tmp_path)
    assert len(kept) >= 2

    second = bench(tmp_path, env, *PLAN)
    out, err = second.communicate(timeout=BENCH_S_MAX)
    assert second.returncode == 0, err
    assert "going on with" in err
    assert "Capacity:" in out
    after = finished_cells(tmp_path)
    assert {name: after[name] for name in kept} == kept, "a finished cell was run again"
    assert not list(tmp_path.glob("latest/cells/.partial-*"))

    run = load_run(tmp_path / "latest")
    assert len(run.cells) == len(run.manifest["cells"]) == 4
    steady = next(cell for cell in run.cells if cell.record.spec.kind is CellKind.STEADY)
    assert set(steady.requests["outcome"]) == {"accepted"}
    assert set(steady.jobs["state"]) == {"ready"}
    assert {"worker", "api", "generator"} <= set(steady.samples["role"])
    conserved = {"planned = sent", "answers are 202 or a refusal", "accepted = kept", "stamps in order"}
    verdicts = [check for check in summarize(run).checks if check.name in conserved]
    assert {check.verdict.value for check in verdicts} == {"pass"}, verdicts

    text = (tmp_path / "latest" / "REPORT.md").read_text()
    assert str(tmp_path) not in text + json.dumps(run.environment) + json.dumps(run.manifest)


def test_a_plan_that_does_not_exist_is_wrong_use(tmp_path: Path, environment: Mapping[str, str]) -> None:
    process = bench(tmp_path, environment, "bench", "run", "--plan", "nonsense")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "nonsense" in err
