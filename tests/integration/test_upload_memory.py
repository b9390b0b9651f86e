"""An API process needs at most 8 MiB for each upload in flight, however long the upload."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Mapping

import psutil
import pytest

from stack.servers import Servers
from tests.edge import api_of, body, children_of, connect, head, open_edge, post
from tests.line import Line, photo, until

pytestmark = pytest.mark.alone

MIB = 1024 * 1024
UPLOADS = 20
FILE_BYTES = 16 * MIB  #: four parts: longer ones only repeat the third
GROWTH_BYTES_MAX = 8 * MIB
WAVES = 6
PHOTO = photo(1)


@pytest.fixture
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    settings = {
        "SPILLWAY_UPLOAD_BYTES_MAX": "100000000",
        "SPILLWAY_ADMISSION_POLICY": "none",
        "SPILLWAY_S3_TIMEOUT_S": "60",
    }
    async with open_edge(servers, environment, env=settings) as opened:
        for _ in range(3):
            assert (await post(opened, body(PHOTO))).status == 202
        yield opened


async def test_memory_grows_by_at_most_8_mib_an_upload(line: Line) -> None:
    (process,) = children_of(api_of(line))
    before_bytes = process.memory_info().rss
    watching = asyncio.create_task(peak_bytes(process, done := asyncio.Event()))
    statuses = await asyncio.gather(*(upload(line) for _ in range(UPLOADS)))
    done.set()
    growth_bytes = await watching - before_bytes
    assert statuses == [202] * UPLOADS
    assert growth_bytes <= UPLOADS * GROWTH_BYTES_MAX
    assert growth_bytes >= UPLOADS * MIB  # they were really in flight together


async def test_waves_of_aborted_uploads_leave_no_more_behind_than_one_of_them_needs(line: Line) -> None:
    """Uploads cut at random points: what they held is free for the next ones."""
    (process,) = children_of(api_of(line))
    before_bytes, rng, held_bytes = process.memory_info().rss, random.SystemRandom(), []
    for _ in range(WAVES):
        await asyncio.gather(*(cut_upload(line, sent_bytes=rng.randrange(MIB, FILE_BYTES)) for _ in range(UPLOADS)))
        held_bytes.append(process.memory_info().rss - before_bytes)
    assert max(held_bytes) >= MIB  # they were really begun
    await until(lambda: no_upload_left(line), what="the last wave has been cleaned up after")
    assert process.memory_info().rss - before_bytes <= UPLOADS * GROWTH_BYTES_MAX


async def cut_upload(line: Line, *, sent_bytes: int) -> None:
    async with connect(api_of(line).port) as connection:
        data = head(line.token, length_bytes=FILE_BYTES) + body(PHOTO + bytes(FILE_BYTES))
        await connection.send(data[:sent_bytes])


async def no_upload_left(line: Line) -> bool:
    return not await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE state = 'uploading'")


async def peak_bytes(process: psutil.Process, done: asyncio.Event) -> int:
    peak = 0
    while not done.is_set():
        peak = max(peak, process.memory_info().rss)
        await asyncio.sleep(0.01)
    return peak


async def upload(line: Line) -> int:
    data = body(PHOTO + os.urandom(MIB) * (FILE_BYTES // MIB))
    async with connect(api_of(line).port) as connection:
        await connection.send(head(line.token, length_bytes=len(data)) + data)
        return (await connection.answer()).status
