"""An upload's life against real servers: durable before it is answered, kept alive, and undone when it must be."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from random import SystemRandom
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from contracts.keys import staging_key
from stack.ports import free_port
from stack.servers import Servers
from tests.cutting_proxy import cutting_proxy
from tests.edge import Connection, api_of, body, children_of, exchange, head, open_edge, post, request
from tests.line import Line, photo, until

PHOTO = photo(1)
MIB = 1024 * 1024
LEASE_S = 2.0


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    settings = {"SPILLWAY_ADMISSION_POLICY": "none", "SPILLWAY_DATABASE_STATEMENT_TIMEOUT_S": "0.7"}
    async with open_edge(servers, environment, env=settings) as opened:
        yield opened


async def begin(line: Line, data: bytes, *, sent: int) -> tuple[Connection, asyncpg.Record]:
    """Begin an upload and return its connection and its row."""
    before = {row["id"] for row in await line.rows()}
    connection = Connection(*await asyncio.open_connection("127.0.0.1", api_of(line).port))
    await connection.send(head(line.token, length_bytes=len(data)) + data[:sent])

    async def row() -> asyncpg.Record | None:
        return next((row for row in await line.rows() if row["id"] not in before), None)

    return connection, await until(row, timeout_s=5, what="a reservation")


async def wait_dropped(line: Line, row: asyncpg.Record, *, timeout_s: float = 10.0) -> None:
    """The reservation ends, its bytes are given back, and nothing of it is in the store."""

    async def swept() -> bool:
        now = await line.raw.fetchrow("SELECT state, held_bytes FROM spillway.jobs WHERE id = $1", row["id"])
        return now is None or (now["state"] == "dropped" and now["held_bytes"] == 0)

    async def swept_twice() -> bool:
        return await line.raw.fetchrow("SELECT 1 FROM spillway.jobs WHERE id = $1", row["id"]) is None

    await until(swept, timeout_s=timeout_s, what="the reservation dropped and swept")
    # A part that was on its way may arrive after the first sweep; the second one, a lease later, is for it.
    await until(swept_twice, what="the reservation swept once more and its row gone")
    assert not await line.objects.exists(staging_key(row["id"]))
    assert await line.objects.abort_multiparts_of(staging_key(row["id"])) == 0


@pytest.mark.parametrize("extra_bytes", [0, 5 * MIB - len(PHOTO), 5 * MIB - len(PHOTO) + 1, 11 * MIB])
async def test_at_the_answer_everything_is_durable(line: Line, extra_bytes: int) -> None:
    file = PHOTO + b"\0" * extra_bytes
    answer = await post(line, body(file))
    job = answer.json()
    row = await line.row(job["job_id"])
    stored = await line.objects.get(staging_key(row["id"]), bytes_max=32 * MIB)
    assert answer.status == 202
    assert answer.headers["location"] == f"/api/v1/image-jobs/{job['job_id']}"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["cache-control"] == "no-store"
    assert set(job) == {"job_id", "image_id", "status", "message"}
    assert (job["status"], job["image_id"]) == ("queued", str(row["image_id"]))
    assert stored == file
    assert (row["state"], row["source_bytes"]) == ("queued", len(file))
    assert row["source_sha256"] == hashlib.sha256(file).hexdigest()
    assert (row["source_format"], row["source_width"], row["source_height"]) == ("jpeg", 400, 300)
    assert await line.raw.fetchval("SELECT count(*) FROM spillway.outbox WHERE job_id = $1", row["id"]) == 1


async def test_an_image_cut_in_half_is_accepted_since_only_decoding_can_tell(line: Line) -> None:
    assert (await post(line, body(PHOTO[: len(PHOTO) // 2]))).status == 202


async def test_an_upload_longer_than_its_lease_keeps_it(line: Line) -> None:
    data = body(PHOTO)
    connection, row = await begin(line, data, sent=100)
    for at in range(100, len(data), len(data) // 30):
        await connection.send(data[at : at + len(data) // 30])
        await asyncio.sleep(LEASE_S / 18)
    assert (await connection.answer()).json()["job_id"] == str(row["id"])
    assert time.monotonic() - connection.opened_s > 1.5 * LEASE_S
    connection.abort()


async def test_an_upload_whose_reservation_is_gone_ends_soon(line: Line) -> None:
    data = body(PHOTO + b"\0" * 7 * MIB)
    connection, row = await begin(line, data, sent=6 * MIB)
    await line.raw.execute("SELECT spillway.drop_upload($1, $2)", row["id"], row["upload_token"])
    answer = await connection.answer()
    assert (answer.status, answer.code) == (503, "reservation_lost")
    assert answer.took_s < LEASE_S + 1.5
    connection.abort()
    await wait_dropped(line, row)


async def test_an_upload_that_comes_too_late_to_be_accepted_is_deleted(line: Line) -> None:
    data = body(PHOTO)
    connection, row = await begin(line, data, sent=len(data) - 3)
    await line.raw.execute("SELECT spillway.drop_upload($1, $2)", row["id"], row["upload_token"])
    await connection.send(data[-3:])
    answer = await connection.answer()
    assert (answer.status, answer.code) == (503, "reservation_lost")
    connection.abort()
    await wait_dropped(line, row)


async def test_a_client_that_vanishes_gives_its_place_back_at_once(line: Line) -> None:
    data = body(PHOTO + b"\0" * 12 * MIB)
    connection, row = await begin(line, data, sent=11 * MIB)
    connection.abort()
    await wait_dropped(line, row, timeout_s=LEASE_S)


async def test_a_killed_process_gives_its_places_back_within_a_lease_and_a_sweep(line: Line) -> None:
    data = body(PHOTO + b"\0" * 12 * MIB)
    connection, row = await begin(line, data, sent=11 * MIB)
    for child in children_of(api_of(line)):
        child.kill()
    await wait_dropped(line, row, timeout_s=LEASE_S + 4)
    connection.abort()
    await asyncio.to_thread(api_of(line).wait_live)


async def test_an_accept_that_hangs_deletes_nothing(line: Line) -> None:
    data = body(PHOTO)
    connection, row = await begin(line, data, sent=100)
    locker = await asyncpg.connect(line.env["SPILLWAY_DATABASE_URL"])
    async with locker.transaction():
        await locker.execute("LOCK TABLE spillway.outbox IN ACCESS EXCLUSIVE MODE")
        await connection.send(data[100:])
        answer = await connection.answer()
        stored = await line.objects.exists(staging_key(row["id"]))
    await locker.close()
    connection.abort()
    assert (answer.status, answer.code) == (503, "dependency_unavailable")
    assert stored
    await wait_dropped(line, row)


async def test_answers_lost_on_the_way_from_the_database_are_asked_for_again(line: Line, servers: Servers) -> None:
    assert servers.postgres is not None
    async with cutting_proxy(servers.postgres.port()) as (proxy, port):
        url = _at_port(line.env["SPILLWAY_DATABASE_URL"], port)
        other = await line.start_named("api", name="api-proxied", SPILLWAY_DATABASE_URL=url)
        proxy.needle = b"spillway.admit("
        lost = await exchange(other.port, request(line.token, body(PHOTO)))
        row = (await line.rows())[-1]

        async def database_up() -> bool:
            return await asyncio.to_thread(other.readiness) == "degraded"

        await until(database_up, timeout_s=5, what="the next snapshot")
        proxy.needle = b"spillway.accept("
        kept = await exchange(other.port, request(line.token, body(PHOTO)))
        await asyncio.to_thread(other.kill)
    assert proxy.cuts == 2
    assert (lost.status, lost.code) == (503, "dependency_unavailable")
    await wait_dropped(line, row)
    assert kept.status == 202
    assert (await line.row(kept.json()["job_id"]))["state"] == "queued"


def _at_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))


async def test_a_store_that_accepts_and_stays_silent_is_an_answer_within_five_seconds(line: Line) -> None:
    silent = await asyncio.start_server(_never_answer, "127.0.0.1", free_port((), SystemRandom()))
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    other = await line.start_named("api", name="api-silent", SPILLWAY_S3_ENDPOINT_URL=url)
    small, large = body(PHOTO), body(PHOTO + b"\0" * 11 * MIB)
    posts = asyncio.gather(*(exchange(other.port, request(line.token, data)) for data in (small, large, small)))
    since_s = time.monotonic()
    assert (await exchange(other.port, b"GET /health/live HTTP/1.1\r\nHost: edge\r\n\r\n")).status == 200
    assert time.monotonic() - since_s < 1.0
    answers = await posts
    assert {(answer.status, answer.code) for answer in answers} == {(503, "dependency_unavailable")}
    assert max(answer.took_s for answer in answers) < 6.5
    ready = await exchange(other.port, b"GET /health/ready HTTP/1.1\r\nHost: edge\r\n\r\n")
    assert ready.code == "dependency_unavailable"
    assert ready.json()["components"]["store"] == "away"
    assert not await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE state = 'uploading'")
    await asyncio.to_thread(other.kill)
    silent.close()


async def _never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()
