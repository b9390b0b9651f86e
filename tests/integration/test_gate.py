"""The gate decides on headers alone: no body byte, no lock, and an answer that arrives."""

import asyncio
import http.client
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import httpx
import pytest

from stack.servers import Servers
from tests.edge import Answer, Connection, api_of, body, connect, exchange, head, open_edge, post, request
from tests.line import Line, photo, token_store, until

PHOTO = photo(1)
JOBS_MAX = 3
LARGE_BYTES = 5 * 1024 * 1024
AT_ONCE_S = 1.0


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    limits = {
        "SPILLWAY_ADMISSION_JOBS_MAX": str(JOBS_MAX),
        "SPILLWAY_ADMISSION_STAGING_BYTES_MAX": str(4 * LARGE_BYTES),
        "SPILLWAY_UPLOADS_IN_FLIGHT_MAX": "2",
        "SPILLWAY_TOKEN_CACHE_S": "0.5",
        "SPILLWAY_UPLOAD_LEASE_S": "30",
    }
    async with open_edge(servers, environment, env=limits) as opened:
        yield opened


@pytest.fixture(autouse=True)
async def _places_given_back(line: Line) -> AsyncIterator[None]:
    yield
    await line.raw.execute("SELECT spillway.cancel(id, owner) FROM spillway.jobs WHERE state = 'queued'")

    async def empty() -> bool:
        return tuple(await line.raw.fetchrow("SELECT jobs_held, staging_bytes FROM spillway.gate") or ()) == (0, 0)

    await until(empty, timeout_s=10, what="all places and bytes given back")

    async def seen() -> bool:
        _, text = await asyncio.to_thread(api_of(line).get, "/metrics")
        return b"spillway_places_held 0.0" in text and b"spillway_staging_bytes 0.0" in text

    await until(seen, timeout_s=5, what="a snapshot of empty books")


@asynccontextmanager
async def uploads_begun(line: Line, count: int, *, length_bytes: int = LARGE_BYTES) -> AsyncIterator[list[Connection]]:
    """Hold places by uploads whose bodies have only begun."""
    async with AsyncExitStack() as stack:
        connections = []
        for number in range(1, count + 1):
            connection = await stack.enter_async_context(connect(api_of(line).port))
            await connection.send(head(line.token, length_bytes=length_bytes) + b"--edge\r\n")
            connections.append(connection)
            await until_held(line, number)
        yield connections


async def until_held(line: Line, jobs: int) -> None:
    async def held() -> bool:
        return bool(await line.raw.fetchval("SELECT jobs_held = $1 FROM spillway.gate", jobs))

    await until(held, timeout_s=5, what=f"{jobs} places taken")


async def fill(line: Line) -> None:
    for _ in range(JOBS_MAX):
        assert (await post(line, body(PHOTO))).status == 202


async def test_the_full_gate_says_so_before_a_body_byte_was_sent(line: Line) -> None:
    await fill(line)
    answer = await exchange(api_of(line).port, head(line.token, length_bytes=LARGE_BYTES))
    assert (answer.status, answer.code) == (503, "backlog_full")
    assert answer.headers["connection"] == "close"
    assert answer.took_s < AT_ONCE_S


async def test_a_client_that_expects_100_continue_is_refused_without_it(line: Line) -> None:
    await fill(line)
    async with connect(api_of(line).port) as connection:
        await connection.send(head(line.token, "Expect: 100-continue", length_bytes=LARGE_BYTES))
        answer = await connection.answer()
        assert await connection.reader.read() == b""  # and closed at once, since nothing is to come
    assert (answer.status, answer.continued) == (503, False)
    assert time.monotonic() - connection.opened_s < AT_ONCE_S


async def test_a_client_that_expects_100_continue_gets_it_with_its_place(line: Line) -> None:
    data = body(PHOTO)
    async with connect(api_of(line).port) as connection:
        await connection.send(head(line.token, "Expect: 100-continue", length_bytes=len(data)))
        assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(data)
        assert (await connection.answer()).status == 202


async def test_an_unfinished_upload_holds_its_place(line: Line) -> None:
    async with uploads_begun(line, 1), uploads_begun_after(line, 2):
        answer = await post(line, body(PHOTO))
    assert (answer.status, answer.code) == (503, "backlog_full")


@asynccontextmanager
async def uploads_begun_after(line: Line, held: int) -> AsyncIterator[None]:
    assert (await post(line, body(PHOTO))).status == 202
    await until_held(line, held)
    assert (await post(line, body(PHOTO))).status == 202
    yield


async def test_a_process_takes_no_more_uploads_at_once_than_it_may(line: Line) -> None:
    async with uploads_begun(line, 2):
        answer = await post(line, body(PHOTO))
        assert (answer.status, answer.code) == (503, "backlog_full")
        assert await line.raw.fetchval("SELECT jobs_held FROM spillway.gate") == 2


async def test_uploads_that_begin_at_the_same_moment_are_counted_as_well(line: Line) -> None:
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect(api_of(line).port)) for _ in range(20)]
        await asyncio.gather(*(connection.send(head(line.token, length_bytes=9999)) for connection in connections))

        async def refused(connection: Connection) -> Answer | None:
            try:
                async with asyncio.timeout(2):
                    return await connection.answer()
            except TimeoutError:
                return None

        refusals = [answer for answer in await asyncio.gather(*map(refused, connections)) if answer is not None]
        assert [answer.code for answer in refusals] == ["backlog_full"] * 18
        assert len({answer.headers["retry-after"] for answer in refusals}) >= 3
        assert await line.raw.fetchval("SELECT jobs_held FROM spillway.gate") == 2


async def test_full_staging_refuses_what_does_not_fit(line: Line) -> None:
    async with uploads_begun(line, 1, length_bytes=3 * LARGE_BYTES):
        too_much = await exchange(api_of(line).port, head(line.token, length_bytes=2 * LARGE_BYTES))
        assert (too_much.status, too_much.code) == (503, "staging_full")
        assert (await post(line, body(PHOTO))).status == 202


async def test_refusals_take_no_lock(line: Line) -> None:
    await fill(line)
    assert (await exchange(api_of(line).port, head(line.token, length_bytes=9))).status == 503
    locker = await asyncpg.connect(line.env["SPILLWAY_DATABASE_URL"])
    async with locker.transaction():
        await locker.execute("LOCK TABLE spillway.gate, spillway.jobs IN ACCESS EXCLUSIVE MODE")
        answers = [await exchange(api_of(line).port, head(line.token, length_bytes=9)) for _ in range(30)]
    await locker.close()
    assert {answer.code for answer in answers} <= {"backlog_full", "dependency_unavailable"}
    assert answers[0].code == "backlog_full"


async def test_refused_clients_are_told_different_times(line: Line) -> None:
    await fill(line)
    port = api_of(line).port
    answers = await asyncio.gather(*(exchange(port, head(line.token, length_bytes=9)) for _ in range(60)))
    assert {answer.code for answer in answers} == {"backlog_full"}
    assert len({answer.headers["retry-after"] for answer in answers}) >= 5


@pytest.mark.parametrize("body_bytes", [100_000, 900_000, 1_400_000])
async def test_ordinary_clients_see_the_refusal_of_a_body_they_are_sending(line: Line, body_bytes: int) -> None:
    await fill(line)
    data = body(PHOTO + b"\0" * body_bytes)
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(3):
            answer = await client.post(
                f"{line.base_url}/api/v1/images",
                headers={"Authorization": f"Bearer {line.token}"},
                files={"file": ("a.jpg", data, "image/jpeg")},
            )
            assert answer.json()["code"] == "backlog_full"
    assert await asyncio.to_thread(_post_blocking, line, data) == 503


async def test_a_client_that_reads_while_it_sends_sees_the_refusal_of_any_body(line: Line) -> None:
    await fill(line)
    raw = request(line.token, body(PHOTO + b"\0" * 20_000_000))
    answers = await asyncio.gather(*(exchange(api_of(line).port, raw) for _ in range(5)))
    assert {answer.code for answer in answers} == {"backlog_full"}


def _post_blocking(line: Line, data: bytes) -> int:
    """Send all before reading, as the standard library does."""
    connection = http.client.HTTPConnection("127.0.0.1", api_of(line).port, timeout=10)
    type_ = "multipart/form-data; boundary=edge"
    with suppress(BrokenPipeError, ConnectionResetError):  # as urllib3 does: the answer may be there all the same
        connection.request(
            "POST", "/api/v1/images", data, {"Authorization": f"Bearer {line.token}", "Content-Type": type_}
        )
    answer = connection.sock.makefile("rb").readline() if connection.sock else b""
    connection.close()
    return int(answer.split(b" ")[1])


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl_is_refused_without_sending_its_file(line: Line, tmp_path: Path) -> None:
    await fill(line)
    file = tmp_path / "large.jpg"
    file.write_bytes(PHOTO + b"\0" * 20_000_000)
    process = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--output", "-", "--write-out", "\n%{http_code} %{size_upload}", "--max-time", "10"),
        *("--header", f"Authorization: Bearer {line.token}", "--header", "Expect: 100-continue"),
        *("--form", f"file=@{file}", f"{line.base_url}/api/v1/images"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert out.splitlines()[-1] == b"503 0"


async def test_a_revoked_token_stops_working_and_a_new_one_works(line: Line) -> None:
    async with token_store(line.env) as store:
        token_id, token = await store.create(owner="ben")
        assert (await _with_token(line, token)).status == 202
        assert await store.revoke(token_id)

        async def revoked() -> bool:
            return (await _with_token(line, token)).status == 401

        await until(revoked, timeout_s=3, what="the token is refused")


async def _with_token(line: Line, token: str) -> Answer:
    answer = await exchange(api_of(line).port, request(token, body(PHOTO)))
    await line.raw.execute("SELECT spillway.cancel(id, owner) FROM spillway.jobs WHERE state = 'queued'")
    return answer


async def test_a_locked_database_is_an_answer_within_three_seconds(line: Line) -> None:
    accepted = await post(line, body(PHOTO))
    job_url = f"{line.base_url}{accepted.headers['location']}"
    locker = await asyncpg.connect(line.env["SPILLWAY_DATABASE_URL"])
    async with locker.transaction(), httpx.AsyncClient(trust_env=False, timeout=10) as client:
        await locker.execute("LOCK TABLE spillway.jobs IN ACCESS EXCLUSIVE MODE")
        since_s = time.monotonic()
        posts = asyncio.gather(*(post(line, body(PHOTO)) for _ in range(20)))
        reads = asyncio.gather(
            *(client.get(job_url, headers={"Authorization": f"Bearer {line.token}"}) for _ in range(20))
        )
        assert (await client.get(f"{line.base_url}/health/live")).status_code == 200
        assert time.monotonic() - since_s < AT_ONCE_S
        # Those that ask for more places than there are, while the first tries hang, need not wait to be refused.
        codes = [answer.code for answer in await posts]
        assert set(codes) <= {"dependency_unavailable", "backlog_full"}
        assert "dependency_unavailable" in codes
        assert {answer.json()["code"] for answer in await reads} == {"dependency_unavailable"}
        assert time.monotonic() - since_s < 4.0
    await locker.close()

    async def admits() -> bool:
        return (await post(line, body(PHOTO))).status == 202

    await until(admits, timeout_s=10, what="uploads are accepted again")
