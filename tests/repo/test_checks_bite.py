"""Every house rule can fail: each is fed one small source that breaks it and one that does not."""

from collections.abc import Callable, Iterator

import pytest

from tests.repo.tidy import documents, owners, quantities, shape, statements, suppressions
from tests.repo.tidy.__main__ import RULES
from tests.repo.tidy.sources import Finding, Source, parse, unexcused

Rule = Callable[[Source], Iterator[Finding]]

LONG_FUNCTION = "def f() -> None:\n" + "    g()\n" * 50
LONG_DOCSTRING = 'def f() -> None:\n    """First.\n' + "\n" * 60 + '    """\n    g()\n'

#: rule, a source that breaks it, one that keeps it
CASES: list[tuple[Rule, str, str]] = [
    (shape.long_file, "x = 1\n" * 401, "x = 1\n" * 400),
    (shape.long_function, LONG_FUNCTION, LONG_DOCSTRING),
    (shape.silent_module, "x = 1\n", '"""What it is for."""\n'),
    (shape.relative_import, "from . import core\n", "from app import core\n"),
    (quantities.unitless_quantity, "def f(timeout: float) -> None: ...", "def f(timeout_s: float): ..."),
    (quantities.unitless_quantity, "def f(*, delay: int | None) -> None: ...", "def f(*, delay: Delay): ..."),
    (quantities.unitless_quantity, "class A:\n    batch_size: int", "class A:\n    batch_size_rows: int"),
    (quantities.unitless_quantity, "class A:\n    max_jobs: int = 3", "class A:\n    jobs_max: int = 3"),
    (quantities.unitless_quantity, "RETRY_MAX = 3", "RETRIES_MAX = 3"),
    (quantities.unitless_quantity, "POLL_INTERVAL = 60 * 5", "POLL_INTERVAL_S = 60 * 5"),
    (quantities.unitless_quantity, "def f(rate: float) -> None: ...", "def f(rate_per_s: float): ..."),
    (quantities.unitless_quantity, "def f(s_timeout: float) -> None: ...", "def f(wait: bool): ..."),
    (quantities.unitless_quantity, "def f(delays: list[float]) -> None: ...", "def f(delays_s: list[float]): ..."),
    (suppressions.unreasoned_suppression, "x = 1  # noqa", "x = 1  # noqa: S105 - not a secret"),
    (suppressions.unreasoned_suppression, "x = 1  # noqa: S105", "# It is public.\nx = 1  # noqa: S105"),
    (suppressions.unreasoned_suppression, "x = 1  # type: ignore", "x = 1  # type: ignore[misc]  # untyped library"),
    (suppressions.unreasoned_suppression, "# ruff: noqa: S105 - all of it\n", "# about ruff: its cache\n"),
    (suppressions.unreasoned_broad_except, "try: f()\nexcept Exception: pass", "try: f()\nexcept OSError: pass"),
    (suppressions.unreasoned_broad_except, "try: f()\nexcept: g()", "try: f()\nexcept:\n    g()\n    raise"),
    (
        suppressions.unreasoned_broad_except,
        "try: f()\nexcept (OSError, Exception): pass",
        "try: f()\n# The loop must live: it is counted and logged.\nexcept Exception: pass",
    ),
    (statements.sql_in_python, 'q = "SELECT 1"', 'q = "Select the file to send"'),
    (statements.sql_in_python, 'q = "COMMIT"', 'q = "DELETE"'),
    (statements.sql_in_python, 'q = f"insert into {t} values (1)"', '"""SELECT is said here."""'),
    (statements.sql_in_python, 'q = """\n  update jobs set a = 1"""', 'q = "update jobs when idle"'),
    (owners.foreign_import, "import asyncpg", "import asyncio"),
    (owners.foreign_import, "from fastapi.responses import Response", "from contracts.jobs import JobState"),
    (owners.foreign_import, "def f() -> None:\n    import no_such_library", "def f() -> None:\n    import json"),
]


def source_of(text: str, path: str = "app/edge.py") -> Source:
    source = parse(path, text)
    assert source is not None
    return source


@pytest.mark.parametrize(("rule", "bad", "good"), CASES)
def test_a_rule_catches_what_breaks_it_and_nothing_else(rule: Rule, bad: str, good: str) -> None:
    assert len(list(rule(source_of(bad)))) == 1
    assert list(rule(source_of(good))) == []


@pytest.mark.parametrize("path", ["app/utils.py", "worker/common/__init__.py", "tests/helpers.py"])
def test_a_name_that_fits_everything_is_caught(path: str) -> None:
    assert [finding.rule for finding in shape.banned_module(source_of("", path))] == ["module-name"]


def test_every_rule_of_the_run_has_a_case() -> None:
    assert set(RULES) == {rule for rule, *_ in CASES} | {shape.banned_module}


def test_a_line_opts_out_of_one_rule_with_a_reason_only() -> None:
    finding = Finding("app/edge.py", 1, "unit", "x")
    assert unexcused(source_of("x = 1  # tidy: unit - the library's own name\n"), [finding]) == []
    assert unexcused(source_of("x = 1  # tidy: unit\n"), [finding]) == [finding]
    assert unexcused(source_of("x = 1  # tidy: sql-string - not this one\n"), [finding]) == [finding]


def test_a_library_belongs_to_its_owner() -> None:
    assert list(owners.foreign_import(source_of("import asyncpg\n", "app/core/postgres.py"))) == []


def test_tests_may_import_anything_and_write_sql() -> None:
    source = source_of('import asyncpg\nq = "SELECT 1"\n', "tests/integration/test_edge.py")
    assert [*owners.foreign_import(source), *statements.sql_in_python(source)] == []


def test_a_module_that_nothing_uses_is_caught() -> None:
    lonely = source_of('"""Doc."""\n', "worker/lonely.py")
    user = source_of("from worker import lonely\nfrom app.main import run\n", "stack/cli.py")
    script = source_of('if __name__ == "__main__":\n    run()\n', "app/main.py")
    by_name = source_of('ARGS = ["-m", "worker.lonely"]\nimport app.main\n', "stack/cli.py")
    assert [f.path for f in owners.unused_module([lonely, script], ["stack.cli"])] == ["worker/lonely.py"]
    assert list(owners.unused_module([lonely, user, script], ["stack.cli:main"])) == []
    assert list(owners.unused_module([lonely, by_name, script], ["python -m stack.cli"])) == []
    by_file = source_of('PATH = Path(__file__).with_name("lonely.py")\n', "worker/main.py")
    assert list(owners.unused_module([lonely, by_file], ["worker.main"])) == []
    assert [f.path for f in owners.unused_module([user], [])] == ["stack/cli.py"]


def test_suppressions_are_counted_and_their_ceiling_may_only_fall() -> None:
    text = (
        "x = 1  # noqa: S105 - one two\ny = '# noqa'\nz = 1  # type: ignore[misc]  # one two\n"
        "w = 1  # tidy: unit - one two\ntry: f()\nexcept Exception: pass\n"
    )
    found = suppressions.counts([source_of(text)])
    assert found == {"noqa": 1, "type_ignore": 1, "tidy_skip": 1, "broad_except": 1}
    assert list(suppressions.off_ceiling(found, found)) == []
    assert "at most 0" in next(suppressions.off_ceiling(found, {**found, "noqa": 0})).message
    assert "lower it from 2" in next(suppressions.off_ceiling(found, {**found, "noqa": 2})).message


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("registry-host", ("https://py", "pi.org/simple")),
        ("registry-host", ("FROM ghcr", ".io/owner/image")),
        ("machine-path", ("cd /ro", "ot/project")),
        ("machine-path", ("see /ho", "me/alice/data")),
        ("machine-path", ("in `/wo", "rk/tree`")),
        ("secret", ("-----BEGIN RSA PRIVATE", " KEY-----")),
        ("secret", ("AKIA", "ABCDEFGHIJKLMNOP")),
    ],
)
def test_a_text_that_must_not_be_kept_is_caught(rule: str, parts: tuple[str, str]) -> None:
    assert [f.rule for f in documents.forbidden_text("a.txt", "".join(parts))] == [rule]


@pytest.mark.parametrize("text", ["/api/v1/rootless", "tests/root/file", "$HOME/work/x", "~/work", "network/work/a"])
def test_a_harmless_text_is_left_alone(text: str) -> None:
    assert list(documents.forbidden_text("a.txt", text)) == []


def test_a_dead_link_is_caught() -> None:
    text = "[a](there.md) [b](gone.md#part)\n[c](https://example.org/x) [d](#here)\n```\n[e](code.md)\n```\n"
    found = list(documents.dead_link("deploy/README.md", text, lambda path: path == "deploy/there.md"))
    assert [(f.line, f.message) for f in found] == [(1, "`gone.md`")]


def test_a_lock_without_hashes_or_with_an_address_is_caught() -> None:
    good = "# made by a tool\na==1 \\\n    --hash=sha256:00\nb==2 ; python_version < '3.12' \\\n    --hash=sha256:11\n"
    assert list(documents.loose_lock("requirements.lock", good)) == []
    scheme, host = "https", "example.org"  # in pieces, so that this file names no address that the check would refuse
    bad = f"--index-url {scheme}://{host}/simple\n{good}c==3\n    # via a\n"
    assert [f.rule for f in documents.loose_lock("requirements.lock", bad)] == ["lock-address", "lock-hash"]
