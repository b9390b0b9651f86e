"""Every bad upload gets its code at once, over real sockets, and leaves nothing behind."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping

import pytest

from contracts.keys import staging_key
from stack.servers import Servers
from tests.edge import (
    BOUNDARY,
    END,
    Answer,
    api_of,
    body,
    chunked,
    connect,
    exchange,
    head,
    open_edge,
    part,
    post,
    request,
)
from tests.hostile_images import jpeg_claiming, png_claiming, unsupported
from tests.line import Line, photo, until

FILE_BYTES_MAX = 8 * 1024 * 1024
PHOTO = photo(1)
MIB = 1024 * 1024
SECONDS_MAX = 4.0  #: how soon a refusal must come, on a machine that is busy with other things

CODES = {
    "nothing that is an image": (body(b"hello, I am not an image" * 100), 415, "unsupported_format"),
    "a few bytes": (body(b"\xff\xd8"), 415, "unsupported_format"),
    "no bytes": (body(b""), 422, "empty_file"),
    "a huge header": (body(jpeg_claiming(64_250, 64_250)), 422, "too_many_pixels"),
    "a long side": (body(png_claiming(65_000, 1)), 422, "too_large_dimension"),
    "a missing field": (part("image", PHOTO) + END, 422, "invalid_field"),
    "a field given twice": (part("file", PHOTO) * 2 + END, 422, "invalid_field"),
    "no closing boundary": (body(PHOTO)[: -len(END)], 400, "truncated_body"),
    "half a boundary": (body(PHOTO)[:-6], 400, "truncated_body"),
    "garbage": (b"garbage" * 1000, 400, "malformed_request"),
    "too many bytes": (body(PHOTO + b"\0" * FILE_BYTES_MAX), 413, "too_many_bytes"),
    "20 MB announced": (body(b"\0" * 20 * MIB), 413, "too_many_bytes"),
    "line ends before the first boundary": (b"\r\n" * (3 * MIB) + body(PHOTO), 400, "malformed_request"),
    "junk after the last boundary": (body(PHOTO) + b"x" * 6 * MIB, 400, "malformed_request"),
    "100,000 part headers": (f"--{BOUNDARY}\r\n".encode() + b"A: b\r\n" * 100_000, 400, "malformed_request"),
    "one header of 6 MB": (f"--{BOUNDARY}\r\nA: ".encode() + b"b" * 6 * MIB, 400, "malformed_request"),
    "padding behind a boundary": (part("file", PHOTO) + END[:-4] + b" " * 6 * MIB, 400, "malformed_request"),
    **{f"a file of type {name}": (body(data), 415, "unsupported_format") for name, data in unsupported().items()},
}


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    limits: dict[str, str] = {
        "SPILLWAY_UPLOAD_BYTES_MAX": str(FILE_BYTES_MAX),
        "SPILLWAY_UPLOAD_IDLE_S_MAX": "0.6",
        "SPILLWAY_UPLOAD_RATE_BYTES_PER_S_MIN": "2000",
        "SPILLWAY_UPLOAD_DEADLINE_S": "3",
        "SPILLWAY_ADMISSION_JOBS_MAX": "500",
    }
    async with open_edge(servers, environment, env=limits) as opened:
        yield opened
        # Once for all of them: nothing that any of these tests sent has left anything.
        await assert_clean(opened)


async def assert_clean(line: Line) -> None:
    """After the sweep: every place and byte belongs to an accepted job, and so does every staging object."""

    async def clean() -> bool:
        return not await line.raw.fetchval(
            "SELECT count(*) FROM spillway.jobs WHERE state = 'uploading' OR (state = 'dropped' AND held_bytes > 0)"
        )

    await until(clean, timeout_s=15, what="reservations ended and swept")
    rows = await line.raw.fetch("SELECT id, state, holds_place, held_bytes FROM spillway.jobs")
    gate = await line.raw.fetchrow("SELECT jobs_held, staging_bytes FROM spillway.gate")
    assert gate is not None
    assert gate["jobs_held"] == sum(row["holds_place"] for row in rows)
    assert gate["staging_bytes"] == sum(row["held_bytes"] for row in rows)
    accepted = {staging_key(row["id"]) for row in rows if row["state"] == "queued"}
    ours = {staging_key(row["id"]) for row in rows}
    stored = set(await line.objects.list_keys("staging/", keys_max=10_000))
    assert stored & ours == accepted
    assert await line.objects.abort_multiparts_of("staging/") == 0


async def refused(line: Line, data: bytes, *, finish: bool = False) -> Answer:
    return await exchange(api_of(line).port, data, finish=finish)


@pytest.mark.parametrize("name", CODES)
async def test_a_bad_body_is_refused_with_its_code(line: Line, name: str) -> None:
    data, status, code = CODES[name]
    answer = await post(line, data)
    assert (answer.status, answer.code) == (status, code)
    assert answer.took_s < SECONDS_MAX


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        pytest.param(head("TOKEN", content_type=None, length_bytes=9), 400, "malformed_request", id="no type"),
        pytest.param(
            head("TOKEN", content_type="text/plain", length_bytes=9), 415, "unsupported_format", id="plain text"
        ),
        pytest.param(
            head("TOKEN", content_type="multipart/form-data", length_bytes=9), 400, "malformed_request", id="no edge"
        ),
        pytest.param(head("TOKEN"), 400, "truncated_body", id="no body"),
        pytest.param(head("TOKEN", length_bytes=0), 400, "truncated_body", id="an empty body"),
        pytest.param(head("TOKEN", length_bytes=10**9), 413, "too_many_bytes", id="a gigabyte announced"),
        pytest.param(head("TOKEN", length_bytes=10**30), 400, "malformed_request", id="a length beyond numbers"),
        pytest.param(head("TOKEN", "Content-Length: 8", length_bytes=9), 400, "malformed_request", id="two lengths"),
        pytest.param(head("TOKEN", "Transfer-Encoding: chunked", length_bytes=9), 400, "malformed_request", id="both"),
        pytest.param(head("TOKEN", "Content-Length: -1"), 400, "malformed_request", id="a negative length"),
        pytest.param(head("TOKEN", "Transfer-Encoding: gzip, chunked"), 400, "malformed_request", id="gzip"),
        pytest.param(head("TOKEN", "X: " + "a" * 20_000, length_bytes=9), 431, "headers_too_large", id="a long header"),
        pytest.param(head("TOKEN", *["X: y"] * 9_000, length_bytes=9), 431, "headers_too_large", id="many headers"),
        pytest.param(head(None, method="GET", path="/?" + "q" * 20_000), 431, "headers_too_large", id="a long address"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 500_000, 431, "headers_too_large", id="endless headers"),
        pytest.param(b"\x16\x03\x01\x02\r\n\r\n", 400, "malformed_request", id="not HTTP"),
        pytest.param(b"POST /\xff HTTP/1.1\r\n\r\n", 400, "malformed_request", id="a path that is none"),
        pytest.param(head(None, length_bytes=9), 401, "unauthenticated", id="no token"),
        pytest.param(head("spw_wrong", length_bytes=9), 401, "unauthenticated", id="a wrong token"),
        pytest.param(
            head(None, "Authorization: Basic QTpC", length_bytes=9), 401, "unauthenticated", id="another scheme"
        ),
        pytest.param(
            head(None, "Authorization: Bearer " + "x" * 5000, length_bytes=9), 401, "unauthenticated", id="long"
        ),
        pytest.param(head("TOKEN", "Authorization: Bearer x", length_bytes=9), 401, "unauthenticated", id="two tokens"),
        pytest.param(head("TOKEN", method="PUT"), 405, "method_not_allowed", id="another method"),
        pytest.param(head("TOKEN", path="/nowhere"), 404, "not_found", id="another path"),
        pytest.param(head("TOKEN", path="/api/v1/images/"), 404, "not_found", id="a slash too many"),
    ],
)
async def test_a_bad_head_is_refused_before_any_body(line: Line, raw: bytes, status: int, code: str) -> None:
    answer = await refused(line, raw.replace(b"TOKEN", line.token.encode()))
    assert (answer.status, answer.code) == (status, code)
    assert answer.took_s < SECONDS_MAX
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")
    if status == 405:
        assert answer.headers["allow"] == "POST"


async def test_a_body_without_announced_length_is_cut_off_at_the_limit(line: Line) -> None:
    pieces = [part("file", PHOTO)[:-2]] + [b"\0" * 65_536] * 400
    raw = head(line.token, "Transfer-Encoding: chunked") + chunked(pieces, end=False)
    answer = await refused(line, raw)
    assert (answer.status, answer.code) == (413, "too_many_bytes")


async def test_a_whole_chunked_body_is_accepted(line: Line) -> None:
    raw = head(line.token, "Transfer-Encoding: chunked") + chunked([body(PHOTO)[:999], body(PHOTO)[999:]])
    assert (await refused(line, raw)).status == 202


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.9, 0.999])
async def test_less_than_announced_is_truncated(line: Line, keep: float) -> None:
    data = body(PHOTO)
    raw = head(line.token, length_bytes=len(data)) + data[: int(len(data) * keep)]
    answer = await refused(line, raw, finish=True)
    assert (answer.status, answer.code) == (400, "truncated_body")


async def test_a_chunked_body_without_end_is_truncated(line: Line) -> None:
    raw = head(line.token, "Transfer-Encoding: chunked") + chunked([body(PHOTO)], end=False)
    answer = await refused(line, raw, finish=True)
    assert (answer.status, answer.code) == (400, "truncated_body")


async def test_a_broken_chunk_is_malformed(line: Line) -> None:
    raw = head(line.token, "Transfer-Encoding: chunked") + chunked([body(PHOTO)[:500]], end=False) + b"zz\r\n"
    answer = await refused(line, raw)
    assert (answer.status, answer.code) == (400, "malformed_request")


async def test_a_length_that_is_too_small_is_truncated(line: Line) -> None:
    answer = await refused(line, head(line.token, length_bytes=10) + body(PHOTO))
    assert (answer.status, answer.code) == (400, "truncated_body")


async def test_bytes_behind_a_whole_body_do_not_take_its_answer_away(line: Line) -> None:
    answer = await refused(line, request(line.token, body(PHOTO)) + b"garbage garbage\r\n\r\n")
    assert answer.status == 202


async def test_a_client_that_closes_its_side_gets_its_answer(line: Line) -> None:
    assert (await refused(line, request(line.token, body(PHOTO)), finish=True)).status == 202


@pytest.mark.parametrize("name", [b"", b"\0", b"../../etc/passwd", b"n" * 10_000, b"\xed\xa0\x80\xff", b'\\"; name="x'])
async def test_a_hostile_file_name_changes_nothing(line: Line, name: bytes) -> None:
    assert (await post(line, body(PHOTO, filename=name))).status == 202


@pytest.mark.parametrize("begun", [b"", b"POST /api/v1/images HT", b"GET / HTTP/1.1\r\nHost: edge\r\n"])
async def test_headers_that_do_not_come_are_too_slow(line: Line, begun: bytes) -> None:
    answer = await refused(line, begun)
    assert (answer.status, answer.code) == (408, "upload_too_slow")
    assert answer.took_s < 0.6 + SECONDS_MAX


async def test_silence_in_the_middle_of_a_body_is_too_slow(line: Line) -> None:
    answer = await refused(line, head(line.token, length_bytes=1000) + body(PHOTO)[:300])
    assert (answer.status, answer.code) == (408, "upload_too_slow")
    assert answer.took_s < 0.6 + SECONDS_MAX


async def test_a_trickle_is_too_slow(line: Line) -> None:
    data = body(PHOTO)
    async with connect(api_of(line).port) as connection:
        await connection.send(head(line.token, length_bytes=len(data)))
        trickling = asyncio.create_task(_trickle(connection.send, data, pause_s=0.1))
        answer = await connection.answer()
        trickling.cancel()
        await asyncio.wait({trickling})
    assert (answer.status, answer.code) == (408, "upload_too_slow")
    assert answer.took_s < 3


async def test_an_upload_that_is_not_over_at_its_deadline_is_too_slow(line: Line) -> None:
    data = body(PHOTO + b"\0" * 3 * MIB)
    async with connect(api_of(line).port) as connection:
        await connection.send(head(line.token, length_bytes=len(data)))
        trickling = asyncio.create_task(_trickle(connection.send, data, pause_s=0.1, piece_bytes=4000))
        answer = await connection.answer()
        trickling.cancel()
        await asyncio.wait({trickling})
    assert (answer.status, answer.code) == (408, "upload_too_slow")
    assert 2.5 < answer.took_s < 3 + SECONDS_MAX


async def _trickle(send: object, data: bytes, *, pause_s: float, piece_bytes: int = 10) -> None:
    assert callable(send)
    for at in range(0, len(data), piece_bytes):
        await send(data[at : at + piece_bytes])
        await asyncio.sleep(pause_s)


async def test_clients_that_vanish_at_random_points_leave_nothing(line: Line) -> None:
    data = body(PHOTO + b"\0" * 7 * MIB)
    rng = random.SystemRandom()

    async def vanish() -> None:
        async with connect(api_of(line).port) as connection:
            await connection.send(request(line.token, data)[: rng.randrange(len(data))])

    await asyncio.gather(*(vanish() for _ in range(20)))

    async def none_in_flight() -> bool:
        _, text = await asyncio.to_thread(api_of(line).get, "/metrics")
        return b'spillway_uploads_in_flight{slot="0"} 0.0' in text

    await until(none_in_flight, timeout_s=10, what="no upload in hand")


async def test_other_clients_do_not_notice_hostile_ones(line: Line) -> None:
    hostile = [CODES[name][0] for name in ("padding behind a boundary", "100,000 part headers", "one header of 6 MB")]
    longest_s = 0.0
    attacking = asyncio.gather(*(post(line, data) for data in hostile * 3))
    async with connect(api_of(line).port) as connection:
        while not attacking.done():
            since_s = time.monotonic()
            await connection.send(b"GET /health/live HTTP/1.1\r\nHost: edge\r\n\r\n")
            assert (await connection.answer()).status == 200
            longest_s = max(longest_s, time.monotonic() - since_s)
    assert {answer.status for answer in await attacking} == {400}
    assert longest_s < 1.0
