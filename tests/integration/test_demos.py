"""The demonstrations as a person runs them: each tells only what it has seen, ends by itself, and leaves nothing."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from stack.demo_stage import NotSoError, Stage
from stack.demos import DEMOS
from tests.repo.tidy.sources import ROOT

DEMO_S_MAX = 180.0
#: The one that runs with every test; the others take their time with the long ones.
QUICK_ONE = "crash-after-commit"


def left_over(folder: Path) -> list[str]:
    """Return what a demonstration has left in the folder for temporary files."""
    return [path.name for path in folder.glob("spillway-demo-*")]


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of processes that name the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return [line for line in found if str(folder) in line]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK_ONE else pytest.mark.long) for name in DEMOS]
)
def test_a_demonstration_holds_and_leaves_nothing(name: str, environment: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="spillway-test-demo-") as kept:
        folder = Path(kept)
        folder.chmod(0o755)  # the servers may run as another user
        ended = subprocess.run(
            [sys.executable, "-m", "stack.cli", "demo", name],
            cwd=ROOT,
            env={**environment, "TMPDIR": kept, "SPILLWAY_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"},
            capture_output=True,
            text=True,
            timeout=DEMO_S_MAX,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == ""
        assert "✗" not in ended.stderr
        assert ended.stderr.count("✓") >= 5
        assert left_over(folder) == []
        assert processes_of(folder) == []


def test_what_is_not_so_ends_a_demonstration() -> None:
    stage = Stage(Console(stderr=True), {})
    stage.sees("a thing that holds", holds=True)
    with pytest.raises(NotSoError, match="a thing that does not"):
        stage.sees("a thing that does not", holds=False)
    with pytest.raises(NotSoError, match="never"):
        stage.until(lambda: None, "never")
