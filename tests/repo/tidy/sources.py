"""What the rules look at: the repository's files and their syntax trees.

Invariant: nothing here or in the rules writes a file or imports the code that is judged.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]

#: Top-level packages of the product; everything else is tests, documents or configuration.
PRODUCT = ("contracts", "app", "worker", "loadtest", "analysis", "stack", "migrations")

#: Folders that are never part of the repository, for trees without git.
UNTRACKED_FOLDERS = frozenset({".git", ".venv", ".cache", "__pycache__", "data", "bench-runs", ".hypothesis"})

#: Several rules ask for the comments of a file, one rule after the other.
FILES_IN_HAND_MAX = 16

#: Whether this Python is new enough for the syntax of the product (3.11).
READS_PRODUCT = hasattr(ast, "TryStar")

#: How a line opts out of one rule: `# tidy: <rule> - <reason>`.
SKIP = re.compile(r"#\s*tidy:\s*(?P<rule>[a-z-]+)\s+-\s+(?P<reason>\w+\W+\w+.*)")


class Finding(NamedTuple):
    """One violation, at a place that an editor can open."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


class Source(NamedTuple):
    """One Python file; `path` is relative to the repository, with forward slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def is_product(self) -> bool:
        """Whether the file belongs to the product (not to its tests)."""
        return self.path.split("/")[0] in PRODUCT

    @property
    def module(self) -> str:
        """Dotted name; a package's is that of its folder."""
        return self.path[: -len(".py")].replace("/", ".").replace(".__init__", "")

    def comments(self) -> dict[int, str]:
        """Comment text by line number."""
        return _comments_of(self.text)

    def comment_above(self, line: int) -> str:
        """Return the comment that fills the line above `line`, or nothing."""
        above = self.text.splitlines()[line - 2].strip() if line > 1 else ""
        return above if above.startswith("#") else ""


@lru_cache(maxsize=FILES_IN_HAND_MAX)
def _comments_of(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def repository_paths(root: Path) -> list[str]:
    """Return the files under version control or about to be, or all but known debris where git cannot say."""
    git = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(git, capture_output=True, check=True, timeout=30).stdout.decode()
    except (OSError, subprocess.SubprocessError):
        return sorted(_walk(root))
    return sorted({path for path in listed.split("\0") if path and (root / path).is_file()})


def _walk(root: Path) -> Iterable[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in UNTRACKED_FOLDERS]
        for name in names:
            yield (Path(folder) / name).relative_to(root).as_posix()


def parse(path: str, text: str) -> Source | None:
    """Return the parsed file, or None where this Python is older than the syntax in it."""
    try:
        return Source(path, text, ast.parse(text, filename=path))
    except SyntaxError:
        if READS_PRODUCT:
            raise
        return None


def load(root: Path, paths: Iterable[str]) -> list[Source]:
    """Parse every Python file among `paths`; says on stderr which ones this Python cannot read."""
    sources = []
    for path in paths:
        if path.endswith(".py"):
            source = parse(path, (root / path).read_text(encoding="utf-8"))
            if source is None:
                sys.stderr.write(f"{path}: left to a newer Python\n")
            else:
                sources.append(source)
    return sources


def unexcused(source: Source, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings on lines that do not opt out of their rule with a reason."""
    skips = {line: SKIP.search(text) for line, text in source.comments().items()}
    return [f for f in findings if not ((skip := skips.get(f.line)) and skip["rule"] == f.rule)]
