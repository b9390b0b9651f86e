"""An API process needs at most 8 MiB for each upload in flight, however long the upload."""

import asyncio
import os
from collections.abc import Mapping

import psutil
import pytest

from stack.servers import Servers
from tests.edge import api_of, body, children_of, connect, head, open_edge, post
from tests.line import Line, photo

pytestmark = pytest.mark.alone

MIB = 1024 * 1024
UPLOADS = 20
FILE_BYTES = 16 * MIB  #: four parts: longer ones only repeat the third
GROWTH_BYTES_MAX = 8 * MIB
PHOTO = photo(1)


async def test_memory_grows_by_at_most_8_mib_an_upload(servers: Servers, environment: Mapping[str, str]) -> None:
    settings = {
        "SPILLWAY_UPLOAD_BYTES_MAX": "100000000",
        "SPILLWAY_ADMISSION_POLICY": "none",
        "SPILLWAY_S3_TIMEOUT_S": "60",
    }
    async with open_edge(servers, environment, env=settings) as line:
        for _ in range(3):
            assert (await post(line, body(PHOTO))).status == 202
        (process,) = children_of(api_of(line))
        before_bytes = process.memory_info().rss
        watching = asyncio.create_task(peak_bytes(process, done := asyncio.Event()))
        statuses = await asyncio.gather(*(upload(line) for _ in range(UPLOADS)))
        done.set()
        growth_bytes = await watching - before_bytes
        assert statuses == [202] * UPLOADS
        assert growth_bytes <= UPLOADS * GROWTH_BYTES_MAX
        assert growth_bytes >= UPLOADS * MIB  # they were really in flight together


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
