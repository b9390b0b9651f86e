"""Real and broken images from public test suites, where a checkout has them beside it, through the real sandbox."""

import asyncio
import csv
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageOps, ImageStat

from app.core.sniff import check_header
from contracts.errors import FailureCode
from contracts.images import ImageLimits, TransformParams, VariantName
from contracts.limits import SNIFF_BYTES
from tests.image_makers import decode
from worker.sandbox import Sandbox
from worker.variants import ImageRejected, Transformed, Variant

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
pytestmark = pytest.mark.skipif(
    not (CASES / "images.csv").exists(), reason="no folder ../shared/cases beside this repository"
)

LIMITS, PARAMS = ImageLimits(), TransformParams()
CPU_S_MAX, RSS_BYTES_MAX = 10.0, 400_000_000
NAMES_HERE = {"corrupt_image": FailureCode.INVALID_IMAGE.value}

#: Where this project answers otherwise than the list, and why that is right.
ALLOWED = {
    "sharp/test__fixtures__65536-uint32-limit.png": (
        FailureCode.TOO_MANY_PIXELS.value,
        "4.3 gigapixels pass both bounds; the pixels are named, since they are what it would cost",
    ),
}


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    box = Sandbox(children=2, limits=LIMITS, params=PARAMS)
    await box.start()
    yield box
    await box.close()
    assert not box.child_pids


def listed() -> dict[str, str]:
    """Return the expected outcome of each file, in this project's words."""
    with (CASES / "images.csv").open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if (CASES / "images" / row["file"]).is_file()]
    return {row["file"]: NAMES_HERE.get(row["expect"], row["expect"]) for row in rows}


def faults_of(variants: list[Variant], facts: Transformed) -> list[str]:
    """Return what is wrong with the results of one image."""
    images = {variant.name: decode(variant.data) for variant in variants}
    if list(images) != [VariantName.THUMBNAIL, VariantName.CROP, VariantName.OPTIMIZED]:
        return [f"variants {list(images)}"]
    thumbnail, crop, optimized = images.values()
    long_px = max(facts.width_px, facts.height_px)
    checks = {
        "formats": [image.format for image in images.values()] == ["JPEG", "JPEG", "WEBP"],
        "crop": crop.size == (128, 128),
        "thumbnail": max(thumbnail.size) == min(256, long_px),
        "optimized": max(optimized.size) == min(2560, long_px),
        "upright": (facts.width_px >= facts.height_px) == (optimized.width >= optimized.height),
        "metadata": not any({"exif", "icc_profile", "xmp"} & set(image.info) for image in images.values()),
        "time": facts.cpu_s < CPU_S_MAX,
        "memory": facts.rss_bytes_peak < RSS_BYTES_MAX,
    }
    return [name for name, holds in checks.items() if not holds]


async def outcome_of(sandbox: Sandbox, source: bytes) -> str:
    variants: list[Variant] = []
    try:
        facts = await sandbox.transform(source, on_variant=variants.append)
    except ImageRejected as refused:
        return refused.code.value
    return ", ".join(faults_of(variants, facts)) or "ok"


async def test_every_handed_image_ends_as_listed_or_as_explained(sandbox: Sandbox) -> None:
    expected = listed()
    assert len(expected) > 500
    assert set(expected) >= set(ALLOWED)
    differences: dict[str, tuple[str, str]] = {}
    files = iter(expected)

    async def work() -> None:
        for name in files:
            outcome = await outcome_of(sandbox, (CASES / "images" / name).read_bytes())
            if outcome != expected[name]:
                differences[name] = (expected[name], outcome)

    await asyncio.gather(work(), work())
    assert {name: outcome for name, (_, outcome) in differences.items()} == {
        name: outcome for name, (outcome, _) in ALLOWED.items()
    }


def test_the_head_alone_refuses_no_image_that_is_served() -> None:
    for name, outcome in listed().items():
        with (CASES / "images" / name).open("rb") as file:
            header = check_header(file.read(SNIFF_BYTES), LIMITS)
        if isinstance(header, FailureCode):
            assert header.value in {outcome, ALLOWED.get(name, ("",))[0]}, name
        else:
            assert outcome in {"ok", FailureCode.INVALID_IMAGE.value}, name


@pytest.mark.parametrize("scene_name", ["Landscape", "Portrait"])
async def test_all_orientations_of_a_photo_give_the_same_picture(sandbox: Sandbox, scene_name: str) -> None:
    folder = CASES / "images" / "exif-orientation-examples"
    sources = [file.read_bytes() for file in sorted(folder.glob(f"{scene_name}_[1-8].jpg"))]
    assert len(sources) >= 4
    first: dict[VariantName, Image.Image] = {}
    for source in sources:
        variants: list[Variant] = []
        await sandbox.transform(source, on_variant=variants.append)
        images = {variant.name: decode(variant.data) for variant in variants}
        first = first or images
        # The files were stored anew for each orientation, so that small pictures alone compare among them.
        for name in (VariantName.THUMBNAIL, VariantName.CROP):
            assert difference(images[name], first[name]) < 3.0
        upright = ImageOps.exif_transpose(decode(source))
        assert upright is not None
        assert difference(images[VariantName.OPTIMIZED], upright) < 4.0


def difference(one: Image.Image, other: Image.Image) -> float:
    """Return the mean difference of the worst channel, in grey levels."""
    assert one.size == other.size
    return max(ImageStat.Stat(ImageChops.difference(one.convert("RGB"), other.convert("RGB"))).mean)
