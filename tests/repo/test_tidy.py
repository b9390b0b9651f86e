"""The house rules hold for the whole repository; the rules themselves are in the folder `tidy`."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.repo.tidy.__main__ import code_findings
from tests.repo.tidy.sources import ROOT, repository_paths


def test_the_code_keeps_the_house_rules() -> None:
    assert [str(finding) for finding in code_findings(ROOT)] == []


def test_the_rules_are_written_for_python_3_9() -> None:
    for path in sorted((ROOT / "tests/repo/tidy").glob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_the_rules_import_nothing_but_the_standard_library() -> None:
    for path in sorted((ROOT / "tests/repo/tidy").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert all(name.split(".")[0] in {*sys.stdlib_module_names, "tests"} for name in names), path


def test_a_tree_without_git_is_judged_as_well(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/edge.py").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/theirs.py").write_text("")
    assert repository_paths(tmp_path) == ["app/edge.py"]


def test_the_script_prints_each_finding_and_tells_its_verdict_by_exit_code() -> None:
    command = [sys.executable, "-m", "tests.repo.tidy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    *findings, verdict = done.stderr.splitlines()
    assert verdict == f"tidy: {len(findings)} findings"
    assert done.returncode == (1 if findings else 0)
