import math
from pathlib import Path

import numpy as np
import pytest

from analysis.load import Cell, load_cell
from analysis.pulse import PulseWindow, completions_floor, fluid_pulse, pulse_metrics
from contracts.cells import CellKind
from tests.run_makers import Server, spec, write_cell

WINDOW = PulseWindow(begin_s=10.0, end_s=30.0, load_end_s=95.0, base_per_s=6.0, peak_per_s=20.0)


def pulse_cell(tmp_path: Path, *, policy: str, server: Server) -> Cell:
    record = write_cell(tmp_path, spec(CellKind.PULSE, policy=policy), server)
    return load_cell(tmp_path / "cells" / record.cell_id)


def test_the_fluid_model_gives_the_hand_calculated_recovery() -> None:
    """(20 - 10) x 20 s = 200 jobs of backlog, less 1 s of work = 190, at 10 - 6 = 4 a second: 47.5 s; age trails."""
    fluid = fluid_pulse(WINDOW, capacity_per_s=10.0, bound_jobs=math.inf)
    assert fluid.backlog_jobs.max() == pytest.approx(200, rel=0.01)
    assert fluid.lag_s.max() == pytest.approx(20.0, rel=0.01)
    assert fluid.recovery_s(WINDOW, threshold_s=0.0) == pytest.approx(50.0, abs=0.5)


def test_a_bound_cuts_the_fluid_backlog_and_its_lag() -> None:
    fluid = fluid_pulse(WINDOW, capacity_per_s=10.0, bound_jobs=100.0)
    assert fluid.backlog_jobs.max() == pytest.approx(100, rel=0.01)
    assert fluid.lag_s.max() == pytest.approx(10.0, rel=0.02)
    assert fluid.recovery_s(WINDOW, threshold_s=0.0) == pytest.approx(25.0, abs=0.5)


def test_a_base_load_above_capacity_never_recovers() -> None:
    fluid = fluid_pulse(WINDOW, capacity_per_s=5.0, bound_jobs=math.inf)
    assert math.isinf(fluid.recovery_s(WINDOW, threshold_s=1.0))


def test_without_a_bound_the_simulated_recovery_is_near_the_fluid_prediction(tmp_path: Path) -> None:
    metrics = pulse_metrics(pulse_cell(tmp_path, policy="none", server=Server()))
    assert metrics.refused_count == 0
    assert metrics.recovery_s == pytest.approx(metrics.recovery_fluid_s, rel=0.15)
    assert metrics.lag_peak_s == pytest.approx(metrics.lag_peak_fluid_s, rel=0.15)


def test_with_a_bound_lag_and_recovery_shrink_and_the_bound_is_never_passed(tmp_path: Path) -> None:
    free = pulse_metrics(pulse_cell(tmp_path / "a", policy="none", server=Server()))
    bound = pulse_metrics(pulse_cell(tmp_path / "b", policy="count", server=Server(bound_jobs=100)))
    assert bound.in_system_peak_jobs <= 100
    assert bound.refused_count > 0
    assert bound.recovery_s < 0.7 * free.recovery_s
    assert bound.lag_peak_s < 0.7 * free.lag_peak_s
    assert bound.goodput_per_s > free.goodput_per_s
    assert bound.offered_count == free.offered_count


def test_a_system_that_does_not_come_back_is_reported_as_such(tmp_path: Path) -> None:
    """Capacity falls to the base rate: the recorded plan says 10 a second, the server does 6."""
    metrics = pulse_metrics(pulse_cell(tmp_path, policy="none", server=Server(slots=1, service_s=0.2, accept_s=9.0)))
    assert metrics.lag_peak_s > 1
    slow = fluid_pulse(WINDOW, capacity_per_s=6.0, bound_jobs=math.inf)
    assert math.isinf(slow.recovery_s(WINDOW, threshold_s=1.0))


def test_the_floor_of_completions_is_rarely_missed_by_chance() -> None:
    draws = np.random.Generator(np.random.PCG64(1)).poisson(30, size=20_000)
    assert (draws < completions_floor(30)).mean() < 0.01
    assert completions_floor(0.5) == 1.0
