from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.checks import Verdict, check_cell
from analysis.load import Cell, load_cell
from contracts.cells import CellKind
from contracts.runs import JOBS, MACHINE, ColumnsDifferError, Metric
from tests.run_makers import Server, spec, write_cell


@pytest.fixture
def steady(tmp_path: Path) -> Cell:
    record = write_cell(tmp_path, spec(CellKind.STEADY), Server())
    return load_cell(tmp_path / "cells" / record.cell_id)


def verdict(cell: Cell, name: str) -> Verdict:
    return next(check.verdict for check in check_cell(cell) if check.name == name)


def test_a_sound_cell_passes_every_check(steady: Cell) -> None:
    assert {check.verdict for check in check_cell(steady)} == {Verdict.PASS}


def drop_a_request(cell: Cell) -> Cell:
    return replace(cell, requests=cell.requests.iloc[1:])


def drop_a_job(cell: Cell) -> Cell:
    return replace(cell, jobs=cell.jobs.iloc[1:])


def leave_a_job_unfinished(cell: Cell) -> Cell:
    return replace(cell, jobs=cell.jobs.assign(state=["queued", *cell.jobs["state"].iloc[1:]]))


def let_a_job_fail(cell: Cell) -> Cell:
    return replace(cell, jobs=cell.jobs.assign(state=["failed", *cell.jobs["state"].iloc[1:]]))


def make_the_generator_late(cell: Cell) -> Cell:
    return replace(cell, requests=cell.requests.assign(started_s=cell.requests["due_s"] + 0.05))


def time_out_once(cell: Cell) -> Cell:
    first = cell.requests.index[0]
    return replace(
        cell,
        requests=cell.requests.assign(outcome=cell.requests["outcome"].where(cell.requests.index != first, "timeout")),
    )


def refuse_once(cell: Cell) -> Cell:
    first = cell.requests.index[0]
    return replace(
        cell,
        requests=cell.requests.assign(outcome=cell.requests["outcome"].where(cell.requests.index != first, "refused")),
    )


def finish_before_claim(cell: Cell) -> Cell:
    return replace(cell, jobs=cell.jobs.assign(finished_at=cell.jobs["first_claimed_at"] - pd.Timedelta("1s")))


def busy_generator(cell: Cell) -> Cell:
    facts = cell.record.generator
    assert facts is not None
    return replace(cell, record=replace(cell.record, generator=replace(facts, cpu_s=facts.elapsed_s * 0.9)))


def inflate_the_books(cell: Cell) -> Cell:
    books = cell.samples["metric"] == Metric.PLACES_HELD_JOBS
    return replace(
        cell, samples=cell.samples.assign(value=cell.samples["value"].where(~books, cell.samples["value"] * 1.3))
    )


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (drop_a_request, "planned = sent"),
        (drop_a_job, "accepted = kept"),
        (leave_a_job_unfinished, "accepted = kept"),
        (let_a_job_fail, "accepted = kept"),
        (make_the_generator_late, "generator lag"),
        (time_out_once, "answers are 202 or a refusal"),
        (refuse_once, "nothing refused when calm"),
        (finish_before_claim, "stamps in order"),
        (busy_generator, "generator CPU"),
        (inflate_the_books, "Little's law"),
    ],
)
def test_each_kind_of_damage_fails_its_check(steady: Cell, damage: Callable[[Cell], Cell], name: str) -> None:
    assert verdict(damage(steady), name) is Verdict.FAIL


def test_work_of_others_on_the_machine_is_a_warning(steady: Cell) -> None:
    machine = steady.samples["role"] == MACHINE
    busy = steady.samples["value"].where(~machine, steady.samples["value"] * 1.3)
    assert verdict(replace(steady, samples=steady.samples.assign(value=busy)), "host quiet") is Verdict.WARN


def test_a_second_claim_is_a_warning(steady: Cell) -> None:
    again = replace(steady, jobs=steady.jobs.assign(claim_token=2))
    assert verdict(again, "each job once") is Verdict.WARN


def test_the_same_job_twice_fails(steady: Cell) -> None:
    twice = replace(steady, jobs=pd.concat([steady.jobs, steady.jobs.iloc[:1]]))
    assert verdict(twice, "each job once") is Verdict.FAIL


def test_a_pulse_that_overloads_nothing_fails(tmp_path: Path) -> None:
    """The negative control: if the offered load stays under capacity, no policy was tested."""
    record = write_cell(tmp_path, spec(CellKind.PULSE), Server())
    cell = load_cell(tmp_path / "cells" / record.cell_id)
    assert verdict(cell, "really overloaded") is Verdict.PASS
    strong = replace(cell, record=replace(cell.record, capacity_per_s=cell.record.capacity_per_s * 2))
    assert verdict(strong, "really overloaded") is Verdict.FAIL


def test_a_file_with_an_unknown_column_is_refused(tmp_path: Path) -> None:
    record = write_cell(tmp_path, spec(CellKind.STEADY), Server())
    file = tmp_path / "cells" / record.cell_id / JOBS.file
    pd.read_parquet(file).rename(columns={"deaths": "losses"}).to_parquet(file)
    with pytest.raises(ColumnsDifferError, match="deaths"):
        load_cell(file.parent)
