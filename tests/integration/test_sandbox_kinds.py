"""Every kind of hostile image through the real sandbox: the right outcome, soon, in bounded memory, nobody harmed."""

from collections.abc import AsyncIterator

import psutil
import pytest

from contracts.images import ImageLimits, TransformParams, VariantName
from tests.hostile_kinds import SCRIPT, SERVED, Kind, hostile_kinds
from tests.image_makers import decode, encode, scene
from worker.sandbox import Sandbox
from worker.variants import ImageRejected, Variant

KINDS = hostile_kinds()
LIMITS, PARAMS = ImageLimits(), TransformParams()
SMALL = encode(scene(60, 40), "PNG")
CPU_S_MAX, RSS_BYTES_MAX = 10.0, 400_000_000


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    box = Sandbox(children=1, limits=LIMITS, params=PARAMS, jobs_per_child_max=10_000)
    await box.start()
    yield box
    await box.close()
    assert not box.child_pids


async def outcome_of(sandbox: Sandbox, source: bytes) -> tuple[str, list[Variant]]:
    variants: list[Variant] = []
    try:
        facts = await sandbox.transform(source, on_variant=variants.append)
    except ImageRejected as refused:
        return refused.code.value, []
    assert facts.rss_bytes_peak < RSS_BYTES_MAX
    return SERVED, variants


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_a_hostile_image_ends_as_it_must_and_harms_nobody(sandbox: Sandbox, kind: Kind, seed: int) -> None:
    (pid,) = sandbox.child_pids
    before_s = sum(psutil.Process(pid).cpu_times()[:2])
    outcome, variants = await outcome_of(sandbox, kind.make(seed))
    assert outcome in kind.outcomes
    assert sandbox.child_pids == (pid,), "the child was lost"
    assert sum(psutil.Process(pid).cpu_times()[:2]) - before_s < CPU_S_MAX
    if outcome == SERVED:
        assert [variant.name for variant in variants] == list(VariantName)
        for variant in variants:
            assert max(decode(variant.data).size) <= PARAMS.master_side_px_max
            assert SCRIPT[:12] not in variant.data
    assert (await outcome_of(sandbox, SMALL))[0] == SERVED


def test_no_two_kinds_have_one_name_and_each_seed_gives_the_same_bytes_again() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.make(1) == kind.make(1), kind.name
