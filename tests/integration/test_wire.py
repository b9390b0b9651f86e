"""What a client sends beside heads and bodies holds neither a connection nor memory, over real sockets."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import pytest

from app.api.protocol import PIPELINED_REQUESTS_MAX
from stack.servers import Servers
from tests.edge import Connection, api_of, body, children_of, chunked, connect, exchange, head, open_edge, post
from tests.line import Line, photo

PHOTO = photo(1)
MIB = 1024 * 1024
#: Sent where an end never comes, and what the process may keep of it.
ENDLESS_BYTES = 64 * MIB
GROWTH_BYTES_MAX = 16 * MIB
IDLE_S = 1.0
LIVE = head(None, content_type=None, method="GET", path="/health/live")


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    limits = {"SPILLWAY_UPLOAD_IDLE_S_MAX": str(IDLE_S), "SPILLWAY_ADMISSION_JOBS_MAX": "100"}
    async with open_edge(servers, environment, env=limits) as opened:
        yield opened


def rss_bytes(line: Line) -> int:
    return max(int(process.memory_info().rss) for process in children_of(api_of(line)))


async def send_endless(connection: Connection) -> None:
    for _ in range(ENDLESS_BYTES // MIB):
        await connection.send(b"a" * MIB)


async def ended(connection: Connection) -> bool:
    """Return whether the server ends the connection, whatever it still says."""
    try:
        async with asyncio.timeout(IDLE_S + 6):
            while await connection.reader.read(65536):
                pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("more", [b"\r\n", b"\r\n" * 5000], ids=["one", "many"])
async def test_line_ends_between_two_requests_hold_no_connection(line: Line, more: bytes) -> None:
    async with connect(api_of(line).port) as connection:
        await connection.send(LIVE)
        assert (await connection.answer()).status == 200
        await connection.send(more)
        assert await ended(connection)


async def test_a_request_behind_line_ends_is_answered(line: Line) -> None:
    async with connect(api_of(line).port) as connection:
        for _ in range(3):
            await connection.send(LIVE)
            assert (await connection.answer()).status == 200
            await connection.send(b"\r\n")
            await asyncio.sleep(IDLE_S / 2)


@pytest.mark.parametrize("code", ["headers_too_large", "unauthenticated"])
async def test_headers_behind_a_body_are_bounded(line: Line, code: str) -> None:
    before_bytes = rss_bytes(line)
    begun = head(None if code == "unauthenticated" else line.token, "Transfer-Encoding: chunked")
    async with connect(api_of(line).port) as connection:
        await connection.send(begun + chunked([body(PHOTO)], end=False) + b"0\r\nA: ")
        sending = asyncio.create_task(send_endless(connection))
        answer = await connection.answer()
        grown_bytes = rss_bytes(line) - before_bytes
        sending.cancel()
        await asyncio.wait({sending})
    assert answer.code == code
    assert grown_bytes < GROWTH_BYTES_MAX


async def test_a_few_headers_behind_a_body_change_nothing(line: Line) -> None:
    data = head(line.token, "Transfer-Encoding: chunked") + chunked([body(PHOTO)], end=False)
    answer = await exchange(api_of(line).port, data + b"0\r\nIdempotency-Key: x\r\nAuthorization: none\r\n\r\n")
    assert answer.status == 202


async def test_a_head_without_end_behind_a_request_that_waits_is_not_kept(line: Line) -> None:
    accepted = await post(line, body(PHOTO))
    job = head(line.token, "Prefer: wait=2", content_type=None, method="GET", path=accepted.headers["location"])
    before_bytes = rss_bytes(line)
    async with connect(api_of(line).port) as connection:
        await connection.send(job + b"GET / HTTP/1.1\r\nA: ")
        sending = asyncio.create_task(send_endless(connection))
        answer = await connection.answer()
        grown_bytes = rss_bytes(line) - before_bytes
        assert await ended(connection)
        sending.cancel()
        await asyncio.wait({sending})
    assert answer.status == 200
    assert grown_bytes < GROWTH_BYTES_MAX


async def test_of_many_requests_at_once_so_many_are_answered(line: Line) -> None:
    async with connect(api_of(line).port) as connection:
        await connection.send(LIVE * 2000)
        said = b""
        async with asyncio.timeout(IDLE_S + 6):
            with suppress(OSError):  # closed on what it has not read
                while data := await connection.reader.read(65536):
                    said += data
    assert 1 < said.count(b"HTTP/1.1 200 OK") <= PIPELINED_REQUESTS_MAX + 2


@pytest.mark.parametrize("pause_s", [0.0, 0.1], ids=["in one piece", "head first"])
async def test_an_upload_that_offers_another_protocol_is_taken_in_this_one(line: Line, pause_s: float) -> None:
    data = body(PHOTO + b"\r\nUpgrade: is not a header here\r\n")
    offer = ("Connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    async with connect(api_of(line).port) as connection:
        for number in range(2):  # on one connection, as the clients that do so keep it
            begun = head(line.token, *offer, length_bytes=len(data))
            await connection.send(begun if pause_s else begun + data)
            await asyncio.sleep(pause_s)
            await connection.send(data if pause_s else b"")
            answer = await connection.answer()
            assert answer.status == 202, (number, answer.body)
            sha256 = await line.raw.fetchval(
                "SELECT source_sha256 FROM spillway.jobs WHERE id = $1", answer.json()["job_id"]
            )
            assert sha256 == hashlib.sha256(PHOTO + b"\r\nUpgrade: is not a header here\r\n").hexdigest()


@pytest.mark.parametrize("path", ["/api/v1/images%0A", "/api/v1/attachments%0a", "/health/live%0A"])
async def test_a_path_with_a_line_feed_at_its_end_is_no_path(line: Line, path: str) -> None:
    data = body(PHOTO)
    answer = await exchange(api_of(line).port, head(line.token, length_bytes=len(data), path=path) + data)
    assert (answer.status, answer.code) == (404, "not_found")
