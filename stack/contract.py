"""The generated documents in `contracts/`: written from the code by `python -m stack.contract --write`.

Invariant: a pure function of the tree, so equal code gives equal text, and a test can tell a stale document. Without
`--write` it says which are stale (exit code 1). Nothing is connected to: the routes are described, never called.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

from app.api.openapi import CONTRACT_VERSION, openapi_document
from app.api.routes import make_app
from app.api.services import Services
from app.core.settings import PREFIX, Settings
from contracts.errors import ErrorCode, FailureCode
from contracts.jobs import TRANSITIONS, JobState
from contracts.messages import JobMessage
from stack.docs import PART, ROOT

FOLDER = "contracts"
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: How an attachment shows a job's states; the others show as they are.
SHOWN = {JobState.CANCELLING: JobState.PROCESSING, JobState.CANCELLED: JobState.FAILED}
_HIDDEN = frozenset({JobState.UPLOADING, JobState.DROPPED})


class _Nothing:
    """Stands for every store and server in an app that is only described."""

    def __getattr__(self, _: str) -> Self:
        return self

    def __call__(self, *_: Any, **__: Any) -> Self:
        return self


def openapi() -> dict[str, Any]:
    """Return the document of the interface."""
    nothing: Any = _Nothing()
    parts = {field.name: nothing for field in fields(Services)}
    # Built without reading the environment: the document is of the code, not of one machine.
    parts["settings"] = Settings.model_construct()
    return openapi_document(make_app(Services(**parts)))


def message_schema() -> dict[str, Any]:
    """Return the schema of the message between relay and worker."""
    return {
        "$schema": SCHEMA_DIALECT,
        "$id": "urn:spillway:message:v1",
        "x-contract-version": CONTRACT_VERSION,
        **JobMessage.model_json_schema(),
    }


def render_openapi() -> str:
    """Return `openapi.json`."""
    return _text(openapi())


def render_message_schema() -> str:
    """Return `message.schema.json`."""
    return _text(message_schema())


def render_infrastructure() -> str:
    """Return `infrastructure.json` with its settings anew; the rest is written by hand."""
    document = json.loads((ROOT / FOLDER / "infrastructure.json").read_text(encoding="utf-8"))
    document["contract_version"] = CONTRACT_VERSION
    document["settings"] = _settings()
    return _text(document)


def render_states() -> str:
    """Return `attachment-states.md` with its generated parts anew."""
    text = (ROOT / FOLDER / "attachment-states.md").read_text(encoding="utf-8")
    parts = {"attachment-diagram": render_attachment_diagram(), "job-states": render_job_states()}
    return PART.sub(lambda part: part["open"] + parts[part["name"]] + part["close"], text)


def render_attachment_diagram() -> str:
    """Return the arrows that a client can see, drawn from the table of all transitions."""
    events: dict[tuple[str, str], list[str]] = {}
    for arrow in TRANSITIONS:
        source, target = (SHOWN.get(state, state) for state in (arrow.state, arrow.next_state))
        if arrow.next_state in _HIDDEN or source is target:
            continue
        names = events.setdefault(("[*]" if source in _HIDDEN else source.value, target.value), [])
        names += [arrow.event.value] if arrow.event.value not in names else []
    lines = [f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in events.items()]
    return "```mermaid\nstateDiagram-v2\n" + "\n".join([*lines, "    expired --> [*]"]) + "\n```\n"


def render_job_states() -> str:
    """Return one row for each state: how a job and an attachment show it, and where it can go."""
    head = "| state | as a job | as an attachment | can become |\n|---|---|---|---|\n"
    return head + "".join(_state_row(state) for state in JobState)


def _state_row(state: JobState) -> str:
    after = ", ".join(dict.fromkeys(f"`{arrow.next_state}`" for arrow in TRANSITIONS if arrow.state is state)) or "–"
    job = "never shown, `404`" if state in _HIDDEN else "`410`" if state is JobState.EXPIRED else f"`{state}`"
    attached = job if state not in SHOWN else f"`{SHOWN[state]}`"
    if state is JobState.CANCELLED:
        attached += " with the code `cancelled`"
    return f"| `{state}` | {job} | {attached} | {after} |\n"


def _settings() -> list[dict[str, Any]]:
    """Return every setting with its default and bounds; what it does is in `.env.example`."""
    schema = Settings.model_json_schema()["properties"]
    kept = ("default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "pattern")
    return [
        {"name": PREFIX + name.upper(), **{key: field[key] for key in kept if field.get(key) is not None}}
        for name, field in schema.items()
    ]


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


#: Every generated document and what renders it.
DOCUMENTS: dict[str, Callable[[], str]] = {
    "openapi.json": render_openapi,
    "message.schema.json": render_message_schema,
    "infrastructure.json": render_infrastructure,
    "attachment-states.md": render_states,
}


def stale() -> list[str]:
    """Return the documents that are not what the code says."""
    found = []
    for name, render in DOCUMENTS.items():
        path = ROOT / FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != render():
            found.append(f"{FOLDER}/{name}")
    return found


def codes() -> dict[str, list[str]]:
    """Return the closed sets that clients see."""
    return {
        "errors": [code.value for code in ErrorCode],
        "failures": [code.value for code in FailureCode],
        "states": [state.value for state in JobState if state not in _HIDDEN],
    }


def main(arguments: list[str]) -> int:
    """Compare or, with `--write`, render; returns the exit code."""
    if arguments == ["--write"]:
        for name, render in DOCUMENTS.items():
            (ROOT / FOLDER / name).write_text(render(), encoding="utf-8")
    elif arguments:
        sys.stderr.write("usage: python -m stack.contract [--write]\n")
        return 2
    elif found := stale():
        sys.stderr.write(f"{', '.join(found)}: stale: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
