"""`SPILLWAY_TOKEN=… python3 -m tests.smoke URL`: what the lab's defence shows, against any running instance.

Exit codes: 0 every step held, 1 one did not, 2 wrong use. Nothing is started, stopped or deleted.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from typing import Any

from tests.smoke.http import Answer, Failed, Instance, fetch
from tests.smoke.images import Size, jpeg_size, png

URL_DEFAULT = "http://localhost:8080"
TOKEN_VARIABLE = "SPILLWAY_TOKEN"
IMAGE_SIZE = Size(640, 400)
THUMBNAIL_SIZE = Size(256, 160)
READY_S_MAX = 90.0
POLL_S_MAX = 3.0

IMAGES, JOBS = "/api/v1/images", "/api/v1/image-jobs"
ATTACHMENTS, MESSAGES = "/api/v1/attachments", "/api/v1/messages"


def expect(answer: Answer, *statuses: int) -> Answer:
    """Return the answer when its status is one of these."""
    if answer.status not in statuses:
        raise Failed(f"{answer.status} instead of {statuses}: {answer.body[:300]!r}")
    return answer


def check(holds: bool, what: str) -> None:  # noqa: FBT001 - reads like the assert that optimised Pythons drop
    """Go on when it holds."""
    if not holds:
        raise Failed(what)


def say(text: str) -> None:
    """Print one step that held."""
    sys.stdout.write(f"ok  {text}\n")


def upload(instance: Instance, path: str, data: bytes) -> tuple[Answer, dict[str, Any]]:
    """Send a file twice under one key: 202, and the same job again."""
    key = os.urandom(16).hex()
    first = expect(instance.upload(path, data, key=key), 202)
    again = expect(instance.upload(path, data, key=key), 202)
    document: dict[str, Any] = first.json()
    check("location" in first.headers, "202 without Location")
    check(int(first.headers.get("retry-after", "0")) >= 1, "202 without Retry-After")
    check(document.get("status") == "queued", f"accepted as {document.get('status')!r}")
    check(again.json()["job_id"] == document["job_id"], "the same key made a second job")
    check(again.headers.get("idempotency-replayed") == "true", "a replay is not marked as one")
    say(f"POST {path}: 202 queued, job {document['job_id']}; the same key: the same job")
    return first, document


def until_ready(instance: Instance, path: str) -> dict[str, Any]:
    """Poll as told until the job is ready."""
    deadline_s = time.monotonic() + READY_S_MAX
    seen: list[str] = []
    while True:
        answer = expect(instance.get(path), 200)
        document: dict[str, Any] = answer.json()
        status = str(document.get("status"))
        seen += [status] if status not in seen else []
        if status == "ready":
            say(f"GET {path}: {' → '.join(seen)}")
            return document
        check(status in ("queued", "processing"), f"ended {status}: {document.get('error')}")
        check(time.monotonic() < deadline_s, f"not ready within {READY_S_MAX:.0f} s: {' → '.join(seen)}")
        time.sleep(min(float(answer.headers.get("retry-after", "1")), POLL_S_MAX))


def check_thumbnail(answer: Answer, what: str) -> None:
    """Pass a real JPEG of the right size."""
    expect(answer, 200)
    size = jpeg_size(answer.body)
    check(size == THUMBNAIL_SIZE, f"{what} is no JPEG of {THUMBNAIL_SIZE}: {size}, {answer.body[:16]!r}")
    say(f"{what}: a JPEG of {THUMBNAIL_SIZE.width} × {THUMBNAIL_SIZE.height}, {len(answer.body)} bytes")


def attachment_story(instance: Instance, data: bytes) -> None:
    """Upload, name it in a message while it is not ready, wait, read original and thumbnail."""
    accepted, document = upload(instance, ATTACHMENTS, data)
    place = accepted.headers["location"]
    early = expect(instance.get(f"{place}/content"), 409, 200)
    check(early.status == 200 or early.problem() == "not_ready", f"409 without not_ready: {early.body[:200]!r}")
    made = expect(instance.post(MESSAGES, {"text": "smoke", "attachment_ids": [document["attachment_id"]]}), 201)
    expect(instance.get(made.headers["location"]), 200)
    say(f"POST {MESSAGES}: 201, with an attachment in work (content said {early.status})")
    shown = until_ready(instance, place)
    original = expect(instance.get(f"{place}/content"), 200)
    check(original.body == data, "the original is not what was sent")
    check(original.headers.get("content-type") == "image/png", "the original is not called what it is")
    check(shown["original"]["sha256"] == hashlib.sha256(data).hexdigest(), "another SHA-256")
    say(f"GET {place}/content: the original, byte for byte")
    check_thumbnail(instance.get(f"{place}/content/thumbnail"), "thumbnail of the attachment")


def image_story(instance: Instance, data: bytes) -> None:
    """Upload, wait, open the result link without the token."""
    accepted, _ = upload(instance, IMAGES, data)
    ready = until_ready(instance, accepted.headers["location"])
    check_thumbnail(fetch("GET", str(ready["thumb_url"]), headers={}), "thumb_url")


def run(url: str, token: str) -> None:
    """Go through all steps.

    Raises:
        Failed: one did not hold.
    """
    instance = Instance(url, token)
    ready = expect(instance.get_openly("/health/ready"), 200).json()
    say(f"GET /health/ready: {ready.get('status')}")
    refused = expect(instance.get_openly(f"{JOBS}/none"), 401)
    check(refused.problem() == "unauthenticated", "401 without its code")
    say("without a token: 401 unauthenticated, as problem+json")
    seed = int.from_bytes(os.urandom(2), "big")
    data = png(IMAGE_SIZE.width, IMAGE_SIZE.height, seed=seed)
    attachment_story(instance, data)
    image_story(instance, data)


def main(arguments: list[str]) -> int:
    """Run the smoke and return the exit code."""
    token = os.environ.get(TOKEN_VARIABLE, "")  # noqa: TID251 - the composition root of this command
    if len(arguments) > 1 or not token:
        sys.stderr.write(f"usage: {TOKEN_VARIABLE}=… python3 -m tests.smoke [URL]   (default {URL_DEFAULT})\n")
        return 2
    since_s = time.monotonic()
    try:
        run(arguments[0] if arguments else URL_DEFAULT, token)
    except Failed as error:
        sys.stdout.write(f"FAILED  {error}\n")
        return 1
    sys.stdout.write(f"smoke: passed in {time.monotonic() - since_s:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
