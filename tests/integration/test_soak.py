"""Thousands of images of every kind, hostile ones among them, through one worker: its memory stays as it was."""

import asyncio
import hashlib
import sys
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

import psutil
import pytest

from app.core.jobstore import AdmitOutcome, JobStore, Reservation, Source
from contracts.images import ImageFormat
from contracts.keys import staging_key
from stack.roles import RoleProcess, Roles
from tests.books import DAY_S, NO_BOUNDS
from tests.hostile_kinds import SERVED, hostile_images
from tests.image_makers import animation, encode, photo
from tests.jobs_by_hand import open_hand
from tests.line import Line, open_line, until

pytestmark = pytest.mark.alone

#: Memory at the end, as a multiple of what it was after the first images: 15 % of growth would be a leak.
GROWTH_FACTOR_MAX = 1.15
PLANTERS = 6
CHILDREN = 2
STRETCH_S_MAX = 1_500.0

SIZES_PX = ((60, 40), (320, 240), (640, 480), (1_024, 768))
FORMATS: tuple[tuple[str, dict[str, object]], ...] = (
    ("JPEG", {"quality": 85}),
    ("JPEG", {"quality": 85, "progressive": True}),
    ("PNG", {}),
    ("WEBP", {}),
    ("GIF", {}),
    ("TIFF", {"compression": "tiff_deflate"}),
    ("AVIF", {"speed": 10}),
)


@dataclass(frozen=True, slots=True)
class Work:
    """One file on its way through, and the outcomes that are right for it."""

    data: bytes
    outcomes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reading:
    """Resident memory of the idle worker process and of its children together."""

    parent_bytes: int
    children_bytes: int

    @property
    def tree_bytes(self) -> int:
        """Return the memory of the worker as a whole."""
        return self.parent_bytes + self.children_bytes


@pytest.fixture
async def line(roles: Roles, fresh_env: dict[str, str]) -> AsyncIterator[Line]:
    async with open_line(roles, fresh_env) as opened:
        yield opened


def good_images(sizes_px: Iterable[tuple[int, int]]) -> list[bytes]:
    """Return one image of every format and size, and animations."""
    stills = [
        encode(photo(*size_px, seed=seed), file_format, **options)
        for seed, size_px in enumerate(sizes_px)
        for file_format, options in FORMATS
    ]
    return [*stills, *(animation(file_format) for file_format in ("GIF", "PNG", "WEBP"))]


def mixed(images_count: int, hostile_count: int, *, sizes_px: Iterable[tuple[int, int]]) -> Iterator[Work]:
    """Yield good images in turn, with the hostile ones spread evenly among them."""
    goods, every = good_images(sizes_px), images_count // hostile_count
    hostile = hostile_images(hostile_count)
    for number in range(images_count):
        yield Work(goods[number % len(goods)], frozenset({SERVED}))
        if number % every == every - 1:
            kind, data = next(hostile)
            yield Work(data, kind.outcomes)


async def plant(line: Line, jobs: JobStore, work: Iterator[Work]) -> dict[uuid.UUID, Work]:
    """Bring each file to where a client has its `202`; also those that the edge would have refused by their head."""
    planted: dict[uuid.UUID, Work] = {}

    async def one_after_the_other() -> None:
        for item in work:
            job_id = await plant_one(line, jobs, item.data)
            planted[job_id] = item

    await asyncio.gather(*(one_after_the_other() for _ in range(PLANTERS)))
    return planted


async def plant_one(line: Line, jobs: JobStore, data: bytes) -> uuid.UUID:
    size_bytes = max(1, len(data))
    place = Reservation(
        job_id=uuid.uuid4(), image_id=uuid.uuid4(), owner="ann", upload_token=uuid.uuid4(), held_bytes=size_bytes
    )
    assert await jobs.admit(place, bounds=NO_BOUNDS, lease_s=60, deadline_s=60) is AdmitOutcome.ADMITTED
    await line.objects.put(staging_key(place.job_id), data, media_type="image/jpeg")
    sha256 = hashlib.sha256(data).hexdigest()
    source = Source(source_bytes=size_bytes, sha256=sha256, format=ImageFormat.JPEG, width=1, height=1)
    assert await jobs.accept(job_id=place.job_id, upload_token=place.upload_token, source=source, job_deadline_s=DAY_S)
    return place.job_id


async def assert_right_outcomes(line: Line, planted: dict[uuid.UUID, Work]) -> None:
    """Wait until all have ended; each ended rightly at its first claim, so that no child was lost to its neighbour."""

    async def over() -> bool:
        return not await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE holds_place")

    await until(over, timeout_s=STRETCH_S_MAX, what="all planted jobs final")
    rows = {row["id"]: row for row in await line.rows()}
    for job_id, item in planted.items():
        row = rows[job_id]
        assert (row["error_code"] or row["state"]) in item.outcomes
        assert (row["claim_token"], row["deaths"], row["attempts_spent"]) == (1, 0, 0)


async def read_memory(worker: RoleProcess) -> Reading:
    """Return the memory of the worker at rest, once no successor of a worn child waits beside it."""
    process = psutil.Process(worker.pid)

    async def at_rest() -> list[int]:
        children = [child.memory_info().rss for child in process.children()]
        return children if len(children) == CHILDREN else []

    children = await until(at_rest, what="the worker has as many children as slots")
    return Reading(process.memory_info().rss, sum(children))


async def soak(line: Line, work: Iterator[Work], *, first_count: int) -> tuple[Reading, Reading]:
    """Return the worker's memory after the first images and after all."""
    hand = await open_hand(line)
    await line.start("relay", "janitor")
    worker = await line.start_named("worker", name="worker", SPILLWAY_WORKER_CONCURRENCY=str(CHILDREN))
    first = (item for item, _ in zip(work, range(first_count), strict=False))
    try:
        await assert_right_outcomes(line, await plant(line, hand.jobs, first))
        before = await read_memory(worker)
        await assert_right_outcomes(line, await plant(line, hand.jobs, work))
        return before, await read_memory(worker)
    finally:
        await hand.database.close()


def assert_flat(before: Reading, after: Reading) -> None:
    sys.stdout.write(f"soak: {before} after the first images, {after} after all\n")
    assert after.parent_bytes <= GROWTH_FACTOR_MAX * before.parent_bytes, (before, after)
    # A child's own size depends on its age, up to 200 images, and on its largest image: all of them together count.
    assert after.tree_bytes <= GROWTH_FACTOR_MAX * before.tree_bytes, (before, after)


async def test_six_hundred_images_and_some_hostile_ones_leave_a_worker_as_it_was(line: Line) -> None:
    assert_flat(*await soak(line, mixed(600, 60, sizes_px=SIZES_PX[:2]), first_count=330))


@pytest.mark.long
async def test_five_thousand_images_and_two_hundred_hostile_ones_leave_a_worker_as_it_was(line: Line) -> None:
    assert_flat(*await soak(line, mixed(5_000, 200, sizes_px=SIZES_PX), first_count=500))
