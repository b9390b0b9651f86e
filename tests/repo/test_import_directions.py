"""Every contract of import-linter in pyproject.toml can be broken: a dummy tree breaks each once."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.repo.tidy.sources import ROOT

LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]

#: Contract -> an import that breaks it: where it stands, what it says.
VIOLATIONS = {
    "Layers, top to bottom, never up": ("app/core/low.py", "import app.api.high"),
    "The worker sees of app only app.core": ("worker/low.py", "import app.uploads"),
    "The bench measures from outside": ("analysis/low.py", "import app.core"),
    "What all processes agree on does no I/O": ("contracts/low.py", "import socket"),
    "Migrations know nothing of the code that runs on them": ("migrations/low.py", "import contracts"),
    "No two modules of a package need each other": ("worker/low.py", "import worker.high"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree of empty modules that has every module which the contracts name."""
    names = {name for contract in LINTER["contracts"] for name in module_names(contract)}
    for name in names | {f"{package}.{file}" for package in LINTER["root_packages"] for file in ("low", "high")}:
        path = tmp_path / name.replace(".", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name.replace(".", "/")).is_dir():
            path.mkdir(exist_ok=True)
        else:
            path.with_suffix(".py").touch()
    for file in ("app/core/low.py", "app/api/high.py"):
        (tmp_path / file).touch()
    (tmp_path / "worker/high.py").write_text("import worker.low\n")
    for folder in [path for path in tmp_path.rglob("*") if path.is_dir()]:
        (folder / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def module_names(contract: dict[str, list[str]]) -> set[str]:
    groups = (contract.get(key, []) for key in ("layers", "ancestors", "source_modules", "forbidden_modules"))
    names = {name.strip() for group in groups for text in group for name in text.split("|")}
    return {name for name in names if name.split(".")[0] in LINTER["root_packages"]}


def broken(tree: Path) -> set[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], cwd=tree, capture_output=True, text=True, check=False, timeout=60, env={"PATH": ""}
    )
    verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)$", done.stdout, re.MULTILINE))
    assert verdicts.keys() == {contract["name"] for contract in LINTER["contracts"]}, done.stdout + done.stderr
    return {name for name, verdict in verdicts.items() if verdict == "BROKEN"}


def test_every_contract_has_a_violation_here() -> None:
    assert VIOLATIONS.keys() == {contract["name"] for contract in LINTER["contracts"]}


def test_every_part_of_app_but_its_core_is_closed_to_the_worker() -> None:
    parts = {f"app.{path.stem}" for path in (ROOT / "app").iterdir() if path.suffix == ".py" or path.is_dir()}
    closed = next(c["forbidden_modules"] for c in LINTER["contracts"] if c["name"].startswith("The worker sees"))
    assert set(closed) == parts - {"app.core", "app.__init__", "app.__pycache__"}


def test_a_tree_that_keeps_the_directions_passes(tree: Path) -> None:
    assert broken(tree) == set()


def test_each_contract_is_broken_by_its_violation(tree: Path) -> None:
    for file, line in VIOLATIONS.values():
        with (tree / file).open("a") as module:
            module.write(f"{line}\n")
    assert broken(tree) == set(VIOLATIONS)
