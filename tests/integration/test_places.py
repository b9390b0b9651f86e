"""Reserve, then upload: the bytes go straight to the store, and only the announced ones become a job."""

import asyncio
import base64
import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from contracts.keys import inbox_key, original_key, staging_key
from stack.servers import Servers
from tests.edge import Answer, api_of, exchange, head, open_edge
from tests.line import Line, photo, until

PHOTO = photo(1)
PLACES = "/api/v1/image-places"
#: Of no place; the same in every process, since tests that run beside each other must have the same names.
NOBODYS_ID = "9f0c3d52-6a1e-4c8b-9a57-0d8f1c2b3a44"
JOBS_MAX = 12


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment, env={"SPILLWAY_ADMISSION_JOBS_MAX": str(JOBS_MAX)}) as opened:
        yield opened


@pytest.fixture(autouse=True)
async def _places_given_back(line: Line) -> AsyncIterator[None]:
    yield
    await line.raw.execute("SELECT spillway.cancel(id, owner) FROM spillway.jobs WHERE state = 'queued'")
    await line.raw.execute("SELECT spillway.drop_upload(id, upload_token) FROM spillway.jobs WHERE state = 'uploading'")

    async def empty() -> bool:
        return tuple(await line.raw.fetchrow("SELECT jobs_held, staging_bytes FROM spillway.gate") or ()) == (0, 0)

    await until(empty, timeout_s=10, what="all places and bytes given back")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def declaration(data: bytes, **other: object) -> dict[str, object]:
    return {"bytes": len(data), "media_type": "image/jpeg", "sha256": sha256(data), **other}


async def send(line: Line, path: str, body: object = None, *lines: str, **other: Any) -> Answer:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    start = head(
        other.pop("token", line.token),
        *lines,
        length_bytes=len(data),
        content_type="application/json" if data else None,
        method=other.pop("method", "POST"),
        path=path,
    )
    return await exchange(other.pop("port", api_of(line).port), start + data)


async def take(line: Line, data: bytes, **other: Any) -> dict[str, Any]:
    answer = await send(line, PLACES, declaration(data), **other)
    assert answer.status == 201, answer.body
    place: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"{PLACES}/{place['job_id']}"
    return place


async def put(place: dict[str, Any], data: bytes, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        sent = {**place["upload_headers"], **headers}
        return await client.request(place["upload_method"], place["upload_url"], content=data, headers=sent)


async def test_a_file_sent_straight_to_the_store_becomes_a_job(line: Line) -> None:
    place = await take(line, PHOTO)
    job_id = uuid.UUID(place["job_id"])
    assert place["expires_at"].endswith("Z")
    early = await send(line, place["complete_url"])
    assert (early.status, early.code, int(early.headers["retry-after"]) >= 1) == (409, "upload_incomplete", True)
    assert (await put(place, PHOTO)).status_code == 200
    answer = await send(line, place["complete_url"])
    row = await line.row(job_id)
    assert (answer.status, answer.json()["status"]) == (202, "queued")
    assert (answer.json()["job_id"], answer.json()["image_id"]) == (place["job_id"], place["image_id"])
    assert answer.headers["location"] == f"/api/v1/image-jobs/{job_id}"
    assert (row["state"], row["source_sha256"], row["source_bytes"]) == ("queued", sha256(PHOTO), len(PHOTO))
    assert (row["source_format"], row["source_width"], row["source_height"]) == ("jpeg", 400, 300)
    assert await line.objects.get(staging_key(job_id), bytes_max=10**6) == PHOTO
    assert not await line.objects.exists(inbox_key(job_id))
    again = await send(line, place["complete_url"])
    assert (again.status, again.headers["idempotency-replayed"]) == (202, "true")
    assert again.json()["job_id"] == place["job_id"]
    assert await line.raw.fetchval("SELECT count(*) FROM spillway.outbox WHERE job_id = $1", job_id) == 1


async def test_completions_at_once_are_one_job_which_a_worker_finishes(line: Line) -> None:
    place = await take(line, PHOTO)
    job_id = uuid.UUID(place["job_id"])
    await put(place, PHOTO)
    await line.start("relay", "worker")
    answers = await asyncio.gather(*(send(line, place["complete_url"]) for _ in range(10)))
    assert {answer.status for answer in answers} == {202}
    row = await line.wait_state(job_id, "ready")
    assert await line.sha256(original_key(row["image_id"])) == sha256(PHOTO)
    ready = await send(line, place["complete_url"])
    assert (ready.status, ready.json()["status"]) == (202, "ready")
    assert (await put(place, PHOTO)).status_code == 200  # the link still works; what it brings is swept with the job

    async def clear() -> bool:
        return not await line.objects.exists(staging_key(job_id))

    await until(clear, timeout_s=10, what="the staged file deleted")
    for role in line.roles.processes:
        if role.role in ("relay", "worker"):
            await asyncio.to_thread(role.kill)


async def test_the_link_takes_the_announced_bytes_and_no_others(line: Line) -> None:
    place = await take(line, PHOTO)
    other = PHOTO[:-1] + b"\0"
    forged = base64.b64encode(hashlib.sha256(other).digest()).decode()
    assert (await put(place, other)).status_code == 400
    assert (await put(place, other, **{"x-amz-checksum-sha256": forged})).status_code == 403
    assert (await put(place, PHOTO + b"\0", **{"Content-Length": str(len(PHOTO) + 1)})).status_code == 403
    assert (await put(place, PHOTO, **{"Content-Type": "text/html"})).status_code == 403
    elsewhere = place["upload_url"].replace("inbox/", "staging/")
    assert (await put({**place, "upload_url": elsewhere}, PHOTO)).status_code == 403
    assert (await send(line, place["complete_url"])).code == "upload_incomplete"


@pytest.mark.parametrize(
    ("data", "code"), [(b"<svg/>" * 20, "unsupported_format"), (b"no image at all", "unsupported_format")]
)
async def test_a_bad_file_ends_its_place_and_leaves_nothing(line: Line, data: bytes, code: str) -> None:
    place = await take(line, data)
    assert (await put(place, data)).status_code == 200
    assert (await send(line, place["complete_url"])).code == code
    assert (await send(line, place["complete_url"])).code == "not_found"
    await swept(line, place)


async def swept(line: Line, place: dict[str, Any]) -> None:
    job_id = uuid.UUID(place["job_id"])

    async def gone() -> bool:
        row = await line.raw.fetchrow("SELECT * FROM spillway.jobs WHERE id = $1", job_id)
        held = row is not None and (row["holds_place"] or row["held_bytes"])
        return not held and not await line.objects.exists(inbox_key(job_id))

    await until(gone, timeout_s=10, what="place, bytes and file gone")
    assert not await line.objects.exists(staging_key(job_id))


async def test_a_file_that_came_in_by_another_way_is_not_what_was_announced(line: Line) -> None:
    place = await take(line, PHOTO)
    # Not through the link: it has no checksum in the store, so it is read.
    await line.objects.put(inbox_key(uuid.UUID(place["job_id"])), photo(2), media_type="image/jpeg")
    assert (await send(line, place["complete_url"])).code == "digest_mismatch"
    await swept(line, place)
    place = await take(line, PHOTO)
    await line.objects.put(inbox_key(uuid.UUID(place["job_id"])), PHOTO, media_type="image/jpeg")
    assert (await send(line, place["complete_url"])).status == 202


async def test_a_place_is_given_back(line: Line) -> None:
    place = await take(line, PHOTO)
    await put(place, PHOTO)
    path = f"{PLACES}/{place['job_id']}"
    assert await line.raw.fetchval("SELECT jobs_held FROM spillway.gate") == 1
    answer = await send(line, path, method="DELETE")
    assert (answer.status, answer.body) == (204, b"")
    assert await line.raw.fetchval("SELECT jobs_held FROM spillway.gate") == 0
    assert (await send(line, path, method="DELETE")).code == "not_found"
    assert (await send(line, place["complete_url"])).code == "not_found"
    await swept(line, place)


async def test_open_places_count_in_the_bound_and_in_their_owners_share(line: Line) -> None:
    shared = await line.start_named("api", name="api-share", SPILLWAY_ADMISSION_OWNER_JOBS_MAX="2")
    for _ in range(2):
        await take(line, PHOTO, port=shared.port)
    answer = await send(line, PLACES, declaration(PHOTO), port=shared.port)
    assert (answer.status, answer.code) == (429, "owner_limit")
    await asyncio.to_thread(shared.kill)
    for _ in range(JOBS_MAX - 2):
        await take(line, PHOTO)
    answer = await send(line, PLACES, declaration(PHOTO))
    assert (answer.status, answer.code) == (503, "backlog_full")
    assert answer.took_s < 1.0


async def test_a_place_ends_with_its_deadline_and_its_row_outlives_the_link(line: Line) -> None:
    short = await line.start_named("api", name="api-short", SPILLWAY_PLACE_DEADLINE_S="2")
    place = await take(line, PHOTO, port=short.port)
    job_id, since_s = uuid.UUID(place["job_id"]), time.monotonic()
    await asyncio.to_thread(short.kill)

    async def ended() -> bool:
        return bool(await line.raw.fetchval("SELECT state = 'dropped' FROM spillway.jobs WHERE id = $1", job_id))

    await until(ended, timeout_s=6, what="the place ended")
    assert time.monotonic() - since_s >= 1.5
    assert (await put(place, PHOTO)).status_code == 403
    # As if the last bytes had only just arrived.
    await line.objects.put(inbox_key(job_id), PHOTO, media_type="image/jpeg")

    async def forgotten() -> bool:
        return not await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE id = $1", job_id)

    await until(forgotten, timeout_s=12, what="the row deleted")
    assert time.monotonic() - since_s >= 4.0
    assert not await line.objects.exists(inbox_key(job_id))


async def test_the_headers_alone_declare_a_file(line: Line) -> None:
    digest = base64.b64encode(hashlib.sha256(PHOTO).digest()).decode()
    lines = (f"Upload-Length: {len(PHOTO)}", "Upload-Type: image/jpeg", f"Repr-Digest: sha-256=:{digest}:")
    answer = await send(line, PLACES, None, *lines)
    assert answer.status == 201
    assert (await put(answer.json(), PHOTO)).status_code == 200
    assert (await send(line, answer.json()["complete_url"])).status == 202
    for left_out in range(3):
        answer = await send(line, PLACES, None, *(line_ for number, line_ in enumerate(lines) if number != left_out))
        assert (answer.status, answer.code) == (422, "invalid_field")


@pytest.mark.parametrize("digits", ["9" * 30, "9" * 5000], ids=len)
async def test_a_size_of_any_length_in_the_headers_is_too_many_bytes(line: Line, digits: str) -> None:
    digest = base64.b64encode(hashlib.sha256(PHOTO).digest()).decode()
    lines = (f"Upload-Length: {digits}", "Upload-Type: image/jpeg", f"Repr-Digest: sha-256=:{digest}:")
    answer = await send(line, PLACES, None, *lines)
    assert (answer.status, answer.code) == (413, "too_many_bytes")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_request"),
        (b"[]", 422, "invalid_field"),
        ({}, 422, "invalid_field"),
        (declaration(PHOTO, bytes=0), 422, "invalid_field"),
        (declaration(PHOTO, bytes="9"), 422, "invalid_field"),
        (declaration(PHOTO, bytes=10**30), 413, "too_many_bytes"),
        (declaration(PHOTO, bytes=32 * 1024**2 + 1), 413, "too_many_bytes"),
        (declaration(PHOTO, media_type="image/svg+xml"), 422, "invalid_field"),
        (declaration(PHOTO, media_type="image/jpeg\r\nX: y"), 422, "invalid_field"),
        (declaration(PHOTO, sha256="0" * 63), 422, "invalid_field"),
        (declaration(PHOTO, sha256="0" * 64 + "\n"), 422, "invalid_field"),
        (b'{"x":"' + b"x" * 200_000 + b'"}', 413, "too_many_bytes"),
    ],
)
async def test_a_bad_declaration_takes_no_place(line: Line, body: object, status: int, code: str) -> None:
    answer = await send(line, PLACES, body)
    assert (answer.status, answer.code) == (status, code)
    assert await line.raw.fetchval("SELECT jobs_held FROM spillway.gate") == 0


@pytest.mark.parametrize("job_id", [NOBODYS_ID, "x", "%00", "{" + NOBODYS_ID + "}"])
async def test_a_place_that_is_none_is_not_found(line: Line, job_id: str) -> None:
    assert (await send(line, f"{PLACES}/{job_id}/complete")).code == "not_found"
    assert (await send(line, f"{PLACES}/{job_id}", method="DELETE")).code == "not_found"


async def test_places_of_others_are_not_found(line: Line) -> None:
    place = await take(line, PHOTO)
    await put(place, PHOTO)
    await line.raw.execute("UPDATE spillway.jobs SET owner = 'ben' WHERE id = $1", uuid.UUID(place["job_id"]))
    await line.raw.execute("INSERT INTO spillway.owners VALUES ('ben', 1)")
    await line.raw.execute("UPDATE spillway.owners SET jobs_held = jobs_held - 1 WHERE owner = 'ann'")
    assert (await send(line, place["complete_url"])).code == "not_found"
    assert (await send(line, f"{PLACES}/{place['job_id']}", method="DELETE")).code == "not_found"
    assert (await send(line, PLACES, declaration(PHOTO), token=None)).code == "unauthenticated"
