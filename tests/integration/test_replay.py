"""Failed and replayed, for real: whole roles on real servers, and results equal to an undisturbed run's."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from uuid import UUID

import pytest

from stack.roles import Roles
from tests.line import Line, open_line

PROJECT = Path(__file__).parents[2]
#: Less than the photos have: a worker with this limit fails what a worker without it makes.
STRICT = {"SPILLWAY_IMAGE_PIXELS_MAX": "1000"}
REPLAY_S_MAX = 60.0


@pytest.fixture
async def line(roles: Roles, fresh_env: dict[str, str]) -> AsyncIterator[Line]:
    async with open_line(roles, fresh_env) as opened:
        yield opened


def replay(line: Line, environment: Mapping[str, str], *args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "stack.cli", "jobs", "replay", *args, "--json"],
        env={**environment, **line.env},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=REPLAY_S_MAX,
        check=False,
    )


async def failed_jobs(line: Line, count: int) -> list[UUID]:
    """Upload so many photos, each of which a strict worker fails; the worker is gone afterwards."""
    await line.start("api", "relay", "janitor")
    (strict,) = await line.start("worker", **STRICT)
    job_ids = await line.accepted(range(count))
    for job_id in job_ids:
        row = await line.wait_state(job_id, "failed")
        assert row["error_code"] == "too_many_pixels"
    strict.stop()
    return job_ids


async def test_failed_jobs_are_replayed_to_the_results_of_a_single_run(
    line: Line, environment: Mapping[str, str]
) -> None:
    job_ids = await failed_jobs(line, 3)
    done = await asyncio.to_thread(replay, line, environment, "--code", "too_many_pixels")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == {"queued": 3}
    await line.start("worker")
    await line.wait_ready(job_ids)
    await line.assert_equal_to_a_single_run(job_ids)
    await line.assert_nothing_left_behind()


async def test_a_replay_that_fails_again_can_be_replayed_again(line: Line, environment: Mapping[str, str]) -> None:
    (job_id,) = await failed_jobs(line, 1)
    first_end = (await line.row(job_id))["finished_at"]
    assert (await asyncio.to_thread(replay, line, environment, str(job_id))).returncode == 0
    (strict,) = await line.start("worker", **STRICT)
    assert (await line.wait_state(job_id, "failed"))["finished_at"] > first_end
    strict.stop()
    assert (await asyncio.to_thread(replay, line, environment, str(job_id))).returncode == 0
    await line.start("worker")
    await line.wait_ready([job_id])
    noted = await line.raw.fetch("SELECT error_code_before FROM spillway.audit WHERE job_id = $1", job_id)
    assert [row["error_code_before"] for row in noted] == ["too_many_pixels"] * 2
    await line.assert_nothing_left_behind()
