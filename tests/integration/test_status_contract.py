"""The status as a contract: ETags, waiting, when it expires, languages, and the end with 410."""

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta

import httpx
import pytest

from app.core.messages import MessageStore
from contracts.errors import FAILURE_MESSAGES, FAILURE_MESSAGES_RU, FailureCode
from stack.servers import Servers
from tests.books import expired
from tests.edge import api_of, children_of, open_edge
from tests.jobs_by_hand import IMAGES, JOBS, Hand, open_hand
from tests.line import until

DAY = timedelta(days=1)
#: Of no job; the same in every process, since tests that run beside each other must have the same names.
NOBODYS_ID = "9f0c3d52-6a1e-4c8b-9a57-0d8f1c2b3a44"


@pytest.fixture(scope="module")
async def hand(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Hand]:
    env = {"SPILLWAY_RESULT_LINK_WINDOW_S": "3", "SPILLWAY_RESULT_LINK_S": "60", "SPILLWAY_PREFER_WAITERS_MAX": "50"}
    async with open_edge(servers, environment, env=env, janitor=False) as line:
        opened = await open_hand(line)
        yield opened
        await opened.database.close()


async def make(hand: Hand, state: str) -> uuid.UUID:
    makers = {"queued": hand.queued, "ready": hand.ready, "failed": hand.failed, "cancelled": hand.cancelled}
    return await makers[state]()


@pytest.mark.parametrize("state", ["queued", "ready", "failed", "cancelled"])
async def test_an_answer_that_the_client_has_is_not_sent_again(hand: Hand, state: str) -> None:
    job_id = await make(hand, state)
    first = await hand.read(job_id)
    etag = first.headers["etag"]
    assert (first.status_code, first.json()["status"]) == (200, state)
    assert etag.startswith('"')
    again = await hand.read(job_id, If_None_Match=f'"other", {etag}')
    if state == "ready" and again.status_code == 200:  # the links' window ended in between
        again = await hand.read(job_id, If_None_Match=again.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == again.headers["cache-control"] == "no-store"
    assert ("retry-after" in again.headers) == ("retry-after" in first.headers) == (state == "queued")
    other = await hand.read(job_id, If_None_Match='"other"')
    assert other.status_code == 200


async def test_every_change_that_can_be_seen_gives_another_etag(hand: Hand) -> None:
    job_id, token = await hand.claimed()
    etags = [(await hand.read(job_id)).headers["etag"]]
    await hand.jobs.cancel(job_id, owner="ann")
    etags.append((await hand.read(job_id)).headers["etag"])
    await hand.jobs.fail(job_id, claim_token=token, code=FailureCode.INTERNAL)
    etags.append((await hand.read(job_id)).headers["etag"])
    assert len(set(etags)) == 3


async def test_links_are_equal_within_their_window_and_signed_anew_in_the_next(hand: Hand) -> None:
    job_id = await hand.ready()
    before = await hand.read(job_id)

    async def in_next_window() -> httpx.Response | None:
        after = await hand.read(job_id)
        return after if after.headers["etag"] != before.headers["etag"] else None

    first = await until(in_next_window, timeout_s=8, what="a new window of links")
    again = await hand.read(job_id)
    assert first.json()["thumb_url"] != before.json()["thumb_url"]
    assert again.content == first.content
    opened = await hand.line.http.get(again.json()["thumb_url"])
    assert opened.status_code == 200


async def test_a_final_job_says_when_it_expires(hand: Hand) -> None:
    keep = {"ready": 30 * DAY, "failed": 7 * DAY, "cancelled": DAY}
    for state, lasting in keep.items():
        document = (await hand.read(await make(hand, state))).json()
        finished, expires = (datetime.fromisoformat(document[name]) for name in ("finished_at", "expires_at"))
        assert expires - finished == lasting, state


async def test_a_job_that_a_message_names_expires_with_the_message(hand: Hand) -> None:
    job_id = await hand.ready()
    before = await hand.read(job_id)
    message_id, attachment_id = uuid.uuid4(), uuid.uuid4()
    await hand.line.raw.execute(
        "INSERT INTO spillway.attachments (id, owner, job_id) VALUES ($1, 'ann', $2)", attachment_id, job_id
    )
    messages = MessageStore(hand.database, attachments_max=1)
    await messages.create(message_id=message_id, owner="ann", body="hello", attachment_ids=[attachment_id])
    created = await hand.line.raw.fetchval("SELECT created_at FROM spillway.messages WHERE id = $1", message_id)
    after = await hand.read(job_id)
    assert datetime.fromisoformat(after.json()["expires_at"]) == created + 365 * DAY
    assert after.headers["etag"] != before.headers["etag"]


@pytest.mark.parametrize(("wanted", "language"), [("ru, en;q=0.5", "ru"), ("en", "en"), ("de", "en")])
async def test_the_message_of_a_failure_is_in_the_language_asked_for(hand: Hand, wanted: str, language: str) -> None:
    job_id = await hand.failed(FailureCode.TOO_MANY_PIXELS)
    answer = await hand.read(job_id, Accept_Language=wanted)
    messages = FAILURE_MESSAGES_RU if language == "ru" else FAILURE_MESSAGES
    assert answer.json()["error"] == {"code": "too_many_pixels", "message": messages[FailureCode.TOO_MANY_PIXELS]}
    assert answer.headers["content-language"] == language


async def test_an_expired_job_is_gone_for_its_owner_and_unknown_to_others(hand: Hand) -> None:
    job_id = await hand.ready()
    await expired(hand.line.raw, job_id)
    own = await hand.read(job_id)
    assert (own.status_code, own.json()["code"]) == (410, "expired")
    foreign = await hand.read(job_id, token=await hand.token_of("ben"))
    assert (foreign.status_code, foreign.json()["code"]) == (404, "not_found")


async def test_the_answer_is_held_until_the_job_changes(hand: Hand) -> None:
    job_id, token = await hand.claimed()
    waiting = asyncio.create_task(hand.read(job_id, Prefer="wait=20"))
    done, _ = await asyncio.wait({waiting}, timeout=1)
    assert not done
    since_s = time.monotonic()
    await hand.jobs.fail(job_id, claim_token=token, code=FailureCode.INTERNAL)
    answer = await waiting
    assert time.monotonic() - since_s < 2.0
    assert (answer.status_code, answer.json()["status"]) == (200, "failed")
    assert answer.headers["preference-applied"] == "wait=20"


async def test_the_answer_is_held_no_longer_than_told(hand: Hand) -> None:
    job_id = await hand.queued()
    etag = (await hand.read(job_id)).headers["etag"]
    since_s = time.monotonic()
    answer = await hand.read(job_id, Prefer="wait=1", If_None_Match=etag)
    assert 0.9 < time.monotonic() - since_s < 3
    assert answer.status_code == 304
    assert answer.headers["preference-applied"] == "wait=1"
    assert "retry-after" in answer.headers


@pytest.mark.parametrize("state", ["ready", "failed", "cancelled"])
async def test_nothing_is_waited_for_when_the_job_is_final(hand: Hand, state: str) -> None:
    job_id = await make(hand, state)
    since_s = time.monotonic()
    assert (await hand.read(job_id, Prefer="wait=20")).status_code == 200
    assert time.monotonic() - since_s < 5


async def test_nothing_is_waited_for_when_the_client_knows_another_version(hand: Hand) -> None:
    job_id = await hand.queued()
    since_s = time.monotonic()
    answer = await hand.read(job_id, Prefer="wait=20", If_None_Match='"an older one"')
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert time.monotonic() - since_s < 5


async def test_more_clients_than_may_wait_are_answered_at_once_and_room_comes_back(hand: Hand) -> None:
    job_id = await hand.queued()
    limits = httpx.Limits(max_connections=80)
    async with httpx.AsyncClient(limits=limits, timeout=30, base_url=hand.line.base_url) as http:
        headers = {"Authorization": f"Bearer {hand.line.token}", "Prefer": "wait=25"}
        reads = [asyncio.create_task(http.get(f"{JOBS}/{job_id}", headers=headers)) for _ in range(60)]
        done, held = await asyncio.wait(reads, timeout=5)
        assert (len(done), len(held)) == (10, 50)
        assert all("preference-applied" not in read.result().headers for read in done)
        for read in held:
            read.cancel()
        await asyncio.wait(held)

        async def room() -> bool:
            answer = await http.get(f"{JOBS}/{job_id}", headers={**headers, "Prefer": "wait=0"})
            return "preference-applied" in answer.headers

        # Clients that went away do not count: their places come back long before their 25 seconds.
        await until(room, timeout_s=5, what="room for another waiter")


async def test_an_image_is_what_its_ready_job_says(hand: Hand) -> None:
    job_id = await hand.ready()
    image = await hand.ask("GET", f"{IMAGES}/{await hand.image_of(job_id)}")
    assert (image.status_code, image.json()["job_id"], image.json()["status"]) == (200, str(job_id), "ready")
    unknown = await hand.ask("GET", f"{IMAGES}/{uuid.uuid4()}")
    foreign = await hand.ask("GET", f"{IMAGES}/{await hand.image_of(job_id)}", token=await hand.token_of("ben"))
    assert unknown.status_code == foreign.status_code == 404
    assert unknown.content == foreign.content


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nothing", 404, "not_found"),
        ("PATCH", f"{JOBS}/{NOBODYS_ID}", 405, "method_not_allowed"),
        ("PUT", JOBS, 405, "method_not_allowed"),
        ("GET", f"{JOBS}?limit=0", 422, "invalid_field"),
        ("GET", f"{JOBS}?limit=x", 422, "invalid_field"),
    ],
)
async def test_the_frameworks_own_refusals_are_problem_documents_too(
    hand: Hand, method: str, path: str, status: int, code: str
) -> None:
    answer = await hand.ask(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert ("allow" in answer.headers) is (status == 405)


async def test_what_nobody_anticipated_is_a_problem_document_too(hand: Hand) -> None:
    await hand.line.raw.execute("ALTER TABLE spillway.messages RENAME TO messages_away")
    try:
        answer = await hand.ask("GET", "/api/v1/messages")
    finally:
        await hand.line.raw.execute("ALTER TABLE spillway.messages_away RENAME TO messages")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert answer.json()["code"] == "internal"
    assert "messages" not in answer.text
    counted = 'spillway_http_refusals_total{code="internal"} 1.0'
    assert counted in (await hand.line.http.get(f"{hand.line.base_url}/metrics")).text


async def test_a_waiting_client_never_holds_back_a_shutdown(servers: Servers, environment: Mapping[str, str]) -> None:
    async with open_edge(servers, environment, janitor=False) as line:
        opened = await open_hand(line)
        job_id = await opened.queued()
        waiting = [asyncio.create_task(opened.read(job_id, Prefer="wait=25")) for _ in range(5)]
        done, _ = await asyncio.wait(waiting, timeout=1)
        assert not done
        (child,) = children_of(api_of(line))
        since_s = time.monotonic()
        child.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*waiting)
        assert time.monotonic() - since_s < 3
        assert {(answer.status_code, answer.json()["status"]) for answer in answers} == {(200, "queued")}
        await opened.database.close()
