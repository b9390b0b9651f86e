"""Every standard-library check in one run: prints the findings, exits 1 when there are any.

`--lower` writes the ceilings that have fallen; one that must rise is raised by hand, where a review sees it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from tests.repo.tidy import contract, documents, owners, quantities, shape, statements, suppressions
from tests.repo.tidy.sources import ROOT, Finding, Source, load, repository_paths, unexcused

Rule = Callable[[Source], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    shape.long_file,
    shape.long_function,
    shape.silent_module,
    shape.banned_module,
    shape.relative_import,
    quantities.unitless_quantity,
    suppressions.unreasoned_suppression,
    suppressions.unreasoned_broad_except,
    statements.sql_in_python,
    owners.foreign_import,
)

CEILINGS = "tests/repo/ceilings.json"
TEXT_BYTES_MAX = 2_000_000


def code_findings(root: Path) -> list[Finding]:
    """Return what is wrong with the Python files under `root`."""
    paths = repository_paths(root)
    sources = load(root, paths)
    found = [f for source in sources for rule in RULES for f in unexcused(source, rule(source))]
    if len(sources) == sum(path.endswith(".py") for path in paths):
        # With files unread, what they use and suppress is not known.
        found += owners.unused_module(sources, _starters(root))
        found += suppressions.off_ceiling(suppressions.counts(sources), _ceilings(root))
    return found


def document_findings(root: Path) -> list[Finding]:
    """Return what is wrong with the texts of the repository, code or not."""
    found: list[Finding] = []
    for path in repository_paths(root):
        text = read_text(root / path)
        found += documents.forbidden_text(path, text)
        if path.endswith(".md"):
            found += documents.dead_link(path, text, lambda target: (root / target).exists())
        if path.startswith("requirements"):
            found += documents.loose_lock(path, text)
    return found + list(contract.contract_findings(root))


def read_text(path: Path) -> str:
    """Return the file's text, or nothing when it is an image or too large to be read by people."""
    if path.stat().st_size > TEXT_BYTES_MAX:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def _starters(root: Path) -> list[str]:
    """Texts outside Python that start modules of the product by name."""
    names = [path for path in repository_paths(root) if Path(path).name in ("pyproject.toml", "Makefile", "run")]
    names += [path for path in repository_paths(root) if path.endswith((".yaml", ".yml", ".ini", "Dockerfile"))]
    return [read_text(root / name) for name in names]


def _ceilings(root: Path) -> dict[str, int]:
    ceilings: dict[str, int] = json.loads((root / CEILINGS).read_text(encoding="utf-8"))
    return ceilings


def lower_ceilings(root: Path) -> None:
    """Write each ceiling whose count has fallen; none rises."""
    old = _ceilings(root)
    now = suppressions.counts(load(root, repository_paths(root)))
    new = {name: min(count, old.get(name, 0)) for name, count in sorted(now.items())}
    (root / CEILINGS).write_text(json.dumps(new, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run every rule and return the exit code."""
    if arguments == ["--lower"]:
        lower_ceilings(ROOT)
    try:
        found = code_findings(ROOT) + document_findings(ROOT)
    except SyntaxError as error:
        found = [Finding(str(error.filename), error.lineno or 1, "syntax", error.msg)]
    for finding in sorted(found):
        sys.stderr.write(f"{finding}\n")
    sys.stderr.write(f"tidy: {len(found)} findings\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
