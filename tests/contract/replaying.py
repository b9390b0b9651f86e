"""Plays `contracts/examples.json` against a running API: each request as it stands, each answer compared by its kind.

What differs from run to run (ids, times, links, hashes, sizes of results) is compared by its form, all else exactly.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.line import photo
from tests.repo.tidy.sources import ROOT

EXAMPLES = ROOT / "contracts/examples.json"

#: What a text can hold that no two runs share, and how it is written instead.
MASKS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"https?://[^\s\"]+"), "<link>"),
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)"), "<time>"),
    (re.compile(r"[0-9a-f]{64}"), "<sha256>"),
)
#: Members and headers whose value is of one run only, beyond what is masked.
ONLY_KIND = frozenset({"bytes", "next_cursor", "retry-after", "etag", "content-length", "detail", "content-range"})
SIZES = "bytes"


def files() -> dict[str, bytes]:
    """The files that examples send."""
    whole = photo(1)
    return {
        "photo.jpg": whole,
        "other.jpg": photo(2),
        "half.jpg": whole[: len(whole) // 2],
        "hello.txt": b"hello",
        "empty.jpg": b"",
    }


def load() -> list[dict[str, Any]]:
    """Return the examples, in their order."""
    examples: list[dict[str, Any]] = json.loads(EXAMPLES.read_text(encoding="utf-8"))["examples"]
    return examples


def masked(value: Any, name: str = "") -> Any:
    """Return a value with everything of one run replaced by its kind."""
    if isinstance(value, dict):
        return {key: masked(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, name) for item in value]
    if name.lower() in ONLY_KIND or (name == SIZES and isinstance(value, int)):
        return f"<{name}>"
    if isinstance(value, str):
        for pattern, mask in MASKS:
            value = pattern.sub(mask, value)
    return value


@dataclass(slots=True)
class Replay:
    """One pass through the examples; what an answer gave is used in later requests."""

    http: httpx.AsyncClient
    base_url: str
    found: dict[str, str]
    files: dict[str, bytes] = field(default_factory=files)

    async def play(self, example: dict[str, Any]) -> dict[str, Any]:
        """Send an example's request and return the answer in the form of an example's."""
        request = self._filled(example["request"])
        parts: dict[str, Any] = {"headers": request.get("headers", {})}
        if "json" in request:
            parts["json"] = request["json"]
        if "form" in request:
            parts["files"] = {name: (file, self.files[file]) for name, file in request["form"].items()}
        if "raw" in request:
            parts["content"] = self.files[request["raw"]]
        if "text" in request:
            parts["content"] = request["text"].encode()
        url = request["path"] if request["path"].startswith("http") else self.base_url + request["path"]
        answer = await self.http.request(request["method"], url, **parts)
        said = self._answer(answer, example)
        for name, pointer in example.get("found", {}).items():
            self.found[name] = answer.headers[pointer] if pointer in answer.headers else value_at(said["body"], pointer)
        return said

    def _answer(self, answer: httpx.Response, example: dict[str, Any]) -> dict[str, Any]:
        shown = example.get("answer", {}).get("headers", SHOWN_HEADERS)
        names = [name for name in shown if name.lower() in answer.headers]
        said: dict[str, Any] = {
            "status": answer.status_code,
            "headers": {name: answer.headers[name] for name in names},
        }
        media_type = answer.headers.get("Content-Type", "")
        if media_type.split(";")[0] in ("application/json", "application/problem+json") and answer.content:
            said["body"] = answer.json()
        elif answer.content and not media_type.startswith("text/"):
            sent = [name for name, data in self.files.items() if data == answer.content]
            said["content"] = sent[0] if sent else media_type
        return said

    def _filled(self, node: Any) -> Any:
        if isinstance(node, dict):
            return {key: self._filled(item) for key, item in node.items()}
        if isinstance(node, list):
            return [self._filled(item) for item in node]
        if isinstance(node, str):
            return re.sub(r"\{(\w+)\}", lambda match: self.found.get(match[1], match[0]), node)
        return node


#: Headers of an answer that an example shows when it has them.
SHOWN_HEADERS = (
    "Content-Type",
    "Location",
    "Retry-After",
    "Idempotency-Replayed",
    "Cache-Control",
    "ETag",
    "Preference-Applied",
    "Content-Range",
    "Content-Disposition",
    "X-Content-Type-Options",
    "Content-Language",
    "Allow",
    "WWW-Authenticate",
)


def digest(data: bytes) -> str:
    """Return the value of a digest header (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def value_at(body: Any, pointer: str) -> str:
    """Return the value at a JSON pointer as text, nothing where there is none."""
    for part in pointer.strip("/").split("/"):
        try:
            body = body[int(part)] if isinstance(body, list) else body[part]
        except (LookupError, TypeError):
            return ""
    return str(body)
