"""Contents: whole, in part, known or by a link; refused until ready; nothing left behind by readers who vanish."""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Mapping

import psutil
import pytest

from app.api.content_response import CONTENTS_MAX, OWNER_CONTENTS_MAX, PIECE_S_MAX
from contracts.keys import original_key
from stack.servers import Servers
from tests.attached import MESSAGES, PHOTO, VARIANTS, Desk, Sent, open_desk
from tests.books import expired
from tests.edge import Connection, api_of, children_of, connect, exchange, head, open_edge
from tests.line import until

MIB = 1024 * 1024
BIG = os.urandom(24 * MIB)
#: A chunk and two buffers for each reader, with room for the allocator.
READER_BYTES_MAX = 2 * MIB
READERS = 12


@pytest.fixture(scope="module")
async def desk(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Desk]:
    async with open_edge(servers, environment, janitor=False) as line, open_desk(line) as opened:
        yield opened


@pytest.fixture(scope="module")
async def photo(desk: Desk) -> Sent:
    return await desk.ready()


@pytest.fixture(scope="module")
async def big(desk: Desk) -> Sent:
    return await desk.ready(BIG)


def content_request(desk: Desk, sent: Sent, *, token: str | None = None) -> bytes:
    return head(token or desk.line.token, method="GET", path=f"{sent.path}/content", content_type=None)


async def test_the_original_is_sent_as_it_was_with_headers_of_our_own(desk: Desk, photo: Sent) -> None:
    answer = await desk.get(f"{photo.path}/content")
    assert (answer.status_code, answer.content) == (200, PHOTO)
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["content-length"] == str(len(PHOTO))
    assert answer.headers["etag"] == f'"{hashlib.sha256(PHOTO).hexdigest()}"'
    assert answer.headers["content-disposition"] == f'inline; filename="{photo.attachment_id}.jpg"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "private, no-cache"
    assert answer.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize("name", ["thumbnail", "crop", "optimized"])
async def test_a_variant_is_sent_by_path_or_by_parameter(desk: Desk, photo: Sent, name: str) -> None:
    by_path = await desk.get(f"{photo.path}/content/{name}")
    by_parameter = await desk.get(f"{photo.path}/content?variant={name}")
    data = next(data for variant, data in VARIANTS.items() if variant.value == name)
    assert by_path.content == by_parameter.content == data
    assert by_path.headers["content-type"] == ("image/webp" if name == "optimized" else "image/jpeg")
    assert re.search(rf'-{name}\.(jpg|webp)"$', by_path.headers["content-disposition"])


async def test_the_original_has_a_name_too(desk: Desk, photo: Sent) -> None:
    assert (await desk.get(f"{photo.path}/content/original")).content == PHOTO


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=7-", 7, len(PHOTO)),
        ("bytes=-3", len(PHOTO) - 3, len(PHOTO)),
        ("bytes=0-999999999", 0, len(PHOTO)),
        (f"bytes={len(PHOTO) - 1}-", len(PHOTO) - 1, len(PHOTO)),
    ],
)
async def test_a_range_is_sent_alone(desk: Desk, photo: Sent, text: str, start: int, end: int) -> None:
    answer = await desk.get(f"{photo.path}/content", range=text)
    assert (answer.status_code, answer.content) == (206, PHOTO[start:end])
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(PHOTO)}"
    assert answer.headers["content-length"] == str(end - start)
    assert answer.headers["etag"] == f'"{hashlib.sha256(PHOTO).hexdigest()}"'


@pytest.mark.parametrize("text", ["bytes=1-0", "bytes=0-0,2-3", "bytes=x", "items=0-1", "bytes=-"])
async def test_what_is_no_range_is_the_whole(desk: Desk, photo: Sent, text: str) -> None:
    answer = await desk.get(f"{photo.path}/content", range=text)
    assert (answer.status_code, answer.content) == (200, PHOTO)


@pytest.mark.parametrize("text", [f"bytes={len(PHOTO)}-", "bytes=999999999-", "bytes=-0"])
async def test_a_range_outside_is_refused_with_the_length(desk: Desk, photo: Sent, text: str) -> None:
    answer = await desk.get(f"{photo.path}/content", range=text)
    assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == f"bytes */{len(PHOTO)}"


async def test_a_range_counts_only_for_the_version_it_was_meant_for(desk: Desk, photo: Sent) -> None:
    etag = f'"{hashlib.sha256(PHOTO).hexdigest()}"'
    same = await desk.get(f"{photo.path}/content", range="bytes=0-3", if_range=etag)
    other = await desk.get(f"{photo.path}/content", range="bytes=0-3", if_range='"other"')
    assert (same.status_code, other.status_code) == (206, 200)


async def test_a_known_content_is_not_sent_again(desk: Desk, photo: Sent) -> None:
    etag = f'"{hashlib.sha256(PHOTO).hexdigest()}"'
    for given in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        answer = await desk.get(f"{photo.path}/content", if_none_match=given, range="bytes=0-3")
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await desk.get(f"{photo.path}/content", if_none_match='"x"')).status_code == 200


async def test_a_head_says_what_a_get_would(desk: Desk, photo: Sent) -> None:
    for suffix in ("content", "content/thumbnail", "content?variant=crop"):
        got = await desk.get(f"{photo.path}/{suffix}")
        said = await desk.call("HEAD", f"{photo.path}/{suffix}", headers={"Range": "bytes=0-1"})
        assert (said.status_code, said.content) == (200, b"")
        assert {**said.headers, "date": ""} == {**got.headers, "date": ""}
    missing = await desk.call("HEAD", f"{photo.path}/content/other")
    assert (missing.status_code, missing.content) == (404, b"")


async def test_a_link_to_the_store_is_given_when_asked_for(desk: Desk, photo: Sent) -> None:
    answer = await desk.get(f"{photo.path}/content/optimized?redirect=1")
    assert (answer.status_code, answer.headers["cache-control"]) == (303, "no-store")
    opened = await desk.line.http.get(answer.headers["location"])
    assert (opened.status_code, opened.content) == (200, b"webp")
    unsigned = answer.headers["location"].split("?", maxsplit=1)[0]
    assert (await desk.line.http.get(unsigned)).status_code == 403


@pytest.mark.parametrize(
    ("suffix", "status"),
    [
        ("content/other", 404),
        ("content/%00", 404),
        ("content/original/x", 404),
        ("content?variant=other", 422),
        ("content?redirect=yes", 422),
    ],
)
async def test_what_was_never_made_is_not_there(desk: Desk, photo: Sent, suffix: str, status: int) -> None:
    assert (await desk.get(f"{photo.path}/{suffix}")).status_code == status


async def test_foreign_contents_are_not_there(desk: Desk, photo: Sent) -> None:
    stranger = await desk.other_token()
    assert (await desk.get(f"{photo.path}/content", token=stranger)).status_code == 404
    assert (await desk.get(f"{photo.path}/content", token="nobody")).status_code == 401


async def test_there_is_no_content_before_it_is_ready_while_other_requests_go_on(desk: Desk, photo: Sent) -> None:
    unfinished = [await desk.queued(), (await desk.claimed())[0]]
    for sent in unfinished:
        for suffix in ("content", "content/thumbnail", "content?redirect=1"):
            answer = await desk.get(f"{sent.path}/{suffix}")
            assert (answer.status_code, answer.json()["code"]) == (409, "not_ready")
            assert int(answer.headers["retry-after"]) >= 1
    assert (await desk.get(f"{photo.path}/content")).status_code == 200
    assert (await desk.post(MESSAGES, {"text": "still here"})).status_code == 201


async def test_a_failed_one_will_not_be_ready_by_waiting(desk: Desk) -> None:
    answer = await desk.get(f"{(await desk.failed()).path}/content")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_ready")
    assert "retry-after" not in answer.headers


async def test_an_erased_one_is_gone(desk: Desk) -> None:
    sent = await desk.ready()
    assert await expired(desk.line.raw, sent.job_id)
    answer = await desk.get(f"{sent.path}/content")
    assert (answer.status_code, answer.json()["code"]) == (410, "expired")


async def test_a_content_that_the_store_has_lost_is_our_own_fault(desk: Desk) -> None:
    sent = await desk.ready(stored=False)
    answer = await desk.get(f"{sent.path}/content/crop")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")


async def test_a_content_shorter_than_it_should_be_never_looks_whole(desk: Desk) -> None:
    sent = await desk.ready()
    key = original_key((await desk.line.row(sent.job_id))["image_id"])
    await desk.line.objects.put(key, PHOTO[:-5], media_type="image/jpeg")
    async with connect(api_of(desk.line).port) as connection:
        await connection.send(content_request(desk, sent))
        async with asyncio.timeout(10):
            received = await connection.reader.read(-1)  # until the server closes
    _, _, body = received.partition(b"\r\n\r\n")
    assert body == PHOTO[:-5]
    assert f"content-length: {len(PHOTO)}".encode() in received


async def test_a_big_content_is_whole_and_takes_little_memory_from_many_readers(desk: Desk, big: Sent) -> None:
    (process,) = children_of(api_of(desk.line))
    await read_in_part(desk, big, MIB)
    before_bytes = process.memory_info().rss
    watching = asyncio.create_task(peak_bytes(process, done := asyncio.Event()))
    digests = await asyncio.gather(*(digest_of(desk, big) for _ in range(READERS)))
    done.set()
    growth_bytes = await watching - before_bytes
    assert set(digests) == {hashlib.sha256(BIG).hexdigest()}
    assert growth_bytes <= READERS * READER_BYTES_MAX


async def test_readers_who_vanish_leave_nothing_behind(desk: Desk, big: Sent) -> None:
    """More of them than there are turns or connections; afterwards all turns are free and no connection is held."""
    tokens = [await desk.other_token() for _ in range(CONTENTS_MAX // OWNER_CONTENTS_MAX)]
    owned = [(token, await desk.ready(BIG, token=token)) for token in tokens]
    before = store_connections(desk)
    for _ in range(3 * CONTENTS_MAX // OWNER_CONTENTS_MAX):
        await asyncio.gather(*(read_in_part(desk, big, 100_000) for _ in range(OWNER_CONTENTS_MAX // 2)))

    async def let_go() -> bool:
        return store_connections(desk) <= before

    await until(let_go, timeout_s=10, what="connections to the store closed")
    held = [await held_reader(desk, sent, token=token) for token, sent in owned for _ in range(OWNER_CONTENTS_MAX)]
    refused = await desk.get(f"{big.path}/content")
    assert (len(held), refused.status_code) == (CONTENTS_MAX, 503), "a turn was left, or taken by nobody"
    for connection in held:
        await connection.reader.readuntil(b"\r\n\r\n")
        assert await connection.reader.readexactly(MIB) == BIG[:MIB]
    for connection in held:
        connection.abort()
    await until(let_go, timeout_s=10, what="connections to the store closed again")


async def test_an_owner_reads_so_many_at_once_and_others_still_read(desk: Desk, big: Sent, photo: Sent) -> None:
    held = [await held_reader(desk, big) for _ in range(OWNER_CONTENTS_MAX)]
    refused = await desk.get(f"{photo.path}/content")
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1
    # Uploads and reads of data have connections of their own.
    other = await desk.other_token()
    assert (await desk.upload(token=other)).status_code == 202
    assert (await desk.get(photo.path)).status_code == 200
    for connection in held:
        connection.abort()

    async def free() -> bool:
        return (await desk.get(f"{photo.path}/content")).status_code == 200

    await until(free, timeout_s=5, what="the turns are free again")


@pytest.mark.long
async def test_readers_who_stall_are_cut_off_and_give_their_turns_back(desk: Desk, big: Sent, photo: Sent) -> None:
    since_s = time.monotonic()
    held = [await held_reader(desk, big) for _ in range(OWNER_CONTENTS_MAX)]

    async def free() -> bool:
        return (await desk.get(f"{photo.path}/content")).status_code == 200

    await until(free, timeout_s=PIECE_S_MAX + 5, what="a turn is free again")
    assert time.monotonic() - since_s > PIECE_S_MAX - 1
    # Those who stalled a moment later may still read on.
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await held[0].reader.readexactly(len(BIG))
    for connection in held:
        connection.abort()


async def test_a_store_that_is_away_is_said_so_soon(desk: Desk, photo: Sent, servers: Servers) -> None:
    assert servers.s3 is not None
    servers.s3.freeze()
    try:
        other = await desk.line.start_named("api", name="api-frozen", SPILLWAY_S3_TIMEOUT_S="1")
        since_s = time.monotonic()
        answer = await exchange(other.port, content_request(desk, photo))
        assert (answer.status, answer.code) == (503, "dependency_unavailable")
        assert time.monotonic() - since_s < 4
        link = await exchange(
            other.port,
            head(desk.line.token, method="GET", path=f"{photo.path}/content?redirect=1", content_type=None),
        )
        assert link.status == 303
        await asyncio.to_thread(other.kill)
    finally:
        servers.s3.thaw()


async def digest_of(desk: Desk, sent: Sent) -> str:
    digest = hashlib.sha256()
    headers = {"Authorization": f"Bearer {desk.line.token}"}
    async with desk.line.http.stream("GET", f"{desk.line.base_url}{sent.path}/content", headers=headers) as answer:
        assert answer.status_code == 200
        async for chunk in answer.aiter_raw():
            digest.update(chunk)
    return digest.hexdigest()


async def read_in_part(desk: Desk, sent: Sent, size_bytes: int) -> None:
    """Read so much of a content, and be gone."""
    async with connect(api_of(desk.line).port) as connection:
        await connection.send(content_request(desk, sent))
        assert b" 200 " in await connection.reader.readuntil(b"\r\n")
        await connection.reader.readexactly(size_bytes)


async def held_reader(desk: Desk, sent: Sent, *, token: str | None = None) -> Connection:
    """Begin to read a content and go no further."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api_of(desk.line).port)
    connection = Connection(reader, writer)
    await connection.send(content_request(desk, sent, token=token))
    assert b" 200 " in await reader.readuntil(b"\r\n")
    return connection


def store_connections(desk: Desk) -> int:
    """Return how many connections to the store the API has."""
    (process,) = children_of(api_of(desk.line))
    port = int(desk.line.env["SPILLWAY_S3_ENDPOINT_URL"].rsplit(":", 1)[1])
    return sum(getattr(connection.raddr, "port", None) == port for connection in process.net_connections("tcp"))


async def peak_bytes(process: psutil.Process, done: asyncio.Event) -> int:
    peak = 0
    while not done.is_set():
        peak = max(peak, process.memory_info().rss)
        await asyncio.sleep(0.01)
    return peak
