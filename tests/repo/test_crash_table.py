"""ARCHITECTURE.md, "Crashes": every row of the table is shown by a test, and every test that it names is there."""

import ast
import re

from stack.docs import DOCUMENT
from tests.repo.tidy.sources import ROOT

TEXT = (ROOT / DOCUMENT).read_text(encoding="utf-8")
HEAD = ["dies here", "left behind", "who repairs it", "shown by"]
ROWS_MIN = 20
NAMED = re.compile(r"`(test_\w+)`")


def crash_rows(text: str) -> list[list[str]]:
    """Return the cells of the table's rows."""
    section = text.split("## 8. Crashes", 1)[1].split("\n## ", 1)[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in section.splitlines() if line[:1] == "|"
    ]
    assert rows[0] == HEAD
    return rows[2:]


def names_of_tests() -> set[str]:
    """Return the name of every test of ours."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in found if name.startswith("test_")}


def unshown(rows: list[list[str]], *, there: set[str]) -> list[str]:
    """Return what is dead without a witness: rows that name no test, and named tests that do not exist."""
    wrong = []
    for row in rows:
        named = NAMED.findall(row[-1])
        wrong += [row[0]] if not named or len(row) != len(HEAD) else []
        wrong += [name for name in named if name not in there]
    return wrong


def test_every_row_names_tests_that_exist() -> None:
    rows = crash_rows(TEXT)
    assert len(rows) >= ROWS_MIN
    assert unshown(rows, there=names_of_tests()) == []


def test_a_row_without_a_test_or_with_one_that_is_gone_is_seen() -> None:
    there = names_of_tests()
    assert unshown([["here", "that", "somebody", "nothing"]], there=there) == ["here"]
    assert unshown([["here", "that", "somebody", "`test_that_is_gone`"]], there=there) == ["test_that_is_gone"]
    assert unshown([["here", "that", "`test_every_row_names_tests_that_exist`"]], there=there) == ["here"]
