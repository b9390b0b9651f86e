from collections import Counter
from dataclasses import replace

import pytest

from contracts.cells import CellKind, CellRecord, CellSpec
from loadtest.sweep import FULL, GRIDS, QUICK, SEED_DEFAULT, estimate_s, plan_cells
from tests.run_makers import spec

QUICK_S_MAX = 10.5 * 60


def test_the_quick_plan_has_every_cell_once_and_fits_its_budget() -> None:
    cells = plan_cells(QUICK, seed=SEED_DEFAULT)
    assert len(set(cells)) == len(cells)
    kinds = Counter(cell.kind for cell in cells)
    assert kinds == {
        CellKind.DRAIN: 6,
        CellKind.STEADY: 6,
        CellKind.PULSE: 2,
        CellKind.BARE: 1,
        CellKind.DIRECT: 1,
    }
    assert sum(map(estimate_s, cells)) < QUICK_S_MAX


def test_the_order_is_shuffled_by_the_seed_and_repeats() -> None:
    assert plan_cells(QUICK, seed=1) == plan_cells(QUICK, seed=1)
    assert [c.title for c in plan_cells(QUICK, seed=1)] != [c.title for c in plan_cells(QUICK, seed=2)]


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_every_live_cell_comes_after_the_drain_it_needs(name: str) -> None:
    cells = plan_cells(GRIDS[name], seed=SEED_DEFAULT)
    seen: set[tuple[str, str, int]] = set()
    for cell in cells:
        key = (cell.size, cell.setting, cell.repeat)
        if cell.kind is CellKind.DRAIN:
            seen.add(key)
        if cell.kind in {CellKind.STEADY, CellKind.PULSE}:
            assert key in seen


def test_the_loops_stand_right_beside_the_drain_they_are_compared_with() -> None:
    cells = plan_cells(QUICK, seed=SEED_DEFAULT)
    place = next(index for index, cell in enumerate(cells) if cell.kind is CellKind.BARE)
    drain, direct = cells[place + 1], cells[place + 2]
    assert drain.kind is CellKind.DRAIN
    assert direct.kind is CellKind.DIRECT
    assert (drain.size, drain.setting, drain.jobs_count) == ("2MP", "c2/p8", 200)
    assert cells[place].jobs_count == direct.jobs_count == drain.jobs_count


def test_both_policies_of_a_pulse_share_seed_and_phases() -> None:
    pulses = [cell for cell in plan_cells(QUICK, seed=3) if cell.kind is CellKind.PULSE]
    assert {cell.policy for cell in pulses} == {"none", "count"}
    assert len({(cell.seed, cell.phases, cell.setting) for cell in pulses}) == 1


def test_repeats_have_seeds_of_their_own() -> None:
    cells = [cell for cell in plan_cells(FULL, seed=3) if cell.kind is CellKind.DRAIN and cell.setting == "c2/p2"]
    assert len({cell.seed for cell in cells}) == FULL.repeats_count


def test_a_cell_id_changes_with_spec_code_and_corpus() -> None:
    cell: CellSpec = spec(CellKind.STEADY)
    first = cell.cell_id(code_version="a", corpus_sha256="b")
    assert first == cell.cell_id(code_version="a", corpus_sha256="b")
    others = {
        replace(cell, prefetch=8).cell_id(code_version="a", corpus_sha256="b"),
        cell.cell_id(code_version="c", corpus_sha256="b"),
        cell.cell_id(code_version="a", corpus_sha256="c"),
    }
    assert first not in others
    assert len(others) == 3


def test_a_record_survives_its_file() -> None:
    record = CellRecord(
        cell_id="x",
        spec=plan_cells(QUICK, seed=1)[-1],
        order=3,
        capacity_per_s=9.5,
        jobs_bound=95,
        rates_per_s={"base": 4.75},
        schedule_sha256="s",
        corpus_sha256="c",
        zero_monotonic_s=1.0,
        zero_wall_s=2.0,
        database_minus_host_s=0.0,
        work_began_s=0.0,
        ended_s=9.0,
        drained=True,
        load_average_before=0.0,
        steal_share=0.0,
        generator=None,
    )
    assert CellRecord.from_json(record.to_json()) == record
