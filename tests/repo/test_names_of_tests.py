"""Tests run beside each other in several processes, which must agree on what tests there are."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.repo.tidy.sources import ROOT

#: Calls that give each process another value.
DIFFERENT = frozenset({"uuid1", "uuid4", "now", "time", "monotonic", "token_hex", "random", "randint"})


def different_calls(text: str) -> Iterator[int]:
    """Yield the lines where the parameters of a test differ from process to process."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (node for decorator in function.decorator_list for node in ast.walk(decorator)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in DIFFERENT:
                yield node.lineno


def test_the_parameters_of_a_test_are_the_same_in_every_process() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(Path(ROOT / "tests").rglob("test_*.py"))
        for line in different_calls(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_parameter_that_differs_is_seen() -> None:
    text = '@pytest.mark.parametrize("id", ["x", f"{uuid.uuid4()}"])\ndef test_it(id): ...\n'
    assert list(different_calls(text)) == [1]
    assert list(different_calls(text.replace("uuid.uuid4()", "NOBODYS_ID"))) == []
