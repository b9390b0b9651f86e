"""`make` on machines that are not ready: each gets a sentence that says what to do, and nothing is left half made.

The Python that make finds is a stand-in of five lines here, since what is tested is make's own judgement.
"""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.repo.tidy.sources import ROOT

TARGETS = {"setup", "check", "check-std", "test", "test-long", "bench", "bench-full", "report", "lock", "up", "down"}

#: Answers the probes of make as the environment variables say, makes environments of itself, and keeps a journal.
STAND_IN = """#!/bin/sh
echo "$*" >>"$JOURNAL"
case "$*" in
*version_info*) exit "${TOO_OLD:-0}" ;;
*"import ensurepip"*) exit "${NO_ENSUREPIP:-0}" ;;
*"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*"--require-hashes"*) exit "${NO_NETWORK:-0}" ;;
esac
"""


class Machine:
    """A folder with our Makefile and a PATH that holds a stand-in for Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        (folder / "bin").mkdir()
        for tool in ("awk", "cat", "cksum", "cut", "env", "mkdir", "cp", "rm", "sh"):
            found = shutil.which(tool)
            assert found is not None
            (folder / "bin" / tool).symlink_to(found)
        for name in ("Makefile", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)

    def add_python(self, name: str = "python3") -> None:
        path = self.folder / "bin" / name
        path.write_text(STAND_IN)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        self.journal.write_text("")
        make = shutil.which("make")
        assert make is not None
        env = {"PATH": str(self.folder / "bin"), "HOME": "", "JOURNAL": str(self.journal), **variables}
        command = [make, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=60
        )

    def calls(self, part: str) -> int:
        return sum(part in line for line in self.journal.read_text().splitlines())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_make_alone_lists_every_target(machine: Machine) -> None:
    listed = {line.split()[0] for line in machine.make().stdout.splitlines()}
    assert listed >= TARGETS


def test_without_python_the_message_says_what_is_missing(machine: Machine) -> None:
    done = machine.make("setup")
    assert done.returncode != 0
    assert "no Python 3.11 or newer" in done.stderr
    assert "Error 3" in done.stderr


def test_an_old_python_counts_as_none(machine: Machine) -> None:
    machine.add_python()
    assert "no Python 3.11 or newer" in machine.make("setup", TOO_OLD="1").stderr


def test_a_python_that_cannot_make_environments_gets_a_message_of_its_own(machine: Machine) -> None:
    machine.add_python()
    done = machine.make("setup", NO_ENSUREPIP="1")
    assert "python3-venv" in done.stderr
    assert "Error 3" in done.stderr


def test_a_python_of_ones_own_is_taken_first(machine: Machine) -> None:
    machine.add_python()
    machine.add_python("mine")
    assert "new environment from mine" in machine.make("venv", "PYTHON=mine").stderr


def test_the_second_setup_installs_nothing(machine: Machine) -> None:
    machine.add_python()
    assert machine.make("setup").returncode == 0
    assert machine.calls("--require-hashes") == 1
    assert machine.make("setup").returncode == 0
    assert machine.calls("pip") == 0


def test_the_servers_are_looked_for_at_every_setup(machine: Machine) -> None:
    machine.add_python()
    for _ in range(2):
        machine.make("setup")
        assert machine.calls("stack.rabbit_fetch") == 1


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_changed_project_is_installed_again_into_the_same_environment(machine: Machine, name: str) -> None:
    machine.add_python()
    machine.make("setup")
    with (machine.folder / name).open("a") as file:
        file.write("# changed\n")
    assert machine.make("setup").returncode == 0
    assert (machine.calls("-m venv"), machine.calls("--require-hashes")) == (0, 1)


def test_an_interrupted_setup_starts_anew(machine: Machine) -> None:
    machine.add_python()
    assert machine.make("setup", NO_NETWORK="1").returncode != 0
    leftover = machine.folder / ".venv/leftover"
    leftover.write_text("")
    assert machine.make("setup").returncode == 0
    assert not leftover.exists()


def test_a_folder_that_was_moved_gets_an_environment_of_its_own(machine: Machine, tmp_path: Path) -> None:
    machine.add_python()
    machine.make("venv")
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    machine.folder, machine.journal = moved, moved / "journal"
    assert "new environment" in machine.make("venv").stderr


def test_the_tests_of_the_ci_are_those_of_the_readme() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
