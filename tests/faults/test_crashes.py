"""Each role is killed at the worst moment; every accepted job still ends once, with the results of a single run."""

import asyncio

import httpx
import pytest

from contracts.keys import staging_key
from tests.line import QUICK, Line, until


async def wait_dead(process: object) -> None:
    async def dead() -> bool:
        return not getattr(process, "alive")  # noqa: B009 - a plain attribute of RoleProcess

    await until(dead, what="the process has killed itself")


async def test_the_api_killed_right_after_its_answer_loses_nothing(line: Line) -> None:
    (api,) = await line.start("api")
    job_ids = await line.accepted(range(3))
    api.kill()
    await line.start("relay", "worker", "janitor")
    await line.wait_ready(job_ids)
    await line.assert_equal_to_a_single_run(job_ids)
    await line.assert_nothing_left_behind()


async def test_the_api_killed_between_accept_and_answer_still_does_the_work(line: Line) -> None:
    await line.start("relay", "worker", "janitor")
    (api,) = await line.start("api", crash_point="api.accepted")
    with pytest.raises(httpx.TransportError):
        await line.accepted([1])
    (row,) = await line.rows()
    await line.wait_state(row["id"], "ready")
    api.kill()


@pytest.mark.parametrize("point", ["api.reserved", "api.staged"])
async def test_the_api_killed_during_an_upload_leaves_nothing_behind(line: Line, point: str) -> None:
    await line.start("janitor")
    (api,) = await line.start("api", crash_point=point)
    with pytest.raises(httpx.TransportError):
        await line.accepted([1])
    api.kill()
    (row,) = await line.rows()

    async def gone() -> bool:
        return not await line.rows() and not await line.objects.exists(staging_key(row["id"]))

    await until(gone, what="the reservation, its row and its object are gone")
    await line.assert_nothing_left_behind()


@pytest.mark.parametrize("point", ["relay.leased", "relay.published"])
async def test_a_relay_killed_around_publishing_delivers_every_job_once_in_effect(line: Line, point: str) -> None:
    await line.start("api", "worker", "janitor")
    (relay,) = await line.start("relay", crash_point=point)
    job_ids = await line.accepted(range(3))
    await wait_dead(relay)
    await line.start("relay")
    await line.wait_ready(job_ids)
    await line.assert_equal_to_a_single_run(job_ids)
    assert {(await line.row(job_id))["claim_token"] for job_id in job_ids} == {1}


@pytest.mark.parametrize(("point", "claims"), [("worker.claimed", 2), ("worker.stored", 2), ("worker.settled", 1)])
async def test_a_worker_killed_in_mid_job_leaves_it_to_the_next_one(line: Line, point: str, claims: int) -> None:
    await line.start("api", "relay", "janitor")
    (worker,) = await line.start("worker", crash_point=point, SPILLWAY_WORKER_CONCURRENCY="1")
    job_ids = await line.accepted(range(3))
    await wait_dead(worker)
    await line.start("worker")
    await line.wait_ready(job_ids)
    await line.assert_equal_to_a_single_run(job_ids)
    await line.assert_nothing_left_behind()
    first = await line.row(job_ids[0])
    assert (first["claim_token"], first["deaths"], first["attempts_spent"]) == (claims, claims - 1, 0)


async def test_a_job_that_kills_its_worker_three_times_is_final_and_its_neighbours_are_not(line: Line) -> None:
    await line.start("api", "relay", "janitor")
    (poison,) = await line.accepted([1])
    for _ in range(3):
        # Not waited for: the job is there, so the worker may be dead before it could answer.
        await wait_dead(line.roles.spawn("worker", env={**QUICK, "SPILLWAY_CRASH_POINT": "worker.claimed"}))
    row = await line.wait_state(poison, "failed")
    assert (row["error_code"], row["deaths"]) == ("worker_lost", 3)
    await line.start("worker")
    await line.wait_ready(await line.accepted([2, 3]))


async def test_uploads_are_accepted_while_broker_relay_and_workers_are_away(line: Line) -> None:
    (api,) = await line.start("api")
    job_ids = await line.accepted(range(3))

    async def degraded() -> bool:
        return await asyncio.to_thread(api.readiness) == "degraded"

    await until(degraded, what="readiness says degraded")
    await line.start("relay", "worker", "janitor")
    await line.wait_ready(job_ids)

    async def ready() -> bool:
        return await asyncio.to_thread(api.readiness) == "ready"

    await until(ready, what="readiness says ready")
