"""The sandbox with real children: results, pool, replacement, and what a child may do."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import uvloop

from contracts.errors import FailureCode
from contracts.images import ImageFormat, ImageLimits, TransformParams, VariantName
from tests.hostile_images import large_flat_avif
from tests.image_makers import encode, photo, scene
from tests.polling import eventually
from worker.child import KEPT_RSS_BYTES_MAX
from worker.child_handle import CHILD_ENVIRONMENT
from worker.sandbox import HEAVY_PIXELS_MIN, ChildDied, Sandbox
from worker.transform import decode_master, make_variants
from worker.variants import ImageRejected, Variant

LIMITS, PARAMS = ImageLimits(), TransformParams()
REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = encode(scene(60, 40), "PNG")
PHOTO = encode(photo(800, 600), "JPEG")


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    box = Sandbox(children=2, limits=LIMITS, params=PARAMS)
    await box.start()
    yield box
    pids = box.child_pids
    await box.close()
    assert not box.child_pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def ignore(_: Variant) -> None:
    pass


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text(encoding="ascii")


async def test_the_variants_are_those_of_the_pure_transform_and_the_cheapest_comes_first(sandbox: Sandbox) -> None:
    got: list[Variant] = []
    facts = await sandbox.transform(PHOTO, on_variant=got.append)
    assert got == list(make_variants(decode_master(PHOTO, params=PARAMS, limits=LIMITS), params=PARAMS))
    assert [variant.name for variant in got] == [VariantName.THUMBNAIL, VariantName.CROP, VariantName.OPTIMIZED]
    assert (facts.image_format, facts.width_px, facts.height_px) == (ImageFormat.JPEG, 800, 600)
    assert 0 < facts.cpu_s < LIMITS.cpu_s_max
    assert 10_000_000 < facts.rss_bytes_peak < 200_000_000


async def test_a_job_may_have_parameters_of_its_own(sandbox: Sandbox) -> None:
    got: list[Variant] = []
    await sandbox.transform(PHOTO, params=TransformParams(thumbnail_side_px=50), on_variant=got.append)
    assert (got[0].width_px, got[0].height_px) == (50, 38)


async def test_a_refusal_costs_no_child(sandbox: Sandbox) -> None:
    before = set(sandbox.child_pids)
    for source, code in (
        (b"", FailureCode.INVALID_IMAGE),
        (b"not an image", FailureCode.UNSUPPORTED_FORMAT),
        (PHOTO[: len(PHOTO) // 2], FailureCode.INVALID_IMAGE),
    ):
        with pytest.raises(ImageRejected) as refused:
            await sandbox.transform(source, on_variant=ignore)
        assert (refused.value.code, refused.value.retryable) == (code, False)
    assert set(sandbox.child_pids) == before


async def test_callers_wait_for_a_free_child(sandbox: Sandbox) -> None:
    seen: list[int] = []
    jobs = [sandbox.transform(SMALL, on_variant=lambda _: seen.append(sandbox.busy)) for _ in range(30)]
    await asyncio.gather(*jobs)
    assert len(seen) == 90
    assert max(seen) == 2
    assert sandbox.busy == 0


async def test_one_heavy_image_at_a_time(sandbox: Sandbox) -> None:
    side_px = int(HEAVY_PIXELS_MIN**0.5) + 8
    heavy = encode(scene(side_px, side_px), "JPEG", progressive=True)
    seen: list[int] = []
    fast = TransformParams(master_side_px_max=300)
    jobs = [sandbox.transform(heavy, params=fast, on_variant=lambda _: seen.append(sandbox.busy)) for _ in range(3)]
    await asyncio.gather(*jobs)
    assert set(seen) == {1}


async def test_a_worn_child_is_replaced_without_a_pause() -> None:
    box = Sandbox(children=1, limits=LIMITS, params=PARAMS, jobs_per_child_max=3)
    await box.start()
    (first,) = box.child_pids
    for _ in range(3):
        await box.transform(SMALL, on_variant=ignore)
    await eventually(lambda: len(box.child_pids) == 2)  # its successor is started while it still serves
    await box.transform(SMALL, on_variant=ignore)
    await eventually(lambda: len(box.child_pids) == 1 and first not in box.child_pids)
    await box.transform(SMALL, on_variant=ignore)
    await box.close()
    assert not box.child_pids


async def test_a_child_grown_large_is_replaced() -> None:
    box = Sandbox(children=1, limits=LIMITS, params=PARAMS, child_rss_bytes_max=1)
    await box.start()
    (first,) = box.child_pids
    await box.transform(SMALL, on_variant=ignore)
    await eventually(lambda: len(box.child_pids) == 2)
    await box.transform(SMALL, on_variant=ignore)
    await eventually(lambda: first not in box.child_pids)
    await box.close()
    assert not box.child_pids


async def test_a_child_keeps_little_of_the_memory_that_a_large_image_took() -> None:
    box = Sandbox(children=1, limits=LIMITS, params=PARAMS)
    await box.start()
    (child,) = map(psutil.Process, box.child_pids)
    facts = await box.transform(large_flat_avif(4_000, 4_000), on_variant=ignore)
    assert facts.rss_bytes_peak > 2 * KEPT_RSS_BYTES_MAX
    await eventually(lambda: child.memory_info().rss < KEPT_RSS_BYTES_MAX)
    await box.close()


async def test_a_closed_sandbox_lets_nobody_wait() -> None:
    box = Sandbox(children=1, limits=LIMITS, params=PARAMS)
    await box.start()
    waiting = [asyncio.ensure_future(box.transform(PHOTO, on_variant=ignore)) for _ in range(5)]
    await eventually(lambda: box.busy == 1)
    await box.close()
    await box.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, ChildDied) for result in results)
    with pytest.raises(ChildDied):
        await box.transform(PHOTO, on_variant=ignore)


async def test_a_sandbox_whose_children_cannot_start_says_so_and_leaves_nothing() -> None:
    box = Sandbox(children=2, limits=LIMITS, params=PARAMS, nice=2**40)
    with pytest.raises(ChildDied, match="OverflowError"):
        await box.start()
    assert not box.child_pids


async def test_a_child_is_confined(sandbox: Sandbox) -> None:
    for pid in sandbox.child_pids:
        assert psutil.Process(pid).environ() == CHILD_ENVIRONMENT
        assert resource.prlimit(pid, resource.RLIMIT_AS)[1] == LIMITS.memory_bytes_max
        assert resource.prlimit(pid, resource.RLIMIT_FSIZE) == (0, 0)
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
        assert psutil.Process(pid).nice() == min(19, psutil.Process().nice() + 5)
        assert psutil.Process(pid).num_fds() <= 8
        assert os.getsid(pid) == pid


async def test_a_child_holds_no_capability_whoever_started_it(sandbox: Sandbox) -> None:
    for pid in sandbox.child_pids:
        status = status_of(pid)
        held = {line.split(":")[0]: int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")}
        assert (held["CapEff"], held["CapPrm"], held["CapAmb"]) == (0, 0, 0)
        assert "NoNewPrivs:\t1" in status


async def test_a_child_knows_no_other_loaders_and_no_files(tmp_path: Path) -> None:
    # In a process of its own: what is blocked stays blocked. The sniffing before the loaders is not in the way.
    (tmp_path / "good.png").write_bytes(SMALL)
    (tmp_path / "good.jpeg").write_bytes(PHOTO)
    script = f"""
import pyvips
from pathlib import Path
from tests.hostile_images import unsupported
from worker.child import confine_libvips
def refused(call, *arguments):
    try:
        call(*arguments)
    except pyvips.Error:
        return True
    return False
good = Path({str(tmp_path)!r})
svg = unsupported()["svg"]
assert not refused(pyvips.Image.new_from_buffer, svg, "")
confine_libvips()
assert all(refused(pyvips.Image.new_from_buffer, data, "") for data in unsupported().values())
assert refused(pyvips.Image.new_from_file, str(good / "good.png"))
assert refused(pyvips.Image.csvload, str(good / "good.png"))
image = pyvips.Image.new_from_buffer((good / "good.jpeg").read_bytes(), "")
assert image.get("vips-loader") == "jpegload_buffer"
assert refused(image.write_to_file, str(good / "written.jpeg"))
assert refused(image.pngsave_buffer)
assert image.jpegsave_buffer() and image.webpsave_buffer()
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=REPOSITORY)
    assert await process.wait() == 0
    assert not (tmp_path / "written.jpeg").exists()


async def test_a_signal_to_the_group_leaves_the_image_in_hand(sandbox: Sandbox) -> None:
    def interrupt(_: Variant) -> None:
        for pid in sandbox.child_pids:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)

    assert (await sandbox.transform(PHOTO, on_variant=interrupt)).width_px == 800


async def test_the_version_of_libvips_comes_from_the_child_and_the_parent_never_loads_it(sandbox: Sandbox) -> None:
    assert sandbox.libvips_version.split(".")[0].isdigit()
    probe = "import sys, worker.sandbox; sys.exit('pyvips' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", probe, cwd=REPOSITORY)
    assert await process.wait() == 0


@pytest.mark.parametrize("frozen", [False, True], ids=["idle", "frozen"])
async def test_children_end_with_a_killed_parent(*, frozen: bool) -> None:
    script = (
        "import asyncio, signal; from contracts.images import *; from worker.sandbox import Sandbox\n"
        "async def main():\n"
        "    box = Sandbox(children=2, limits=ImageLimits(), params=TransformParams())\n"
        "    await box.start(); print(*box.child_pids, flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in (await parent.stdout.readline()).split()]
    assert len(pids) == 2
    assert all(_runs(pid) for pid in pids)
    if frozen:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    parent.kill()
    await parent.wait()
    try:
        await eventually(lambda: not any(_runs(pid) for pid in pids))
    finally:
        for pid in filter(_runs, pids):
            os.kill(pid, signal.SIGKILL)


def test_it_runs_on_uvloop_too() -> None:
    async def once() -> list[Variant]:
        box = Sandbox(children=1, limits=LIMITS, params=PARAMS)
        await box.start()
        got: list[Variant] = []
        await box.transform(PHOTO, on_variant=got.append)
        await box.close()
        return got

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert len(runner.run(once())) == 3


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
