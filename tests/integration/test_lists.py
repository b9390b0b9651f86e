"""An owner's list of jobs: pages that miss and repeat nothing, states as shown, and refusals of what is not ours."""

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import pytest

from stack.servers import Servers
from tests.edge import open_edge
from tests.jobs_by_hand import JOBS, Hand, open_hand


@pytest.fixture(scope="module")
async def hand(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Hand]:
    env = {"SPILLWAY_PAGE_ROWS_MAX": "5", "SPILLWAY_ADMISSION_JOBS_MAX": "500"}
    async with open_edge(servers, environment, env=env, janitor=False) as line:
        opened = await open_hand(line)
        yield opened
        await opened.database.close()


async def insert(hand: Hand, owner: str, states: list[str]) -> list[str]:
    """Write rows in these states, one moment for each two of them; return their ids, newest first."""
    ids = [uuid.uuid4() for _ in states]
    for at, (job_id, state) in enumerate(zip(ids, states, strict=True)):
        # One statement each: what a row must have in its state is the schema's to check.
        await hand.line.raw.execute(
            """INSERT INTO spillway.jobs (id, image_id, owner, state, holds_place, held_bytes, bytes_book, admitted_at,
                released_at, upload_token, upload_lease_until, upload_deadline_at, source_bytes, source_sha256,
                source_format, accepted_at, deadline_at, due_at, pipeline_version, claim_token, lease_until,
                finished_at, variants, error_code)
            SELECT $1, $1, $2, s.state, s.working, 0, 'none', now(), CASE WHEN s.working THEN NULL ELSE now() END, $1,
                now(), now(), 9, 'ab', 'jpeg', timestamptz '2026-01-01' + make_interval(secs => $4 / 2), now(), now(),
                1, 1, CASE WHEN s.state IN ('processing', 'cancelling') THEN now() END,
                CASE WHEN s.working THEN NULL ELSE now() END, CASE WHEN s.state = 'ready' THEN '[]'::jsonb END,
                CASE WHEN s.state = 'failed' THEN 'internal' END
            FROM (SELECT $3::text AS state, $3 IN ('queued', 'processing', 'cancelling') AS working) AS s""",
            job_id,
            owner,
            state,
            at,
        )
    rows = await hand.line.raw.fetch(
        "SELECT id FROM spillway.jobs WHERE owner = $1 ORDER BY accepted_at DESC, id DESC", owner
    )
    return [str(row["id"]) for row in rows]


async def page(hand: Hand, token: str, query: str) -> dict[str, Any]:
    answer = await hand.ask("GET", f"{JOBS}?{query}", token=token)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
    document: dict[str, Any] = answer.json()
    return document


async def all_pages(hand: Hand, token: str, query: str) -> list[list[str]]:
    found, cursor = [], ""
    while True:
        document = await page(hand, token, query + cursor)
        found.append([job["job_id"] for job in document["jobs"]])
        if "next_cursor" not in document:
            return found
        cursor = f"&cursor={quote(document['next_cursor'])}"


async def test_pages_hold_every_job_once_newest_first(hand: Hand) -> None:
    token = await hand.token_of("pages")
    ids = await insert(hand, "pages", ["queued"] * 12)
    found = await all_pages(hand, token, "limit=4")
    assert [len(one) for one in found] == [4, 4, 4]
    assert [job_id for one in found for job_id in one] == ids
    assert [len(one) for one in await all_pages(hand, token, "limit=100")] == [5, 5, 2]


async def test_a_job_that_comes_while_pages_are_read_moves_nothing(hand: Hand) -> None:
    token = await hand.token_of("moving")
    await insert(hand, "moving", ["queued"] * 4)
    first = await page(hand, token, "limit=2")
    ids = await insert(hand, "moving", ["queued"] * 9)
    second = await page(hand, token, f"limit=2&cursor={quote(first['next_cursor'])}")
    seen = [job["job_id"] for job in first["jobs"] + second["jobs"]]
    assert len(set(seen)) == 4
    assert [job_id for job_id in ids if job_id in seen] == seen


async def test_states_are_those_that_are_shown_and_expired_jobs_are_not(hand: Hand) -> None:
    token = await hand.token_of("states")
    states = ["queued", "processing", "cancelling", "ready", "failed", "cancelled", "expired"]
    await insert(hand, "states", states)
    everything = await all_pages(hand, token, "")
    assert sum(len(one) for one in everything) == 6
    for state in states[:-1]:
        (job,) = (await page(hand, token, f"state={state}"))["jobs"]
        assert job["status"] == state
    both = (await page(hand, token, "state=ready&state=failed"))["jobs"]
    assert {job["status"] for job in both} == {"ready", "failed"}


async def test_an_entry_is_what_the_job_itself_shows(hand: Hand) -> None:
    job_id = await hand.ready()
    (entry,) = [
        job for job in (await page(hand, hand.line.token, "state=ready"))["jobs"] if job["job_id"] == str(job_id)
    ]
    assert entry == (await hand.read(job_id)).json()


async def test_nobody_sees_the_jobs_of_others(hand: Hand) -> None:
    await insert(hand, "rich", ["queued"] * 3)
    assert await page(hand, await hand.token_of("poor"), "") == {"jobs": []}


@pytest.mark.parametrize(
    "query",
    [
        "state=uploading",
        "state=expired",
        "state=",
        "state=ready&state=nothing",
        "limit=-1",
        "limit=1001",
        "limit=1.5",
        "cursor=",
        "cursor=abc",
        "cursor=" + "A" * 33,
        "cursor=" + "%00" * 32,
        "cursor=" + "%C3%A9" * 32,
        "cursor=" + "_" * 32,
    ],
)
async def test_bad_values_are_refused(hand: Hand, query: str) -> None:
    answer = await hand.ask("GET", f"{JOBS}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field")


async def test_a_list_needs_a_token(hand: Hand) -> None:
    answer = await hand.line.http.get(hand.line.base_url + JOBS)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
