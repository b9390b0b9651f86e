"""Rules on switching rules off: only by code, only with a reason, and never more often than now.

Counted are `noqa`, `type: ignore`, `tidy:` and handlers of every exception; the ceilings, in ceilings.json,
may only fall: a lower count asks for a lower ceiling.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from tests.repo.tidy.sources import SKIP, Finding, Source

NOQA = re.compile(r"#\s*noqa\b(?P<codes>:\s*[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*)?(?P<rest>.*)", re.IGNORECASE)
TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(?P<codes>\[[\w, -]+\])?(?P<rest>.*)")
WHOLE_FILE = re.compile(r"#\s*(ruff|flake8|mypy|pyright)\s*:")
REASON = re.compile(r"[A-Za-z]+\W+[A-Za-z]+")


def unreasoned_suppression(source: Source) -> Iterator[Finding]:
    """Every `noqa` and `type: ignore` names its code and why; none covers a whole file."""
    for line, comment in source.comments().items():
        if WHOLE_FILE.match(comment):
            yield Finding(source.path, line, "suppression", "covers a whole file")
        for pattern in (NOQA, TYPE_IGNORE):
            match = pattern.search(comment)
            if match and not match["codes"]:
                yield Finding(source.path, line, "suppression", "names no code")
            elif match and not (REASON.search(match["rest"]) or REASON.search(source.comment_above(line))):
                yield Finding(source.path, line, "suppression", "gives no reason, here or in the line above")


def unreasoned_broad_except(source: Source) -> Iterator[Finding]:
    """Who catches everything and does not raise it again says in a comment why nothing is lost."""
    comments = source.comments()
    for handler in broad_handlers(source):
        said = NOQA.sub(r"\g<rest>", comments.get(handler.lineno, "")) + source.comment_above(handler.lineno)
        if not REASON.search(said):
            yield Finding(source.path, handler.lineno, "broad-except", "gives no reason, here or in the line above")


def broad_handlers(source: Source) -> Iterator[ast.ExceptHandler]:
    """Yield the handlers that end every exception there is; one whose last step is `raise` ends none."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {ast.unparse(item) if item else "BaseException" for item in caught}
            raised = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if names & {"Exception", "BaseException"} and not raised:
                yield node


def counts(sources: Iterable[Source]) -> dict[str, int]:
    """Count what the ceilings hold."""
    found = {"noqa": 0, "type_ignore": 0, "tidy_skip": 0, "broad_except": 0}
    for source in sources:
        comments = source.comments().values()
        found["noqa"] += sum(bool(NOQA.search(comment)) for comment in comments)
        found["type_ignore"] += sum(bool(TYPE_IGNORE.search(comment)) for comment in comments)
        found["tidy_skip"] += sum(bool(SKIP.search(comment)) for comment in comments)
        found["broad_except"] += sum(1 for _ in broad_handlers(source))
    return found


def off_ceiling(found: dict[str, int], ceilings: dict[str, int]) -> Iterator[Finding]:
    """Yield each count that rose above its ceiling, and each that has fallen and left it too high."""
    for name, count in sorted(found.items()):
        ceiling = ceilings.get(name, 0)
        if count > ceiling:
            yield Finding("tests/repo/ceilings.json", 1, "ceiling", f"{name}: {count}, at most {ceiling}")
        elif count < ceiling:
            yield Finding(
                "tests/repo/ceilings.json", 1, "ceiling", f"{name}: only {count} now, lower it from {ceiling}"
            )
