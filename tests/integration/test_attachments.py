"""Attachments as data: accepted like images, and shown with predictable fields in every state."""

import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from contracts.errors import FailureCode, Language, failure_message
from stack.servers import Servers
from tests.attached import ATTACHMENTS, PHOTO, VARIANTS, Desk, Sent, open_desk
from tests.books import expired
from tests.edge import PROBLEM, open_edge

ALWAYS = {"attachment_id", "job_id", "image_id", "status", "original", "created_at"}
ORIGINAL = {"bytes", "media_type", "sha256", "width", "height"}


@pytest.fixture(scope="module")
async def desk(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Desk]:
    async with open_edge(servers, environment, janitor=False) as line, open_desk(line) as opened:
        yield opened


async def shown(desk: Desk, sent: Sent, *, final: bool, fields: set[str]) -> dict[str, Any]:
    """Return an attachment after checking what holds in every state."""
    answer = await desk.get(sent.path)
    document: dict[str, Any] = answer.json()
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert ("retry-after" in answer.headers) is not final
    assert set(document) == ALWAYS | fields
    assert set(document["original"]) - {"url"} == ORIGINAL
    assert (document["attachment_id"], document["job_id"]) == (sent.attachment_id, str(sent.job_id))
    etag = answer.headers["etag"]
    assert etag.startswith('"')
    known = await desk.get(sent.path, if_none_match=etag)
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", etag)
    return document


async def test_an_upload_is_a_queued_attachment(desk: Desk) -> None:
    answer = await desk.upload()
    document = answer.json()
    assert answer.status_code == 202
    assert set(document) == {"attachment_id", "job_id", "image_id", "status", "message"}
    assert document["status"] == "queued"
    assert answer.headers["location"] == f"{ATTACHMENTS}/{document['attachment_id']}"
    assert int(answer.headers["retry-after"]) >= 1
    followed = await desk.get(answer.headers["location"])
    assert followed.json()["original"] == {
        "bytes": len(PHOTO),
        "media_type": "image/jpeg",
        "sha256": (await desk.line.row(uuid.UUID(document["job_id"])))["source_sha256"],
        "width": 400,
        "height": 300,
    }


async def test_an_unfinished_attachment_shows_nothing_of_a_result(desk: Desk) -> None:
    assert (await shown(desk, await desk.queued(), final=False, fields=set()))["status"] == "queued"
    sent, _ = await desk.claimed()
    assert (await shown(desk, sent, final=False, fields=set()))["status"] == "processing"


async def test_one_that_is_asked_to_stop_shows_as_processing_then_as_failed(desk: Desk) -> None:
    sent, token = await desk.claimed()
    await desk.jobs.cancel(sent.job_id, owner="ann")
    assert (await shown(desk, sent, final=False, fields=set()))["status"] == "processing"
    await desk.jobs.complete(sent.job_id, claim_token=token, variants=())
    document = await shown(desk, sent, final=True, fields={"error", "finished_at", "expires_at"})
    assert (document["status"], document["error"]["code"]) == ("failed", "cancelled")


async def test_a_ready_attachment_has_variants_at_this_api(desk: Desk) -> None:
    sent = await desk.ready()
    document = await shown(desk, sent, final=True, fields={"variants", "finished_at", "expires_at"})
    assert document["status"] == "ready"
    assert document["original"]["url"] == f"{sent.path}/content"
    assert set(document["variants"]) == {name.value for name in VARIANTS}
    for name, data in VARIANTS.items():
        variant = document["variants"][name.value]
        assert set(variant) == {"url", "media_type", "width", "height", "bytes", "sha256"}
        assert (variant["url"], variant["bytes"]) == (f"{sent.path}/content/{name.value}", len(data))
        assert (await desk.get(variant["url"])).content == data


async def test_a_failed_attachment_says_why_in_two_languages(desk: Desk) -> None:
    sent = await desk.failed()
    document = await shown(desk, sent, final=True, fields={"error", "finished_at", "expires_at"})
    english = failure_message(FailureCode.INVALID_IMAGE, language=Language.ENGLISH)
    assert document["error"] == {"code": "invalid_image", "message": english}
    russian = await desk.get(sent.path, accept_language="ru-RU, en;q=0.5")
    expected = failure_message(FailureCode.INVALID_IMAGE, language=Language.RUSSIAN)
    assert russian.json()["error"] == {"code": "invalid_image", "message": expected}


async def test_one_that_a_message_names_says_so_and_lives_as_long(desk: Desk) -> None:
    sent = await desk.ready()
    alone = (await desk.get(sent.path)).json()
    message_id = await desk.message(sent)
    named = await shown(desk, sent, final=True, fields={"variants", "finished_at", "expires_at", "message_id"})
    assert named["message_id"] == message_id
    longer = datetime.fromisoformat(named["expires_at"]) - datetime.fromisoformat(alone["expires_at"])
    assert longer > timedelta(days=300)


async def test_an_erased_attachment_is_gone(desk: Desk) -> None:
    sent = await desk.ready()
    assert await expired(desk.line.raw, sent.job_id)
    answer = await desk.get(sent.path)
    assert (answer.status_code, answer.json()["code"]) == (410, "expired")


@pytest.mark.parametrize("name", ["x", "{ID}", "urn:uuid:ID", "HEX", "a" * 5000, "%00", "%2e%2e%2f", "ÿ"])
async def test_a_malformed_id_is_an_unknown_one(desk: Desk, name: str) -> None:
    sent = await desk.queued()
    path = name.replace("ID", sent.attachment_id).replace("HEX", sent.attachment_id.replace("-", ""))
    answer = await desk.get(f"{ATTACHMENTS}/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_foreign_and_unknown_attachments_look_the_same(desk: Desk) -> None:
    sent, stranger = await desk.queued(), await desk.other_token()
    foreign = await desk.get(sent.path, token=stranger)
    unknown = await desk.get(f"{ATTACHMENTS}/{uuid.uuid4()}", token=stranger)
    assert (foreign.status_code, foreign.json()) == (404, unknown.json())
    assert foreign.headers["content-type"] == PROBLEM
    # An attachment is not found by its job's id either.
    assert (await desk.get(f"{ATTACHMENTS}/{sent.job_id}")).status_code == 404


async def test_an_image_is_no_attachment(desk: Desk) -> None:
    before = await desk.count("attachments")
    assert (await desk.line.upload(PHOTO)).status_code == 202
    assert await desk.count("attachments") == before


async def test_a_refused_upload_leaves_no_attachment(desk: Desk) -> None:
    before = await desk.count("attachments")
    answer = await desk.upload(b"no image" * 100)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_format")
    assert (await desk.upload(token="nobody")).status_code == 401
    assert await desk.count("attachments") == before


async def test_other_methods_are_not_allowed(desk: Desk) -> None:
    sent = await desk.queued()
    for method, path in (("GET", ATTACHMENTS), ("POST", sent.path), ("PUT", f"{sent.path}/content")):
        answer = await desk.call(method, path)
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
