"""`make validate`: the documents of the contract against their schemas, and the examples against openapi.json.

Needs `requirements-dev.txt` and a Python since 3.9, no server and nothing of ours. Prints the findings, exits 1 when
there are any.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openapi_spec_validator

CONTRACTS = Path(__file__).resolve().parents[2] / "contracts"


def document(name: str) -> Any:
    """Return one of the contract's JSON documents."""
    return json.loads((CONTRACTS / name).read_text(encoding="utf-8"))


def findings() -> Iterator[str]:
    """Yield everything that is wrong with the documents."""
    openapi = document("openapi.json")
    for error in openapi_spec_validator.OpenAPIV31SpecValidator(openapi).iter_errors():
        yield f"openapi.json: {error.message}"
    try:
        jsonschema.Draft202012Validator.check_schema(document("message.schema.json"))
    except jsonschema.SchemaError as error:
        yield f"message.schema.json: {error.message}"
    examples = document("examples.json")
    for example in examples["examples"] + examples["other_answers"]:
        title = example.get("name") or example["code"]
        for finding in example_findings(example, openapi):
            yield f"examples.json: {title}: {finding}"
    shown = {(example.get("operation"), example["answer"]["status"]) for example in examples["examples"]}
    for name in sorted(operations(openapi)):
        if not any(operation == name and status < 400 for operation, status in shown):
            yield f"examples.json: no success of {name}"


def operations(openapi: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return all operations by their id."""
    return {
        operation["operationId"]: operation for methods in openapi["paths"].values() for operation in methods.values()
    }


def example_findings(example: dict[str, Any], openapi: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with one example: its request, its status, its headers, its body."""
    name = example.get("operation")
    if name is None:  # a request to the store, or an answer of the command line
        return
    operation = operations(openapi).get(name)
    if operation is None:
        yield f"there is no operation {name}"
        return
    answer = example["answer"]
    said = operation["responses"].get(str(answer["status"]))
    if said is None:
        yield f"{name} does not answer {answer['status']}"
        return
    if answer["status"] < 400 and "json" in example.get("request", {}):
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        yield from (f"request: {text}" for text in _errors(example["request"]["json"], schema, openapi))
    yield from _answer_findings(answer, _resolved(said, openapi), openapi)


def _answer_findings(answer: dict[str, Any], said: dict[str, Any], openapi: dict[str, Any]) -> Iterator[str]:
    shown = {name.lower(): value for name, value in answer["headers"].items()}
    for name, header in said.get("headers", {}).items():
        if name.lower() not in shown and header.get("required"):
            yield f"without the header {name}"
        if name.lower() in shown:
            value = shown[name.lower()]
            number = header["schema"].get("type") == "integer" and value.isdigit()
            yield from (
                f"{name}: {text}" for text in _errors(int(value) if number else value, header["schema"], openapi)
            )
    if "body" in answer:
        content = said.get("content", {}).get(shown.get("content-type", "").split(";")[0])
        if content is None:
            yield f"a body of an undocumented type: {shown.get('content-type')}"
        else:
            yield from (f"body: {text}" for text in _errors(answer["body"], content["schema"], openapi))


def _resolved(node: dict[str, Any], openapi: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference within the document points to."""
    if "$ref" not in node:
        return node
    found: Any = openapi
    for part in node["$ref"].lstrip("#/").split("/"):
        found = found[part]
    resolved: dict[str, Any] = found
    return resolved


def _errors(value: Any, schema: dict[str, Any], openapi: dict[str, Any]) -> Iterator[str]:
    whole = {**schema, "components": openapi["components"]}
    validator = jsonschema.Draft202012Validator(whole, format_checker=jsonschema.FormatChecker())
    for error in validator.iter_errors(_filled(value)):
        yield f"{'/'.join(str(part) for part in error.absolute_path)}: {error.message}"


def _filled(value: Any) -> Any:
    """Return a value with its placeholders filled by some id."""
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item) for item in value]
    if isinstance(value, str) and value.startswith("{") and value.endswith("}"):
        return "00000000-0000-4000-8000-000000000000"
    return value


def main() -> int:
    """Run every check and return the exit code."""
    found = list(findings())
    for finding in found:
        sys.stderr.write(f"{finding}\n")
    sys.stderr.write(f"validate: {len(found)} findings\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
