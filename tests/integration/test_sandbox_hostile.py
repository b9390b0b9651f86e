"""Hostile images, killed and frozen children: they cost their image, and nothing else."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from contracts.errors import FailureCode
from contracts.images import ImageLimits, TransformParams, VariantName
from tests.hostile_images import RGB, jpeg_scan_bomb, large_flat_avif, png_text_bomb, png_whole
from tests.image_makers import encode, photo, scene
from tests.polling import eventually
from worker.sandbox import ChildDied, Sandbox
from worker.variants import ImageRejected, Variant

pytestmark = pytest.mark.alone

#: Its WebP takes long enough to be interrupted.
PHOTO = encode(photo(1600, 1200), "JPEG")
SMALL = encode(scene(60, 40), "PNG")


@asynccontextmanager
async def opened(*, children: int = 1, limits: ImageLimits | None = None) -> AsyncIterator[Sandbox]:
    # No child is replaced for its age here: what a test sees happened for its own reason.
    box = Sandbox(
        children=children, limits=limits or ImageLimits(), params=TransformParams(), jobs_per_child_max=10_000
    )
    await box.start()
    try:
        yield box
    finally:
        await box.close()
    assert not box.child_pids


def ignore(_: Variant) -> None:
    pass


async def assert_serves(box: Sandbox) -> None:
    got: list[Variant] = []
    await box.transform(SMALL, on_variant=got.append)
    assert len(got) == len(VariantName)


async def test_a_child_killed_in_the_middle_costs_one_attempt() -> None:
    async with opened() as box:
        (pid,) = box.child_pids
        with pytest.raises(ChildDied):
            await box.transform(PHOTO, on_variant=lambda _: os.kill(pid, signal.SIGKILL))
        await assert_serves(box)
        assert pid not in box.child_pids


async def test_an_idle_child_that_was_killed_costs_nothing() -> None:
    async with opened() as box:
        (pid,) = box.child_pids
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        await assert_serves(box)


async def test_a_killed_child_leaves_its_neighbour_in_peace() -> None:
    async with opened(children=2) as box:
        got: list[Variant] = []
        jobs = [asyncio.ensure_future(box.transform(PHOTO, on_variant=got.append)) for _ in range(2)]
        await eventually(lambda: box.busy == 2)
        os.kill(box.child_pids[0], signal.SIGKILL)
        results = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(result) for result in results].count(ChildDied) == 1
        assert sum(variant.name is VariantName.OPTIMIZED for variant in got) == 1


async def test_a_frozen_child_costs_the_wall_limit_only() -> None:
    async with opened(limits=ImageLimits(wall_s_max=0.6)) as box:
        (pid,) = box.child_pids
        started_s = time.monotonic()
        with pytest.raises(ImageRejected) as refused:
            await box.transform(PHOTO, on_variant=lambda _: os.kill(pid, signal.SIGSTOP))
        assert 0.5 < time.monotonic() - started_s < 5.0
        assert (refused.value.code, refused.value.retryable) == (FailureCode.IMAGE_TIME_LIMIT, True)
        await assert_serves(box)


async def test_a_freeze_of_parent_and_child_does_not_cost_an_image_its_wall_limit() -> None:
    wall_s = 1.0
    got: list[Variant] = []
    async with opened(limits=ImageLimits(wall_s_max=wall_s)) as box:
        (pid,) = box.child_pids

        def freeze_once(variant: Variant) -> None:
            if not got:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(1.5 * wall_s)  # stands for the same signal to this process
                os.kill(pid, signal.SIGCONT)
            got.append(variant)

        await box.transform(PHOTO, on_variant=freeze_once)
    assert len(got) == len(VariantName)


async def test_an_image_that_spins_is_stopped_by_its_cpu_time() -> None:
    limits = ImageLimits(jpeg_scans_max=1_000, cpu_s_max=0.1)
    async with opened(limits=limits) as box:
        started_s = time.monotonic()
        with pytest.raises(ImageRejected) as refused:
            await box.transform(jpeg_scan_bomb(7_000, 7_000), on_variant=ignore)
        assert (refused.value.code, refused.value.retryable) == (FailureCode.IMAGE_TIME_LIMIT, False)
        assert time.monotonic() - started_s < 10.0
        await assert_serves(box)


async def test_the_cpu_limit_is_of_one_image_not_of_the_child() -> None:
    async with opened(limits=ImageLimits(cpu_s_max=0.5)) as box:
        before = box.child_pids
        spent_s = 0.0
        while spent_s < 2.0:
            spent_s += (await box.transform(PHOTO, on_variant=ignore)).cpu_s
        assert box.child_pids == before


@pytest.mark.parametrize(
    "source",
    [png_whole(6_000, 6_000, colour=RGB, interlace=1), large_flat_avif(4_000, 4_000)],
    ids=["interlaced png", "avif"],
)
async def test_an_image_that_eats_memory_is_stopped_by_the_limit(source: bytes) -> None:
    async with opened(limits=ImageLimits(memory_bytes_max=160 * 1024 * 1024)) as box:
        with pytest.raises(ImageRejected) as refused:
            await box.transform(source, on_variant=ignore)
        assert refused.value.code is FailureCode.IMAGE_MEMORY_LIMIT
        await assert_serves(box)


@pytest.mark.parametrize(
    "source",
    [png_whole(30_000, 1), png_whole(1, 30_000), png_text_bomb(), png_whole(30_000, 16)],
    ids=["wide", "tall", "texts", "wide strip"],
)
async def test_an_odd_but_good_image_takes_little_time_and_memory(source: bytes) -> None:
    async with opened() as box:
        facts = await box.transform(source, on_variant=ignore)
        assert facts.cpu_s < 1.0
        assert facts.rss_bytes_peak < 200_000_000


async def test_cancelling_kills_the_child_and_frees_the_place() -> None:
    async with opened() as box:
        (pid,) = box.child_pids
        got: list[Variant] = []
        job = asyncio.ensure_future(box.transform(PHOTO, on_variant=got.append))
        await eventually(lambda: bool(got))
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        await assert_serves(box)
        assert pid not in box.child_pids


async def test_cancelling_a_caller_that_waits_takes_no_place() -> None:
    async with opened() as box:
        before = box.child_pids
        running = asyncio.ensure_future(box.transform(PHOTO, on_variant=ignore))
        await eventually(lambda: box.busy == 1)
        waiting = asyncio.ensure_future(box.transform(PHOTO, on_variant=ignore))
        await asyncio.wait([waiting], timeout=0)
        waiting.cancel()
        await running
        await assert_serves(box)
        assert box.child_pids == before


async def test_a_fault_of_the_receiver_is_not_hidden() -> None:
    def fail(_: Variant) -> None:
        raise LookupError("the receiver's own")

    async with opened() as box:
        with pytest.raises(LookupError):
            await box.transform(PHOTO, on_variant=fail)
        await assert_serves(box)


async def test_two_hundred_bad_files_leave_memory_and_descriptors_flat() -> None:
    wholes = [encode(photo(200, 150), file_format) for file_format in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF")]
    async with opened() as box:
        child = psutil.Process(*box.child_pids)

        async def feed(count: int) -> None:
            for index in range(count):
                whole = wholes[index % len(wholes)]
                with pytest.raises(ImageRejected):
                    await box.transform(whole[: len(whole) * (20 + index % 70) // 100], on_variant=ignore)

        await feed(60)
        before = (child.num_fds(), psutil.Process().num_fds(), child.memory_info().rss)
        await feed(200)
        after = (child.num_fds(), psutil.Process().num_fds(), child.memory_info().rss)
        assert after[:2] == before[:2]
        assert after[2] - before[2] < 4_000_000
        await assert_serves(box)
        assert box.child_pids == (child.pid,)


async def test_no_pixels_are_spilled_into_files() -> None:
    # libvips would write images over 100 MB to the temporary folder; a child may write no file at all.
    source = png_whole(6_000, 6_000, colour=RGB, interlace=1)
    open_files: list[list[str]] = []
    async with opened() as box:
        child = psutil.Process(*box.child_pids)

        def look(_: object) -> None:
            # What the kernel tells of the child itself it may be reading just now.
            paths = [file.path for file in child.open_files()]
            open_files.append([path for path in paths if not path.startswith("/proc/")])

        await box.transform(source, on_variant=look)
    assert open_files == [[], [], []]
