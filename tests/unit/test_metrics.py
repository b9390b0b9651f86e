import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.load import Cell, load_cell
from analysis.metrics import (
    backlog_slope,
    completion_rate,
    drain_metrics,
    in_system,
    percentile,
    queue_lag,
    steady_metrics,
)
from analysis.times import arrivals_with_jobs
from contracts.cells import CellKind
from tests.run_makers import Server, spec, write_cell


def cell_of(tmp_path: Path, kind: CellKind, server: Server) -> Cell:
    record = write_cell(tmp_path, spec(kind), server)
    return load_cell(tmp_path / "cells" / record.cell_id)


def test_the_rate_stands_on_the_last_nine_tenths_of_the_completions() -> None:
    """Ten slow first ones, then one every 0.1 s: the slow start must not show."""
    finished_s = np.concatenate((np.arange(10) * 5.0, 45.0 + 0.1 * np.arange(1, 91)))
    rate, count = completion_rate(finished_s)
    assert rate == pytest.approx(10.0)
    assert count == 90


def test_a_rate_of_too_few_completions_is_not_a_number() -> None:
    assert math.isnan(completion_rate(np.array([1.0]))[0])
    assert math.isnan(completion_rate(np.array([]))[0])


def test_the_capacity_of_a_simulated_drain_is_found(tmp_path: Path) -> None:
    metrics = drain_metrics(cell_of(tmp_path, CellKind.DRAIN, Server(slots=2, service_s=0.2)))
    assert metrics.jobs_per_s == pytest.approx(10.0, rel=0.03)
    assert metrics.megapixels_per_s == pytest.approx(metrics.jobs_per_s * 1.997568)


@pytest.mark.parametrize(("count", "share", "known"), [(199, 0.95, False), (200, 0.95, True), (999, 0.99, False)])
def test_a_percentile_needs_enough_samples(count: int, share: float, *, known: bool) -> None:
    assert math.isnan(percentile(pd.Series(range(count)), share)) is not known


def test_the_parts_of_a_time_to_ready_add_up(tmp_path: Path) -> None:
    """The database's clock is a quarter of a second ahead in the made-up run: the offset must cancel."""
    arrivals = arrivals_with_jobs(cell_of(tmp_path, CellKind.STEADY, Server()))
    parts = arrivals["accept_s"] + arrivals["wait_s"] + arrivals["service_s"]
    assert np.allclose(parts, arrivals["ttr_s"], atol=2e-6)
    assert arrivals["accept_s"].mean() == pytest.approx(0.02, abs=0.001)


def test_steady_numbers_of_a_simulated_queue(tmp_path: Path) -> None:
    server = Server(slots=2, service_s=0.2)
    metrics = steady_metrics(cell_of(tmp_path, CellKind.STEADY, server))
    assert metrics.offered_per_s == pytest.approx(8.0, rel=0.15)
    assert metrics.ready_per_s == pytest.approx(metrics.offered_per_s, rel=0.05)
    assert metrics.service_mean_s == pytest.approx(0.2, rel=0.03)
    assert metrics.ttr_p50_s < metrics.ttr_p95_s
    assert not metrics.unstable


def test_an_overloaded_cell_is_called_unstable(tmp_path: Path) -> None:
    """Arrivals at 0.8 of twice the real capacity: the backlog grows all the time."""
    honest = write_cell(tmp_path, spec(CellKind.STEADY), Server(slots=2, service_s=0.2))
    slow = write_cell(tmp_path / "slow", replace(spec(CellKind.STEADY), seed=8), Server(slots=1, service_s=0.2))
    cell = load_cell(tmp_path / "cells" / honest.cell_id)
    late = load_cell(tmp_path / "slow" / "cells" / slow.cell_id)
    assert not steady_metrics(cell).unstable
    at_s = np.arange(0, 60, 0.1)
    grows, unstable = backlog_slope(at_s, 2.0 * at_s)
    assert grows == pytest.approx(2.0)
    assert unstable
    assert not steady_metrics(late).unstable


def test_queue_lag_is_the_age_of_the_oldest_job_not_yet_started() -> None:
    jobs = pd.DataFrame({"accepted_s": [0.0, 1.0, 2.0], "claimed_s": [3.0, 3.5, np.nan]})
    assert queue_lag(jobs, np.array([0.5, 2.9, 3.2, 10.0])).tolist() == pytest.approx([0.5, 2.9, 2.2, 8.0])
    assert queue_lag(jobs.iloc[:2], np.array([4.0])).tolist() == [0.0]


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.001, 20)), min_size=1, max_size=60))
def test_jobs_in_system_counts_each_interval_once(spans: list[tuple[float, float]]) -> None:
    jobs = pd.DataFrame({"admitted_s": [b for b, _ in spans], "released_s": [b + d for b, d in spans]})
    at_s = np.linspace(0, 80, 40)
    expected = [sum(b <= t < b + d for b, d in spans) for t in at_s]
    assert in_system(jobs, at_s).tolist() == expected
