"""The bench's no-op jobs pass the whole line, and their worker serves no other database."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stack.cli import COMMANDS
from stack.noop import NoopCell, NoopFailedError, NoopRate, measure_noop
from stack.noop_view import row_of
from stack.noop_worker import NOOP_DATABASE, Work
from stack.servers import Servers

REPOSITORY = Path(__file__).resolve().parents[2]
CELLS = tuple(NoopCell(work=work, workers_count=2, concurrency=4, jobs_count=60) for work in Work)


def test_jobs_without_pixels_pass_the_whole_line_and_are_counted(
    servers: Servers, environment: Mapping[str, str]
) -> None:
    told: list[NoopRate] = []
    rates = measure_noop(servers, environment, cells=CELLS, on_rate=told.append)
    assert told == rates
    assert [rate.cell for rate in rates] == list(CELLS)
    for rate in rates:
        assert rate.jobs_per_s > 1
        assert {"worker", "relay", "janitor", "postgres", "rabbit", "s3"} == set(rate.cpu_ms)
        assert rate.cpu_ms["worker"] > 0
    nothing, store = rates
    assert store.cpu_ms["s3"] > 2 * nothing.cpu_ms["s3"], "the store has no part in the second kind"
    assert row_of(store)["work"] == "store"
    # Those jobs are there already: a count that is not what was planted is never a rate.
    with pytest.raises(NoopFailedError):
        measure_noop(servers, environment, cells=CELLS[:1])


def test_the_worker_without_pixels_serves_no_other_database(
    environment: Mapping[str, str], fresh_env: dict[str, str]
) -> None:
    assert NOOP_DATABASE not in fresh_env["SPILLWAY_DATABASE_URL"]
    process = subprocess.run(
        [sys.executable, "-m", "stack.noop_worker", "nothing"],
        env={**environment, **fresh_env},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 2
    assert "no pixels" in process.stderr


def test_no_command_and_no_setting_switches_pixels_off() -> None:
    roles = (REPOSITORY / "stack" / "cli_roles.py").read_text(encoding="utf-8")
    settings = (REPOSITORY / "app" / "core" / "settings.py").read_text(encoding="utf-8")
    launchers = [path for path in (REPOSITORY / "stack").glob("*.py") if "noop_worker" in path.read_text("utf-8")]
    assert "noop" not in roles + settings + "".join(COMMANDS)
    assert [path.name for path in launchers] == ["noop.py"]
