"""What an upload costs over writing the same bytes to the store: both in one run, taking turns."""

import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping

import pytest

from stack.servers import Servers
from tests.edge import open_edge
from tests.line import Line, photo

pytestmark = [pytest.mark.long, pytest.mark.alone]

ROUNDS = 30
ROUNDS_TO_WARM_UP = 3
#: File size in bytes and how many times a bare PUT's time an upload may take.
RATIOS_MAX = {100_000: 2.5, 10_000_000: 1.3}


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment, env={"SPILLWAY_ADMISSION_JOBS_MAX": "1000"}, janitor=False) as opened:
        yield opened


def padded(size_bytes: int) -> bytes:
    """A JPEG with so many bytes: what follows its end is part of the file."""
    image = photo(1)
    return image + b"\0" * (size_bytes - len(image))


async def timed(call: Awaitable[object]) -> float:
    since_s = time.monotonic()
    await call
    return time.monotonic() - since_s


async def upload(line: Line, data: bytes) -> None:
    headers = {"Authorization": f"Bearer {line.token}", "Content-Type": "image/jpeg"}
    answer = await line.http.post(f"{line.base_url}/api/v1/images", content=data, headers=headers)
    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize("size_bytes", RATIOS_MAX)
async def test_an_upload_takes_little_longer_than_a_bare_put(line: Line, size_bytes: int) -> None:
    data, uploads_s, puts_s = padded(size_bytes), [], []
    for number in range(ROUNDS_TO_WARM_UP + ROUNDS):
        took_s = await timed(upload(line, data))
        bare_s = await timed(line.objects.put(f"bare/{uuid.uuid4()}", data, media_type="image/jpeg"))
        if number >= ROUNDS_TO_WARM_UP:
            uploads_s.append(took_s)
            puts_s.append(bare_s)
    upload_s, put_s = statistics.median(uploads_s), statistics.median(puts_s)
    ratio = upload_s / put_s
    sys.stdout.write(
        f"\n{size_bytes} bytes: upload {upload_s * 1000:.1f} ms, bare PUT {put_s * 1000:.1f} ms, {ratio:.2f} times\n"
    )
    assert ratio <= RATIOS_MAX[size_bytes]
