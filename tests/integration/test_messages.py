"""Messages: written whole or not at all, with attachments in any state, read and paged by their owner only."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import datetime

import pytest

from app.api.attachment_schemas import TEXT_CHARS_MAX
from stack.servers import Servers
from tests.attached import MESSAGES, Desk, open_desk
from tests.books import expired
from tests.edge import open_edge

ATTACHMENTS_MAX = 4


@pytest.fixture(scope="module")
async def desk(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Desk]:
    env = {"SPILLWAY_MESSAGE_ATTACHMENTS_MAX": str(ATTACHMENTS_MAX), "SPILLWAY_PAGE_ROWS_MAX": "5"}
    async with open_edge(servers, environment, env=env, janitor=False) as line, open_desk(line) as opened:
        yield opened


async def test_a_message_is_written_and_read(desk: Desk) -> None:
    text = "Привет, \U0001f600\n"
    answer = await desk.post(MESSAGES, {"text": text})
    document = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{MESSAGES}/{document['message_id']}"
    assert set(document) == {"message_id", "text", "created_at", "expires_at", "attachments"}
    assert (document["text"], document["attachments"]) == (text, [])
    assert datetime.fromisoformat(document["expires_at"]) > datetime.fromisoformat(document["created_at"])
    read = await desk.get(answer.headers["location"])
    assert (read.status_code, read.json()) == (200, document)
    assert read.headers["cache-control"] == "no-store"
    known = await desk.get(answer.headers["location"], if_none_match=read.headers["etag"])
    assert known.status_code == 304


async def test_the_longest_text_may_be_written_with_every_character_escaped(desk: Desk) -> None:
    content = json.dumps({"text": "\U0001f600" * TEXT_CHARS_MAX}).encode("ascii")
    answer = await desk.call("POST", MESSAGES, content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json().get("text")) == (201, "\U0001f600" * TEXT_CHARS_MAX)


async def test_a_message_names_attachments_in_any_state(desk: Desk) -> None:
    queued, failed, ready = await desk.queued(), await desk.failed(), await desk.ready()
    message_id = await desk.message(queued, failed, ready)
    read = (await desk.get(f"{MESSAGES}/{message_id}")).json()
    assert {(shown["attachment_id"], shown["status"]) for shown in read["attachments"]} == {
        (queued.attachment_id, "queued"),
        (failed.attachment_id, "failed"),
        (ready.attachment_id, "ready"),
    }
    assert {shown["message_id"] for shown in read["attachments"]} == {message_id}


async def test_attachments_are_added_to_a_message_that_is_there(desk: Desk) -> None:
    first, second, third = await desk.ready(), await desk.queued(), await desk.ready()
    message_id = await desk.message(first)
    answer = await desk.post(
        f"{MESSAGES}/{message_id}/attachments", {"attachment_ids": [third.attachment_id, second.attachment_id]}
    )
    document = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"{MESSAGES}/{message_id}"
    assert (document["message_id"], document["status"]) == (message_id, "queued")
    assert {shown["attachment_id"] for shown in document["attachments"]} == {
        second.attachment_id,
        third.attachment_id,
    }
    read = (await desk.get(f"{MESSAGES}/{message_id}")).json()
    assert read["attachments"][0]["attachment_id"] == first.attachment_id
    assert len(read["attachments"]) == 3


async def test_an_expired_attachment_shows_only_that(desk: Desk) -> None:
    sent = await desk.ready()
    message_id = await desk.message(sent)
    assert await expired(desk.line.raw, sent.job_id)
    (shown,) = (await desk.get(f"{MESSAGES}/{message_id}")).json()["attachments"]
    assert shown["status"] == "expired"
    assert not {"original", "variants", "error"} & set(shown)


async def test_an_attachment_belongs_to_one_message(desk: Desk) -> None:
    named, free = await desk.queued(), await desk.queued()
    message_id = await desk.message(named)
    before = await desk.count("messages")
    ids = {"attachment_ids": [free.attachment_id, named.attachment_id]}
    for path, document in ((MESSAGES, {"text": "a", **ids}), (f"{MESSAGES}/{message_id}/attachments", ids)):
        answer = await desk.post(path, document)
        assert (answer.status_code, answer.json()["code"]) == (409, "already_attached")
    assert await desk.count("messages") == before
    assert "message_id" not in (await desk.get(free.path)).json()


async def test_what_is_not_there_or_not_ones_own_cannot_be_named(desk: Desk) -> None:
    stranger = await desk.other_token()
    foreign, own = await desk.queued(token=stranger), await desk.queued()
    message_id = await desk.message()
    before = await desk.count("messages")
    erased = await desk.ready()
    assert await expired(desk.line.raw, erased.job_id)
    for missing in (foreign.attachment_id, erased.attachment_id, str(uuid.uuid4())):
        ids = {"attachment_ids": [own.attachment_id, missing]}
        for path, document in ((MESSAGES, {"text": "a", **ids}), (f"{MESSAGES}/{message_id}/attachments", ids)):
            answer = await desk.post(path, document)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert await desk.count("messages") == before
    assert "message_id" not in (await desk.get(own.path)).json()


async def test_foreign_and_unknown_messages_look_the_same(desk: Desk) -> None:
    message_id, stranger = await desk.message(), await desk.other_token()
    sent = await desk.queued(token=stranger)
    for wanted in (message_id, str(uuid.uuid4()), "x", "%00"):
        read = await desk.get(f"{MESSAGES}/{wanted}", token=stranger)
        assert (read.status_code, read.json()["code"]) == (404, "not_found")
        ids = {"attachment_ids": [sent.attachment_id]}
        named = await desk.post(f"{MESSAGES}/{wanted}/attachments", ids, token=stranger)
        assert (named.status_code, named.json()["code"]) == (404, "not_found")
    assert (await desk.call("GET", MESSAGES, token="nobody")).status_code == 401
    assert (await desk.call("POST", MESSAGES, token="nobody", json={"text": "a"})).status_code == 401


async def test_an_attachment_named_twice_is_not_valid(desk: Desk) -> None:
    sent = await desk.queued()
    answer = await desk.post(
        MESSAGES, {"text": "a", "attachment_ids": [sent.attachment_id, sent.attachment_id.upper()]}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field")


async def test_a_message_holds_so_many_attachments_and_no_more_also_from_two_at_once(desk: Desk) -> None:
    sent = [await desk.queued() for _ in range(ATTACHMENTS_MAX + 3)]
    ids = [one.attachment_id for one in sent]
    answer = await desk.post(MESSAGES, {"text": "a", "attachment_ids": ids[: ATTACHMENTS_MAX + 1]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field")
    path = f"{MESSAGES}/{await desk.message(*sent[: ATTACHMENTS_MAX - 1])}"
    late = [desk.post(f"{path}/attachments", {"attachment_ids": [one]}) for one in ids[ATTACHMENTS_MAX - 1 :]]
    statuses = sorted(answer.status_code for answer in await asyncio.gather(*late))
    assert statuses == [202, 422, 422, 422]
    assert len((await desk.get(path)).json()["attachments"]) == ATTACHMENTS_MAX


async def test_two_messages_that_name_one_attachment_at_once_are_one_message(desk: Desk) -> None:
    sent = await desk.queued()
    posts = [desk.post(MESSAGES, {"text": "a", "attachment_ids": [sent.attachment_id]}) for _ in range(8)]
    assert sorted(answer.status_code for answer in await asyncio.gather(*posts)) == [201] + [409] * 7


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b"{", "application/json", 400, "malformed_request"),
        (b"", "application/json", 400, "malformed_request"),
        (b"\xff", "application/json", 400, "malformed_request"),
        (b"[" * 60_000, "application/json", 400, "malformed_request"),
        (b'{"text": "a\\u0000"}', "application/json", 422, "invalid_field"),
        (b'{"text": "\\ud800"}', "application/json", 422, "invalid_field"),
        (b'{"text": ""}', "application/json", 422, "invalid_field"),
        (b'{"text": "' + b"x" * 10_001 + b'"}', "application/json", 422, "invalid_field"),
        (b'{"text": "a", "attachment_ids": ["\\u0000"]}', "application/json", 422, "invalid_field"),
        (b'{"text": "' + b"x" * 200_000 + b'"}', "application/json", 413, "too_many_bytes"),
        (b'{"text": "a"}', "text/plain", 415, "unsupported_format"),
    ],
)
async def test_a_bad_body_is_refused(desk: Desk, content: bytes, media_type: str, status: int, code: str) -> None:
    before = await desk.count("messages")
    answer = await desk.call("POST", MESSAGES, content=content, headers={"Content-Type": media_type})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert await desk.count("messages") == before


async def test_a_body_without_a_length_is_bounded_too(desk: Desk) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(60):
            yield b" " * 4096

    answer = await desk.call("POST", MESSAGES, content=endless(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_bytes")


async def test_messages_are_paged_newest_first(desk: Desk) -> None:
    token = await desk.other_token()
    for number in range(7):
        assert (await desk.post(MESSAGES, {"text": str(number)}, token=token)).status_code == 201
    texts: list[list[str]] = []
    path = f"{MESSAGES}?limit=3"
    while True:
        page = (await desk.get(path, token=token)).json()
        texts.append([message["text"] for message in page["messages"]])
        if "next_cursor" not in page:
            break
        path = f"{MESSAGES}?limit=3&cursor={page['next_cursor']}"
    assert texts == [["6", "5", "4"], ["3", "2", "1"], ["0"]]
    whole = (await desk.get(MESSAGES, token=token)).json()
    assert len(whole["messages"]) == 5
    assert (await desk.get(MESSAGES, token=await desk.other_token())).json() == {"messages": []}


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=6", "limit=x", "cursor=x", "cursor=", "limit=1e9"])
async def test_a_page_that_cannot_be_is_not_valid(desk: Desk, query: str) -> None:
    answer = await desk.get(f"{MESSAGES}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field")
