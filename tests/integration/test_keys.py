"""Idempotency-Key over real sockets: one key, one job, whatever is repeated, aborted, refused or killed in between."""

import asyncio
import base64
import hashlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import pytest

from contracts.keys import staging_key
from stack.servers import Servers
from tests.edge import Answer, Connection, api_of, body, children_of, connect, exchange, head, open_edge
from tests.line import Line, photo, until

PHOTO, OTHER = photo(1), photo(2)
MIB = 1024 * 1024
LARGE = PHOTO + b"\0" * 6 * MIB
REPLAYS_MAX = 2
ATTACHMENTS = "/api/v1/attachments"


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    settings = {
        "SPILLWAY_ADMISSION_JOBS_MAX": "200",
        "SPILLWAY_API_PROCESSES": "2",
        "SPILLWAY_REPLAYS_PER_OWNER_MAX": str(REPLAYS_MAX),
    }
    async with open_edge(servers, environment, env=settings) as opened:
        yield opened


def digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def new_key() -> str:
    return f"key-{uuid.uuid4()}"


def head_of(line: Line, length_bytes: int, *lines: str, key: str | None, path: str = "/api/v1/images") -> bytes:
    keyed = lines if key is None else (f"Idempotency-Key: {key}", *lines)
    return head(line.token, *keyed, length_bytes=length_bytes, path=path)


async def put(line: Line, file: bytes, *lines: str, key: str | None, path: str = "/api/v1/images") -> Answer:
    data = body(file)
    return await exchange(api_of(line).port, head_of(line, len(data), *lines, key=key, path=path) + data)


async def jobs_of(line: Line, key: str) -> list[uuid.UUID]:
    rows = await line.raw.fetch("SELECT job_id FROM spillway.idempotency_keys WHERE key = $1", key)
    return [row["job_id"] for row in rows]


async def staged(line: Line) -> set[str]:
    return set(await line.objects.list_keys("staging/", keys_max=1000))


async def begin(line: Line, key: str, *, sent: int = 100_000) -> Connection:
    """Send the beginning of an upload with a key; returns once the key is claimed."""
    data = body(LARGE)
    connection = Connection(*await asyncio.open_connection("127.0.0.1", api_of(line).port))
    await connection.send(head_of(line, len(data), key=key) + data[:sent])

    async def claimed() -> bool:
        return bool(await jobs_of(line, key))

    await until(claimed, timeout_s=5, what="the key claimed")
    return connection


async def free(line: Line, key: str, *, timeout_s: float) -> None:
    async def gone() -> bool:
        return not await jobs_of(line, key)

    await until(gone, timeout_s=timeout_s, what="the key free")


@pytest.mark.parametrize("path", ["/api/v1/images", ATTACHMENTS])
async def test_a_repeat_is_the_same_job_in_its_present_state(line: Line, path: str) -> None:
    key = new_key()
    first = await put(line, PHOTO, key=key, path=path)
    assert (first.status, "idempotency-replayed" in first.headers) == (202, False)
    before = await staged(line)
    again = await put(line, PHOTO, key=key, path=path)
    assert (again.status, again.headers["idempotency-replayed"]) == (202, "true")
    assert again.headers["location"] == first.headers["location"]
    ids = [name for name in first.json() if name.endswith("_id")]
    assert {name: again.json()[name] for name in ids} == {name: first.json()[name] for name in ids}
    assert (again.json()["status"], int(again.headers["retry-after"]) >= 1) == ("queued", True)
    await line.raw.execute("SELECT spillway.cancel($1, 'ann')", uuid.UUID(first.json()["job_id"]))
    ended = await put(line, PHOTO, key=key, path=path)
    assert ended.json()["status"] == ("failed" if path == ATTACHMENTS else "cancelled")
    assert "retry-after" not in ended.headers
    assert await staged(line) <= before


async def test_the_same_key_for_another_file_is_a_conflict(line: Line) -> None:
    key = new_key()
    first = await put(line, PHOTO, key=key)
    answer = await put(line, OTHER, key=key)
    assert (answer.status, answer.code) == (409, "key_conflict")
    assert await jobs_of(line, key) == [uuid.UUID(first.json()["job_id"])]


async def test_keys_of_images_attachments_and_owners_never_meet(line: Line) -> None:
    key = new_key()
    image = await put(line, PHOTO, key=key)
    attachment = await put(line, PHOTO, key=key, path=ATTACHMENTS)
    assert attachment.status == 202
    assert image.json()["job_id"] != attachment.json()["job_id"]


async def test_fifty_parallel_posts_on_two_processes_are_one_job(line: Line) -> None:
    assert len(children_of(api_of(line))) == 2
    key, before = new_key(), await staged(line)
    answers = await asyncio.gather(*(put(line, PHOTO, key=key) for _ in range(50)))
    codes = Counter("202" if answer.status == 202 else answer.code for answer in answers)
    assert set(codes) <= {"202", "key_in_use", "rate_limited"}
    assert all("retry-after" in answer.headers for answer in answers)
    (job_id,) = {answer.json()["job_id"] for answer in answers if answer.status == 202}
    assert await jobs_of(line, key) == [uuid.UUID(job_id)]
    assert await staged(line) - before == {staging_key(uuid.UUID(job_id))}
    fresh = [answer for answer in answers if answer.status == 202 and "idempotency-replayed" not in answer.headers]
    assert len(fresh) == 1


async def test_while_the_first_upload_is_on_its_way_the_key_is_in_use(line: Line) -> None:
    key = new_key()
    connection = await begin(line, key)
    answer = await exchange(api_of(line).port, head_of(line, 9 * MIB, key=key))
    assert (answer.status, answer.code) == (409, "key_in_use")
    assert int(answer.headers["retry-after"]) >= 1
    connection.abort()
    await free(line, key, timeout_s=5)
    assert (await put(line, LARGE, key=key)).status == 202


async def test_refusals_and_bad_files_are_never_remembered(line: Line) -> None:
    key = new_key()
    assert (await put(line, b"no image", key=key)).code == "unsupported_format"
    assert (await put(line, b"", key=key)).code == "empty_file"
    data = body(PHOTO)
    cut = head_of(line, len(data), key=key) + data[: len(data) // 2]
    assert (await exchange(api_of(line).port, cut, finish=True)).code == "truncated_body"
    answer = await put(line, PHOTO, key=key)
    assert (answer.status, "idempotency-replayed" in answer.headers) == (202, False)


@pytest.mark.parametrize("key", ["", " ", "a b", "k" * 256, "\xe9", "a\tb"])
async def test_a_key_that_is_none_is_refused_before_a_place_is_taken(line: Line, key: str) -> None:
    answer = await exchange(api_of(line).port, head_of(line, MIB, key=key))
    assert (answer.status, answer.code) == (422, "invalid_field")


async def test_two_keys_are_none_and_the_longest_is_one(line: Line) -> None:
    answer = await exchange(api_of(line).port, head_of(line, MIB, "Idempotency-Key: b", key="a"))
    assert answer.code == "invalid_field"
    key = new_key().ljust(255, "~")
    assert (await put(line, PHOTO, key=key)).status == 202
    assert (await put(line, PHOTO, key=key)).headers["idempotency-replayed"] == "true"


async def test_an_equal_digest_answers_before_the_body(line: Line) -> None:
    key = new_key()
    first = await put(line, LARGE, f"Repr-Digest: {digest(LARGE)}", key=key)
    lines = ("Expect: 100-continue", f"Repr-Digest: {digest(LARGE)}")
    answer = await exchange(api_of(line).port, head_of(line, len(body(LARGE)), *lines, key=key))
    assert (answer.status, answer.continued) == (202, False)
    assert answer.json()["job_id"] == first.json()["job_id"]
    lines = ("Expect: 100-continue", f"Repr-Digest: {digest(OTHER)}")
    answer = await exchange(api_of(line).port, head_of(line, len(body(LARGE)), *lines, key=key))
    assert (answer.status, answer.code, answer.continued) == (409, "key_conflict", False)


@pytest.mark.parametrize("name", ["Repr-Digest", "Content-Digest"])
async def test_a_fresh_upload_must_have_the_digest_it_announced(line: Line, name: str) -> None:
    key, jobs, before = new_key(), len(await line.rows()), await staged(line)
    answer = await put(line, LARGE, f"{name}: {digest(b'other')}", key=key)
    assert (answer.status, answer.code) == (422, "digest_mismatch")
    await free(line, key, timeout_s=5)

    async def swept() -> bool:
        return len(await line.rows()) <= jobs and await staged(line) <= before

    await until(swept, timeout_s=10, what="row and object gone")
    right = body(LARGE) if name == "Content-Digest" else LARGE
    assert (await put(line, LARGE, f"{name}: sha-512=:AAAA:, {digest(right)}", key=key)).status == 202


@pytest.mark.parametrize(
    "value", ["x", "sha-256=abc", "sha-256=:abc:", "sha-256=:AAAA:", "sha-256=:" + "A" * 500 + ":"]
)
async def test_what_is_no_digest_is_refused_before_a_place_is_taken(line: Line, value: str) -> None:
    answer = await exchange(api_of(line).port, head_of(line, MIB, f"Repr-Digest: {value}", key=None))
    assert (answer.status, answer.code) == (422, "invalid_field")


async def test_a_body_with_an_image_type_is_the_file_itself(line: Line) -> None:
    async def raw(file: bytes, *lines: str, kind: str = "image/x-whatever") -> Answer:
        start = head(line.token, *lines, length_bytes=len(file), content_type=kind)
        return await exchange(api_of(line).port, start + file)

    answer = await raw(PHOTO, f"Content-Digest: {digest(PHOTO)}", "Idempotency-Key: raw")
    row = await line.row(answer.json()["job_id"])
    assert (answer.status, row["source_format"], row["source_bytes"]) == (202, "jpeg", len(PHOTO))
    assert await line.objects.get(staging_key(row["id"]), bytes_max=MIB) == PHOTO
    assert (await put(line, PHOTO, key="raw")).json()["job_id"] == answer.json()["job_id"]
    assert (await raw(PHOTO, f"Content-Digest: {digest(OTHER)}")).code == "digest_mismatch"
    assert (await raw(b"no image")).code == "unsupported_format"
    assert (await raw(PHOTO, kind="text/plain")).code == "unsupported_format"
    chunked = head(line.token, "Transfer-Encoding: chunked", content_type="image/png")
    endless = chunked + b"".join(b"100000\r\n" + PHOTO.ljust(MIB, b"\0") + b"\r\n" for _ in range(40))
    assert (await exchange(api_of(line).port, endless)).code == "too_many_bytes"
    cut = head(line.token, length_bytes=len(PHOTO), content_type="image/png") + PHOTO[:-1]
    assert (await exchange(api_of(line).port, cut, finish=True)).code == "truncated_body"
    too_long = head(line.token, length_bytes=32 * MIB + 1, content_type="image/png")
    assert (await exchange(api_of(line).port, too_long)).code == "too_many_bytes"


async def test_repeats_pass_a_gate_that_is_full_and_an_owner_has_only_so_many_at_once(line: Line) -> None:
    key, data = new_key(), body(LARGE)
    assert (await put(line, LARGE, key=key)).status == 202
    other = await line.start_named(
        "api", name="api-full", SPILLWAY_ADMISSION_JOBS_MAX="1", SPILLWAY_REPLAYS_PER_OWNER_MAX="2"
    )
    try:
        assert (await exchange(other.port, head_of(line, 9, key=None))).code == "backlog_full"
        async with connect(other.port) as first, connect(other.port) as second:
            for connection in (first, second):
                await connection.send(head_of(line, len(data), key=key) + data[:-9])

            async def limited() -> bool:
                answer = await exchange(other.port, head_of(line, len(data), "Expect: 100-continue", key=key))
                return answer.status == 429 and answer.code == "rate_limited"

            held = await line.raw.fetchval("SELECT jobs_held FROM spillway.gate")
            await until(limited, timeout_s=5, what="the third repeat turned away")
            for connection in (first, second):
                await connection.send(data[-9:])
                answer = await connection.answer()
                assert (answer.status, answer.headers["idempotency-replayed"]) == (202, "true")
            assert await line.raw.fetchval("SELECT jobs_held FROM spillway.gate") == held
    finally:
        await asyncio.to_thread(other.kill)


async def test_a_crash_in_mid_upload_frees_key_and_place_within_a_lease_and_a_sweep(line: Line) -> None:
    key = new_key()
    other = await line.start_named("api", name="api-killed")
    data = body(LARGE)
    async with connect(other.port) as connection:
        await connection.send(head_of(line, len(data), key=key) + data[: 5 * MIB])

        async def claimed() -> list[uuid.UUID]:
            return await jobs_of(line, key)

        (job_id,) = await until(claimed, timeout_s=5, what="the key claimed")
        await asyncio.to_thread(other.kill)
    assert (await put(line, LARGE, key=key)).code == "key_in_use"
    await free(line, key, timeout_s=2.0 + 2.0)
    assert not await line.raw.fetchval("SELECT holds_place FROM spillway.jobs WHERE id = $1", job_id)
    answer = await put(line, LARGE, key=key)
    assert (answer.status, "idempotency-replayed" in answer.headers) == (202, False)


async def test_a_store_that_was_away_is_not_remembered(line: Line, servers: Servers) -> None:
    key = new_key()
    assert servers.s3 is not None
    await asyncio.to_thread(servers.s3.stop)
    away = await put(line, PHOTO, key=key)
    assert (away.status, away.code) == (503, "dependency_unavailable")
    await asyncio.to_thread(servers.s3.start)
    await free(line, key, timeout_s=5)

    async def answered() -> Answer | None:
        # A store that has just started may still refuse its first objects, which is not remembered either.
        answer = await put(line, PHOTO, key=key)
        return None if answer.status == 503 and answer.code == "dependency_unavailable" else answer

    answer = await until(answered, timeout_s=15, what="the store takes objects")
    assert (answer.status, "idempotency-replayed" in answer.headers) == (202, False)


async def test_the_key_of_an_expired_job_says_so_and_one_past_its_lifetime_is_free(line: Line) -> None:
    key = new_key()
    job_id = uuid.UUID((await put(line, PHOTO, key=key)).json()["job_id"])
    await line.raw.execute("SELECT spillway.cancel($1, 'ann')", job_id)
    await line.raw.execute("UPDATE spillway.jobs SET state = 'expired' WHERE id = $1", job_id)
    answer = await put(line, PHOTO, key=key)
    assert (answer.status, answer.code) == (410, "expired")
    await line.raw.execute(
        "UPDATE spillway.idempotency_keys SET expires_at = clock_timestamp() - interval '1 s' WHERE key = $1", key
    )
    answer = await put(line, OTHER, key=key)
    assert (answer.status, "idempotency-replayed" in answer.headers) == (202, False)


async def test_an_owner_has_a_share_and_only_that_owner_is_told(line: Line) -> None:
    other = await line.start_named("api", name="api-share", SPILLWAY_ADMISSION_OWNER_JOBS_MAX="1")
    try:
        data = body(PHOTO)
        for _ in range(2):
            answer = await exchange(other.port, head_of(line, len(data), key=None) + data)
            assert (answer.status, answer.code) == (429, "owner_limit")
            assert int(answer.headers["retry-after"]) >= 1
    finally:
        await asyncio.to_thread(other.kill)
