"""The rule that a quantity's name ends in its unit: `timeout_s`, `body_bytes_max`, `rate_per_s`.

Only numbers are judged (parameters, class fields, constants): an object that carries its own unit, such as
a `timedelta`, and a flag such as `wait: bool` need none. Width and height are pixels everywhere and are left
alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.repo.tidy.sources import Finding, Source


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TIME_WORDS = _words(
    "timeout delay interval duration deadline ttl latency elapsed backoff grace lease "
    "retention period age cooldown wait pause freshness"
)
AMOUNT_WORDS = _words("size length limit memory rss quota capacity budget rate throughput bandwidth side threshold")
TIME_UNITS = _words("s ms us ns minutes hours days")
OTHER_UNITS = _words("bytes kib mib gib px mp ratio share jitter fraction percent factor count")
UNITS = TIME_UNITS | OTHER_UNITS
#: Counted without a plural, or numbered.
UNCOUNTABLE = _words("concurrency prefetch flight load quality effort depth level version port orientation nice")
#: What may follow the unit.
QUALIFIER = re.compile(r"max|min|peak|total|mean|median|sum|floor|default|target|p\d+")
NUMBER = re.compile(r"\b(int|float|Decimal|\w+(Int|Float))\b")
NOT_A_NUMBER = re.compile(r"\b(dict|Mapping|Callable|Literal|str|bytes|bool|type|Iterator|Awaitable)\b")


def unitless_quantity(source: Source) -> Iterator[Finding]:
    """Yield every numeric name whose unit the reader would have to look up."""
    for name, line in _numeric_names(source.tree):
        complaint = complain(name.lower().strip("_"))
        if complaint:
            yield Finding(source.path, line, "unit", f"`{name}` {complaint}")


def complain(name: str) -> str | None:
    """Return what is wrong with the name of a number, or None."""
    words = name.split("_")
    if len(words) > 1 and words[0] in ("max", "min"):
        return f"puts the bound first: `{'_'.join(words[1:])}_{words[0]}`"
    bounded = words[-1] in ("max", "min")
    while len(words) > 1 and QUALIFIER.fullmatch(words[-1]):
        words.pop()
    singular = {word.replace("ies", "y").removesuffix("s") for word in words} | set(words)
    per_unit = len(words) > 1 and words[-2] == "per"
    if singular & TIME_WORDS and not (per_unit or words[-1] in TIME_UNITS | OTHER_UNITS - {"bytes", "px"}):
        return "is a time without its unit at the end (_s, _ms)"
    if singular & AMOUNT_WORDS and not (per_unit or _counts(words[-1])):
        return "is an amount without its unit at the end (_bytes, _px, _per_s, or what it counts)"
    if bounded and not (per_unit or any(_counts(word) for word in words)):
        return "bounds something that is neither a unit nor a plural"
    return None


def _counts(word: str) -> bool:
    """Whether the word is a unit, or a plural and so says what is counted."""
    if word.rstrip("s") in TIME_WORDS | AMOUNT_WORDS:
        return False
    plural = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))
    return plural or word in UNITS | UNCOUNTABLE


def _numeric_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                if _is_number(arg.annotation):
                    yield arg.arg, arg.lineno
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and _is_number(field.annotation)
                ):
                    yield field.target.id, field.lineno
    yield from _numeric_constants(tree)


def _numeric_constants(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id.isupper() and value is not None and _is_numeric_literal(value):
            yield target.id, node.lineno


def _is_numeric_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_numeric_literal(node.left) and _is_numeric_literal(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_number(annotation: ast.expr | None) -> bool:
    text = ast.unparse(annotation) if annotation else ""
    return bool(NUMBER.search(text)) and not NOT_A_NUMBER.search(text)
