""".env.example documents every variable, with its unit and its true default, and no other.

Its form: a block of comment lines says what the variable does; the line below is `SPILLWAY_NAME=default`, or
`#SPILLWAY_NAME=default`, or nothing after the sign where the default is empty or none.
"""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import SecretStr, TypeAdapter

from app.core.settings import PREFIX, Settings
from stack.docs import product_modules
from tests.repo.tidy.sources import ROOT

VARIABLE = re.compile(rf"^#? ?(?P<name>{PREFIX}[A-Z0-9_]+)=(?P<value>.*)$")
IN_CODE = re.compile(rf"\"({PREFIX}[A-Z0-9_]+)\"")
IN_COMPOSE = re.compile(rf"\$\{{({PREFIX}[A-Z0-9_]+)")
WORDS_MIN = 4

#: Set by the local stack in the environment of its children, never by a person.
INTERNAL = {f"{PREFIX}STACK_ID"}

#: The last words of a name that are units, and how the text says them.
UNITS = {
    "per_s": re.compile(r"\b(per|a) second\b"),
    "s": re.compile(r"\bseconds?\b", re.IGNORECASE),
    "bytes": re.compile(r"\b(bytes|[KMG]iB)\b"),
    "px": re.compile(r"\bpixels?\b"),
    "pixels": re.compile(r"\bpixels\b"),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One documented variable."""

    effect: str
    value: str


def entries_of(text: str) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    comments: list[str] = []
    for line in text.splitlines():
        variable = VARIABLE.match(line)
        if variable:
            assert variable["name"] not in found, f"{variable['name']} is documented twice"
            found[variable["name"]] = Entry(" ".join(comments), variable["value"].strip())
            comments = []
        else:
            comments = [*comments, line.strip("# ")] if line.startswith("#") else []
    return found


def unit_of(name: str) -> str | None:
    """Return the unit in a variable's name, bounds and all: `UPLOAD_BYTES_MAX` is in bytes."""
    bare = re.sub(r"_(max|min)$", "", name.lower())
    return next((unit for unit in UNITS if bare.endswith(f"_{unit}")), None)


def plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


@pytest.fixture(scope="module")
def entries() -> dict[str, Entry]:
    return entries_of((ROOT / ".env.example").read_text(encoding="utf-8"))


@pytest.mark.parametrize("field", Settings.model_fields)
def test_a_setting_is_documented_with_effect_unit_and_default(field: str, entries: dict[str, Entry]) -> None:
    info = Settings.model_fields[field]
    entry = entries[PREFIX + field.upper()]
    assert len(entry.effect.split()) >= WORDS_MIN
    unit = unit_of(field)
    assert unit is None or UNITS[unit].search(entry.effect), f"the text does not say the unit: {entry.effect}"
    default = plain(info.get_default(call_default_factory=True))
    if entry.value:
        assert info.annotation is not None
        assert plain(TypeAdapter(info.annotation).validate_python(entry.value)) == default
    else:
        assert default in (None, "", ())


def test_every_documented_variable_is_read_somewhere(entries: dict[str, Entry]) -> None:
    settings = {PREFIX + field.upper() for field in Settings.model_fields}
    assert entries.keys() - settings - variables_in_code() == set()


def test_every_variable_that_the_code_names_is_documented(entries: dict[str, Entry]) -> None:
    assert variables_in_code() - INTERNAL - entries.keys() == set()


def variables_in_code() -> set[str]:
    in_code = {name for path in product_modules(ROOT) for name in IN_CODE.findall((ROOT / path).read_text("utf-8"))}
    return in_code | set(IN_COMPOSE.findall((ROOT / "compose.yaml").read_text("utf-8")))


def test_a_documented_variable_is_read_with_its_text_and_value() -> None:
    text = f"# Ignored head\n\n# How long,\n# in seconds.\n{PREFIX}A_S=2.0\n#{PREFIX}B=\n"
    assert entries_of(text) == {f"{PREFIX}A_S": Entry("How long, in seconds.", "2.0"), f"{PREFIX}B": Entry("", "")}


def test_the_unit_of_a_name_is_found() -> None:
    names = ["JOB_LEASE_S", "UPLOAD_BYTES_MAX", "UPLOAD_RATE_BYTES_PER_S_MIN", "SIDE_PX_MAX", "JOBS_MAX"]
    assert [unit_of(name) for name in names] == ["s", "bytes", "per_s", "px", None]
