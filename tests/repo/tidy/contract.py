"""Rules on `contracts/` that need no validator: JSON is well formed, and only words of the closed sets are in it.

Invariant: the closed sets are read from the code that owns them, as text, so that any Python can do it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.repo.tidy.sources import Finding

FOLDER = "contracts"
DOCUMENTS = (
    "README.md",
    "attachment-states.md",
    "examples.json",
    "infrastructure.json",
    "message.schema.json",
    "openapi.json",
)
#: What an attachment or a message list may say beside the states of a job.
OTHER_STATUSES = frozenset({"erasing", "live", "degraded", "unavailable"})


def contract_findings(root: Path) -> Iterator[Finding]:
    """Yield what is wrong with the documents under `root`; nothing where the folder is not there."""
    folder = root / FOLDER
    for name in DOCUMENTS:
        if not (folder / name).is_file():
            yield Finding(f"{FOLDER}/{name}", 1, "contract", "is not there")
        elif name.endswith(".json"):
            yield from malformed(f"{FOLDER}/{name}", (folder / name).read_text(encoding="utf-8"))
    try:
        examples = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
        errors = enum_values((folder / "errors.py").read_text(encoding="utf-8"), "ErrorCode")
        failures = enum_values((folder / "errors.py").read_text(encoding="utf-8"), "FailureCode")
        states = enum_values((folder / "jobs.py").read_text(encoding="utf-8"), "JobState")
    except (OSError, ValueError):
        return
    yield from foreign_words(examples, errors=errors, failures=failures, states=states)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    for code in sorted(errors | failures):
        if f"`{code}`" not in readme:
            yield Finding(f"{FOLDER}/README.md", 1, "contract", f"does not name `{code}`")


def malformed(path: str, text: str) -> Iterator[Finding]:
    """Yield what keeps a text from being JSON, names given twice included."""
    try:
        json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        yield Finding(path, getattr(error, "lineno", 1), "json", str(error))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"given twice: {', '.join(sorted(twice))}")
    return dict(pairs)


def enum_values(text: str, name: str) -> frozenset[str]:
    """Return the values of an enum of strings, read from the source."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return frozenset(
                item.value.value
                for item in node.body
                if isinstance(item, ast.Assign)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            )
    raise ValueError(f"there is no {name}")


def foreign_words(
    examples: dict[str, Any], *, errors: frozenset[str], failures: frozenset[str], states: frozenset[str]
) -> Iterator[Finding]:
    """Yield codes and states of examples that are in no closed set, and error codes without an example."""
    path, seen = f"{FOLDER}/examples.json", set()
    for example in examples["examples"] + examples["other_answers"]:
        title, body = example.get("name") or example.get("code"), example["answer"].get("body") or {}
        if "code" in body:
            seen.add(body["code"])
            if body["code"] not in errors:
                yield Finding(path, 1, "contract", f"{title}: the code `{body['code']}` is in no closed set")
        elif isinstance(body.get("status"), str) and body["status"] not in states | OTHER_STATUSES:
            yield Finding(path, 1, "contract", f"{title}: the state `{body['status']}` is in no closed set")
        failure = (body.get("error") or {}).get("code")
        if failure is not None and failure not in failures:
            yield Finding(path, 1, "contract", f"{title}: the failure `{failure}` is in no closed set")
    for code in sorted(errors - seen):
        yield Finding(path, 1, "contract", f"no example of the code `{code}`")
