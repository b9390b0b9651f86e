"""The registry over HTTP: who may, what is shown, what a replay answers, and that a source is never lost to a race."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from app.core.backlog import Backlog
from app.core.registry import DeadReason
from app.core.retention import Keep, Retention
from app.core.tokens import Scope, TokenStore
from contracts.errors import FailureCode
from contracts.keys import staging_key
from stack.servers import Servers
from tests.edge import body, open_edge, post
from tests.jobs_by_hand import PHOTO, Hand, open_hand
from tests.line import until
from worker.cleaner import Cleaner

ADMIN = "/api/v1/admin"
PROBLEM = "application/problem+json"
#: The admin's jobs are waited for by nobody here: places for what this module leaves behind.
ENVIRONMENT = {"SPILLWAY_ADMISSION_JOBS_MAX": "60"}
DAY_S = 86_400.0
KEEP = Keep(
    ready_s=DAY_S, failed_s=DAY_S, cancelled_s=DAY_S, message_s=DAY_S, gone_s=DAY_S, failed_source_bytes_max=10**9
)
NO_SUCH_JOB = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Desk:
    """A line without workers or janitor, seen by somebody with an admin's token."""

    hand: Hand
    token_id: uuid.UUID
    token: str

    async def ask(self, method: str, path: str, *, token: str | None = None, **parts: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return await self.hand.line.http.request(
            method, self.hand.line.base_url + ADMIN + path, headers=headers, **parts
        )

    async def replay(self, job_id: object, **params: str) -> httpx.Response:
        return await self.ask("POST", f"/jobs/{job_id}/replay", params=params)

    async def listed(self, **params: str | int) -> list[str]:
        answer = await self.ask("GET", "/failed-jobs", params=params)
        assert answer.status_code == 200, answer.text
        return [job["job_id"] for job in answer.json()["jobs"]]

    async def fresh_owner(self) -> tuple[str, str]:
        """Return the name of an owner whom nobody else has, and a token of theirs."""
        owner = f"owner {uuid.uuid4().hex[:8]}"
        return owner, (await TokenStore(self.hand.database).create(owner=owner))[1]


@pytest.fixture(scope="module")
async def desk(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Desk]:
    async with open_edge(servers, environment, env=ENVIRONMENT, janitor=False) as line:
        hand = await open_hand(line)
        token_id, token = await TokenStore(hand.database).create(owner="root", scopes=[Scope.ADMIN])
        yield Desk(hand, token_id, token)
        await hand.database.close()


def refused(answer: httpx.Response) -> tuple[int, str]:
    """The status and code of a problem document."""
    assert answer.headers["content-type"] == PROBLEM
    return answer.status_code, answer.json()["code"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/failed-jobs"),
        ("GET", "/dead-letters"),
        ("GET", f"/jobs/{NO_SUCH_JOB}"),
        ("POST", f"/jobs/{NO_SUCH_JOB}/replay"),
        ("POST", "/replays"),
    ],
)
async def test_only_a_token_with_the_scope_admin_gets_in(desk: Desk, method: str, path: str) -> None:
    assert refused(await desk.ask(method, path, token=desk.hand.line.token)) == (403, "forbidden")
    assert refused(await desk.ask(method, path, token="nobody's")) == (401, "unauthenticated")


async def test_an_admins_token_is_no_users_token(desk: Desk) -> None:
    answer = await desk.hand.ask("GET", "/api/v1/image-jobs", token=desk.token)
    assert refused(answer) == (403, "forbidden")


async def test_failed_jobs_of_every_owner_are_listed_and_filtered(desk: Desk) -> None:
    job_id = await desk.hand.failed(FailureCode.WORKER_LOST)
    waiting = await desk.hand.queued()
    row = await desk.hand.line.row(job_id)
    shown = next(job for job in (await desk.ask("GET", "/failed-jobs")).json()["jobs"] if job["job_id"] == str(job_id))
    assert (shown["owner"], shown["status"], shown["error_code"]) == ("ann", "failed", "worker_lost")
    assert (shown["replayable"], shown["bytes"], shown["format"]) == (True, len(PHOTO), "jpeg")
    failed_at = row["finished_at"].isoformat().replace("+00:00", "Z")
    for inside in ({"owner": "ann"}, {"code": "worker_lost"}, {"since": failed_at}, {"pipeline_version": 1}):
        assert str(job_id) in await desk.listed(**inside), inside
    for outside in ({"owner": "bob"}, {"code": "internal"}, {"until": failed_at}, {"pipeline_version": 2}):
        assert str(job_id) not in await desk.listed(**outside), outside
    assert str(waiting) not in await desk.listed(limit=100)


async def test_pages_follow_each_other(desk: Desk) -> None:
    expected = {str(await desk.hand.failed(FailureCode.TOO_MANY_PIXELS)) for _ in range(3)}
    seen: list[str] = []
    params: dict[str, str | int] = {"code": "too_many_pixels", "limit": 1}
    for _ in range(3):
        page = (await desk.ask("GET", "/failed-jobs", params=params)).json()
        seen += [job["job_id"] for job in page["jobs"]]
        params["cursor"] = page.get("next_cursor", "")
    assert (set(seen), len(seen)) == (expected, 3)
    assert "next_cursor" not in page


@pytest.mark.parametrize(
    "params",
    [
        {"owner": "a\x00"},
        {"owner": ""},
        {"code": "bad_luck"},
        {"since": "yesterday"},
        {"since": "2026-01-31"},
        {"until": "0001-01-01T00:00:00+23:59"},
        {"pipeline_version": "0"},
        {"limit": "0"},
        {"cursor": "x"},
    ],
)
async def test_a_filter_that_is_none_is_refused(desk: Desk, params: dict[str, str]) -> None:
    assert refused(await desk.ask("GET", "/failed-jobs", params=params)) == (422, "invalid_field")


async def test_a_replay_keeps_the_id_and_says_afterwards_who_asked_for_it(desk: Desk) -> None:
    job_id = await desk.hand.failed()
    answer = await desk.replay(job_id)
    assert (answer.status_code, answer.json()["job_id"], answer.json()["status"]) == (202, str(job_id), "queued")
    seen_by_its_owner = await desk.hand.read(job_id)
    assert (seen_by_its_owner.status_code, seen_by_its_owner.json()["status"]) == (200, "queued")
    inspected = (await desk.ask("GET", f"/jobs/{job_id}")).json()
    (entry,) = inspected["audit"]
    assert entry["who"] == f"token {desk.token_id}"
    assert (entry["action"], entry["status_before"], entry["error_code_before"]) == (
        "replay",
        "failed",
        "invalid_image",
    )
    assert await desk.hand.line.objects.exists(staging_key(job_id))


async def test_a_dry_run_answers_what_would_be_and_changes_nothing(desk: Desk) -> None:
    job_id, waiting = await desk.hand.failed(), await desk.hand.queued()
    answer = await desk.replay(job_id, dry_run="true")
    assert (answer.status_code, answer.json()["status"], answer.json()["replayable"]) == (200, "failed", True)
    assert (await desk.hand.line.row(job_id))["state"] == "failed"
    assert (await desk.ask("GET", f"/jobs/{job_id}")).json()["audit"] == []
    assert refused(await desk.replay(waiting, dry_run="true")) == (409, "not_failed")


async def test_what_has_not_failed_is_not_replayed(desk: Desk) -> None:
    for made in (desk.hand.queued, desk.hand.ready, desk.hand.cancelled):
        assert refused(await desk.replay(await made())) == (409, "not_failed")
    assert refused(await desk.replay(NO_SUCH_JOB)) == (404, "not_found")
    assert refused(await desk.replay("x")) == (404, "not_found")


async def test_a_job_whose_source_was_found_missing_is_not_replayed_and_its_bytes_leave_the_books(desk: Desk) -> None:
    line = desk.hand.line
    books = "SELECT staging_bytes, failed_source_bytes FROM spillway.gate"
    before = await line.raw.fetchrow(books)
    job_id = await desk.hand.failed(FailureCode.SOURCE_MISSING)
    await line.objects.delete([staging_key(job_id)])
    await cleaner_of(desk.hand, KEEP).purge_failed_sources()
    assert await line.raw.fetchrow(books) == before
    assert refused(await desk.replay(job_id)) == (409, "source_missing")


async def test_a_replay_waits_its_turn_like_an_upload(servers: Servers, environment: Mapping[str, str]) -> None:
    async with open_edge(servers, environment, env={"SPILLWAY_ADMISSION_JOBS_MAX": "1"}, janitor=False) as line:
        hand = await open_hand(line)
        token_id, token = await TokenStore(hand.database).create(owner="root", scopes=[Scope.ADMIN])
        desk = Desk(hand, token_id, token)
        job_id = await hand.failed()

        async def taken() -> bool:
            return (await post(line, body(PHOTO))).status == 202

        await until(taken, what="the place that came free is taken again", timeout_s=10.0)
        answer = await desk.replay(job_id)
        assert refused(answer) == (503, "backlog_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await line.row(job_id))["state"] == "failed"
        many = (await desk.ask("POST", "/replays", json={})).json()
        assert many == {"dry_run": False, "outcomes": [], "stopped_by": "backlog_full"}
        await hand.database.close()


async def test_many_are_replayed_oldest_first_as_far_as_was_asked(desk: Desk) -> None:
    owner, _ = await desk.fresh_owner()
    job_ids = [str(await desk.hand.failed()) for _ in range(3)]
    await desk.hand.line.raw.execute("UPDATE spillway.jobs SET owner = $1 WHERE id = ANY ($2::uuid[])", owner, job_ids)
    dry = (await desk.ask("POST", "/replays", json={"owner": owner, "dry_run": True})).json()
    assert dry == {"dry_run": True, "outcomes": [{"job_id": job_id, "outcome": "queued"} for job_id in job_ids]}
    await desk.hand.line.raw.execute("UPDATE spillway.jobs SET source_gone_at = now() WHERE id = $1::uuid", job_ids[0])
    done = (await desk.ask("POST", "/replays", json={"owner": owner, "limit": 2})).json()
    assert [(found["job_id"], found["outcome"]) for found in done["outcomes"]] == [
        (job_ids[0], "source_missing"),
        (job_ids[1], "queued"),
    ]
    # What cannot be replayed does not stand in the way of the rest.
    rest = (await desk.ask("POST", "/replays", json={"owner": owner, "cursor": done["next_cursor"]})).json()
    assert rest == {"dry_run": False, "outcomes": [{"job_id": job_ids[2], "outcome": "queued"}]}
    assert await desk.listed(owner=owner) == job_ids[:1]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"owner": None}, "invalid_field"),
        ({"code": "bad_luck"}, "invalid_field"),
        ({"since": "now"}, "invalid_field"),
        ({"limit": 0}, "invalid_field"),
        ({"limit": True}, "invalid_field"),
        ({"limit": 1.5}, "invalid_field"),
        ({"dry_run": "no"}, "invalid_field"),
        ({"job_ids": []}, "invalid_field"),
        ({"cursor": "x"}, "invalid_field"),
        ([], "invalid_field"),
    ],
)
async def test_a_wish_for_replays_that_is_none_is_refused(desk: Desk, wanted: Any, code: str) -> None:
    assert refused(await desk.ask("POST", "/replays", json=wanted)) == (422, code)


async def test_dead_letters_are_shown_without_their_bytes(desk: Desk) -> None:
    sha256 = uuid.uuid4().hex * 2
    backlog = Backlog(desk.hand.database, rows_max=10)
    await backlog.note_dead_letter(body_sha256=sha256, body_bytes=7, reason=DeadReason.UNREADABLE, job_id=None)
    letters = (await desk.ask("GET", "/dead-letters")).json()["dead_letters"]
    shown = next(letter for letter in letters if letter["sha256"] == sha256)
    assert (shown["bytes"], shown["reason"], shown["seen"], "job_id" in shown) == (7, "unreadable", 1, False)


async def test_no_replay_is_ever_queued_without_its_source(desk: Desk) -> None:
    """Replays and purges of the same sources at once, many times: each job ends with both or with neither."""
    line = desk.hand.line
    job_ids = [await desk.hand.failed() for _ in range(12)]
    purging = cleaner_of(desk.hand, replace(KEEP, failed_source_bytes_max=0), rows_max=2)
    purges = asyncio.gather(*(purging.purge_failed_sources() for _ in range(9)))
    answers = await asyncio.gather(*(desk.replay(job_id) for job_id in reversed(job_ids)))
    await purges
    while await retention_of(desk.hand, KEEP).claim_purges():  # what was marked by one and not yet deleted by another
        await cleaner_of(desk.hand, KEEP).purge_failed_sources()
    for job_id, answer in zip(reversed(job_ids), answers, strict=True):
        queued = answer.status_code == 202
        assert queued or refused(answer) == (409, "source_missing")
        assert await line.objects.exists(staging_key(job_id)) is queued
        assert ((await line.row(job_id))["state"] == "queued") is queued


def retention_of(hand: Hand, keep: Keep, *, rows_max: int = 100) -> Retention:
    return Retention(hand.database, keep=keep, lease_s=60.0, rows_max=rows_max)


def cleaner_of(hand: Hand, keep: Keep, *, rows_max: int = 100) -> Cleaner:
    backlog = Backlog(hand.database, rows_max=100)
    return Cleaner(retention=retention_of(hand, keep, rows_max=rows_max), backlog=backlog, objects=hand.line.objects)
