"""ARCHITECTURE.md says what the code does: its generated parts are fresh, and every name in it exists."""

import ast
import re
from pathlib import Path

import pytest

from contracts.jobs import TRANSITIONS
from stack.docs import DOCUMENT, PACKAGES, PART, product_modules, render_document, render_transitions
from tests.repo.tidy.sources import ROOT

TEXT = (ROOT / DOCUMENT).read_text(encoding="utf-8")
#: Dotted names in code marks, such as `app.core.jobstore.JobStore.claim`.
NAMED = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?:\(\))?`")
FILE_NAMED = re.compile(rf"`((?:{'|'.join(PACKAGES)}|tests)/[\w./-]+)`")

#: Statements that are there and tested, but that no role runs yet.
NO_ROLE_YET = {"replay"}


def test_the_generated_parts_are_rendered_from_this_code() -> None:
    assert sorted(part["name"] for part in PART.finditer(TEXT)) == ["code-map", "diagram", "transitions"]
    assert render_document(TEXT, ROOT) == TEXT, "stale: make docs"


def test_a_stale_part_is_seen_and_an_unknown_one_is_refused() -> None:
    stale = TEXT.replace("| `job.accepted` |", "| `job.taken` |")
    assert stale != TEXT
    assert render_document(stale, ROOT) == render_document(TEXT, ROOT)
    with pytest.raises(KeyError):
        render_document("<!-- generated: nobodys -->\n<!-- /generated -->\n", ROOT)


def test_every_transition_is_made_by_a_function() -> None:
    assert "not yet" not in render_transitions(ROOT)


def test_every_module_has_one_line_in_the_code_map() -> None:
    lines = TEXT.splitlines()
    for path in product_modules(ROOT):
        assert sum(line.startswith(f"- `{path.as_posix()}`: ") for line in lines) == 1, path


def test_every_log_event_of_a_transition_is_logged_by_some_role() -> None:
    code = [(ROOT / path).read_text(encoding="utf-8") for path in product_modules(ROOT) if path.parts[0] != "contracts"]
    events = {arrow.log_event for arrow in TRANSITIONS if arrow.statement not in NO_ROLE_YET}
    assert {event for event in events if not any(f'"{event}"' in text for text in code)} == set()


def test_every_name_in_the_text_exists() -> None:
    missing = {name for name in NAMED.findall(TEXT) if not resolves(name, ROOT)}
    missing |= {path for path in FILE_NAMED.findall(TEXT) if not (ROOT / path).exists()}
    assert missing == set()


def test_a_name_that_is_gone_is_seen() -> None:
    assert resolves("contracts.jobs.Transition.statement", ROOT)
    assert resolves("contracts.jobs", ROOT)
    assert resolves("contracts", ROOT)
    assert not resolves("contracts.jobs.Transition.gone", ROOT)
    assert not resolves("contracts.gone", ROOT)


def resolves(name: str, root: Path) -> bool:
    """Tell whether a dotted name is a package, a module, or something that a module defines."""
    parts = name.split(".")
    for length_parts in range(len(parts), 0, -1):
        place = root.joinpath(*parts[:length_parts])
        if place.is_dir():
            return length_parts == len(parts)
        if place.with_suffix(".py").is_file():
            return _defines(ast.parse(place.with_suffix(".py").read_text(encoding="utf-8")), parts[length_parts:])
    return False


def _defines(node: ast.AST, parts: list[str]) -> bool:
    if not parts:
        return True
    return any(_name_of(child) == parts[0] and _defines(child, parts[1:]) for child in ast.iter_child_nodes(node))


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.AnnAssign | ast.Assign):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        return target.id if isinstance(target, ast.Name) else ""
    return str(getattr(node, "name", ""))
