"""The rendered parts of ARCHITECTURE.md: transitions, their picture and the code map, all read from the code.

Invariant: a pure function of the tree, so equal code gives equal text, and a test can tell a stale document.
`python -m stack.docs` says whether it is stale (1 when it is); with `--write` it is rendered again.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.jobs import TRANSITIONS, Transition

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = "ARCHITECTURE.md"

#: Packages of the product, in the order in which a reader meets them.
PACKAGES = ("contracts", "app", "worker", "loadtest", "analysis", "stack", "migrations")

#: Names under which a module holds its SQL statements; `self._sql.claim` uses the block `claim`.
STATEMENT_HOLDERS = frozenset({"_sql", "sql", "_queries", "queries", "_QUERIES"})

#: How a part is found in the document.
PART = re.compile(r"(?P<open><!-- generated: (?P<name>[a-z-]+) -->\n).*?(?P<close><!-- /generated -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StatementUse:
    """One place in the product that runs a named SQL block; `function` is dotted from its module on."""

    block: str
    path: str
    line: int
    function: str


def product_modules(root: Path) -> list[Path]:
    """Return the product's modules, without empty `__init__` files, relative to `root`."""
    files = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return [path.relative_to(root) for path in files if path.stat().st_size > 0]


def statement_uses(root: Path) -> list[StatementUse]:
    """Return every use of a named SQL block in the product."""
    found: list[StatementUse] = []
    for path in product_modules(root):
        tree = ast.parse((root / path).read_text(encoding="utf-8"))
        found += (
            StatementUse(node.attr, path.as_posix(), node.lineno, function)
            for node, function in _attributes(tree, "")
            if _last_name(node.value) in STATEMENT_HOLDERS
        )
    return found


def _attributes(node: ast.AST, inside: str) -> Iterator[tuple[ast.Attribute, str]]:
    """Yield attribute accesses with the dotted name of the function or class around each."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute):
            yield child, inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _attributes(child, f"{inside}.{child.name}".lstrip("."))
        else:
            yield from _attributes(child, inside)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def render_transitions(root: Path) -> str:
    """Return the table of all arrows: state × event → next state, function, SQL block, log event."""
    functions: dict[str, list[str]] = {}
    for use in statement_uses(root):
        functions.setdefault(use.block, []).append(f"`{use.function}`")
    rows = (_transition_row(arrow, functions.get(arrow.statement, [])) for arrow in TRANSITIONS)
    head = "| state | event | next state | function | SQL block | log event |\n|---|---|---|---|---|---|\n"
    return head + "".join(rows)


def _transition_row(arrow: Transition, functions: list[str]) -> str:
    by = ", ".join(functions) or "not yet"
    return (
        f"| {arrow.state} | {arrow.event} | **{arrow.next_state}** | {by} "
        f"| `{arrow.statement}` | `{arrow.log_event}` |\n"
    )


def render_diagram() -> str:
    """Return the same arrows as a Mermaid state diagram; events between two states share one arrow."""
    events: dict[tuple[str, str], list[str]] = {}
    for arrow in TRANSITIONS:
        events.setdefault((arrow.state.value, arrow.next_state.value), []).append(arrow.event.value)
    sources = {source for source, _ in events}
    targets = {target for _, target in events}
    lines = [f"    [*] --> {state}: admit" for state in sorted(sources - targets)]
    lines += [f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in events.items()]
    lines += [f"    {state} --> [*]" for state in sorted(targets - sources)]
    return "```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n"


def render_code_map(root: Path) -> str:
    """Return one line a module: its path and the first line of its docstring."""
    return "".join(f"- `{path.as_posix()}`: {_summary(root / path)}\n" for path in product_modules(root))


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return docstring.splitlines()[0] if docstring else "(says nothing about itself)"


def render_document(text: str, root: Path) -> str:
    """Return the document with every generated part rendered anew.

    Raises:
        KeyError: the document has a part that nobody renders.
    """
    parts = {
        "transitions": render_transitions(root),
        "diagram": render_diagram(),
        "code-map": render_code_map(root),
    }
    return PART.sub(lambda part: part["open"] + parts[part["name"]] + part["close"], text)


def main(arguments: list[str]) -> int:
    """Compare or, with `--write`, render; returns the exit code."""
    document = ROOT / DOCUMENT
    text = document.read_text(encoding="utf-8")
    rendered = render_document(text, ROOT)
    if arguments == ["--write"]:
        document.write_text(rendered, encoding="utf-8")
    elif arguments:
        sys.stderr.write("usage: python -m stack.docs [--write]\n")
        return 2
    elif rendered != text:
        sys.stderr.write(f"{DOCUMENT} is stale: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
