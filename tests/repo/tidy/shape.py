"""Rules on the shape of files and functions: length, docstrings, names of modules, kinds of import.

Invariant: every limit is a named constant here and nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.tidy.sources import Finding, Source

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50

#: Names under which things end up that have no place of their own.
BANNED_MODULES = frozenset({"util", "utils", "common", "helper", "helpers", "manager", "misc", "base"})


def long_file(source: Source) -> Iterator[Finding]:
    """Files stay short enough to be read in one go."""
    count = len(source.text.splitlines())
    if count > FILE_LINES_MAX:
        yield Finding(source.path, 1, "file-length", f"{count} lines, at most {FILE_LINES_MAX}")


def long_function(source: Source) -> Iterator[Finding]:
    """Functions stay short; the docstring does not count."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            count = _lines(node) - _docstring_lines(node)
            if count > FUNCTION_LINES_MAX:
                message = f"{node.name} has {count} lines, at most {FUNCTION_LINES_MAX}"
                yield Finding(source.path, node.lineno, "function-length", message)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return _lines(node.body[0]) if ast.get_docstring(node, clean=False) is not None else 0


def silent_module(source: Source) -> Iterator[Finding]:
    """Every module of the product says its purpose; an empty `__init__` has none of its own."""
    empty_package = source.path.endswith("__init__.py") and not source.tree.body
    if source.is_product and not empty_package and not ast.get_docstring(source.tree):
        yield Finding(source.path, 1, "module-docstring", "says neither its purpose nor its invariant")


def banned_module(source: Source) -> Iterator[Finding]:
    """No file or folder has a name that fits everything."""
    for part in source.path[: -len(".py")].split("/"):
        if part in BANNED_MODULES:
            yield Finding(source.path, 1, "module-name", f"`{part}` says nothing about what is in it")


def relative_import(source: Source) -> Iterator[Finding]:
    """Imports name the whole path, so that a search for a module finds every use."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield Finding(source.path, node.lineno, "relative-import", "name the module in full")
