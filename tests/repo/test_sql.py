"""The named SQL blocks: described, used by exactly one function each, and all that are asked for exist."""

import re
from pathlib import Path

import pytest

from contracts.jobs import TRANSITIONS, JobState
from stack.docs import PACKAGES, statement_uses
from tests.repo.tidy.sources import ROOT

FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.sql")) if package != "migrations"]
BLOCK = re.compile(r"^-- name: *(?P<name>\w+)(?P<kind>\W*)\n(?P<body>.*?)(?=^-- name:|\Z)", re.DOTALL | re.MULTILINE)
DESCRIPTION = re.compile(r"-- \w+\W+\w+\W+\w+")


def blocks_of(text: str) -> dict[str, str]:
    return {match["name"]: match["body"] for match in BLOCK.finditer(text)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_block_says_in_words_what_it_does(path: Path) -> None:
    blocks = blocks_of(path.read_text(encoding="utf-8"))
    assert blocks
    assert [name for name, body in blocks.items() if not DESCRIPTION.match(body)] == []


def test_every_block_is_used_by_exactly_one_function_and_no_name_is_used_twice() -> None:
    names = [name for path in FILES for name in blocks_of(path.read_text(encoding="utf-8"))]
    uses = statement_uses(ROOT)
    users = {name: {f"{use.path}:{use.function}" for use in uses if use.block == name} for name in names}
    assert sorted(names) == sorted(set(names))
    assert {name: found for name, found in users.items() if len(found) != 1} == {}


def test_no_statement_is_asked_for_that_is_not_there() -> None:
    names = {name for path in FILES for name in blocks_of(path.read_text(encoding="utf-8"))}
    assert [f"{use.path}:{use.line}: {use.block}" for use in statement_uses(ROOT) if use.block not in names] == []


def test_the_arrows_and_states_of_the_database_are_those_of_the_table() -> None:
    migrations = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "migrations/sql").glob("*.sql")))
    inserted = "".join(re.findall(r"INSERT INTO spillway\.arrows[^;]*;", migrations))
    arrows = set(re.findall(r"\('(\w+)', '(\w+)'\)", inserted))
    assert arrows == {(arrow.state.value, arrow.next_state.value) for arrow in TRANSITIONS}
    known = re.findall(r"CONSTRAINT jobs_state_known CHECK \(state IN \(([^)]*)\)", migrations)[-1]
    assert set(re.findall(r"'(\w+)'", known)) == {state.value for state in JobState}


def test_a_block_without_a_description_is_seen() -> None:
    blocks = blocks_of("-- name: claim^\n-- Take a queued job.\nSELECT 1;\n\n-- name: bare\nSELECT 2;\n")
    assert [bool(DESCRIPTION.match(body)) for body in blocks.values()] == [True, False]
