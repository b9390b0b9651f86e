"""Passing faults cost an attempt each and end with the last; waits stand in the outbox, and none holds back another."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psutil

from app.core.jobstore import JobStore
from app.core.postgres import PoolSettings, open_database
from contracts.images import TransformParams
from stack.roles import RoleProcess
from tests.line import Line, photo, until

ATTEMPTS_MAX = 5
LONG_WAIT_S, SHORT_WAIT_S = 3600.0, 0.2
SLOW_PHOTO = {"width": 2600, "height": 2000}  #: about a second of work


@asynccontextmanager
async def jobs_of(line: Line) -> AsyncIterator[JobStore]:
    """Lend the statements of a worker."""
    pool = PoolSettings(
        url=line.env["SPILLWAY_DATABASE_URL"],
        application_name="test",
        connections_max=2,
        acquire_timeout_s=5.0,
        statement_timeout_s=5.0,
    )
    database = await open_database(pool)
    yield JobStore(database)
    await database.close()


async def fails_once(jobs: JobStore, job_id: uuid.UUID, *, wait_s: float) -> None:
    """Claim a job as a worker would and send it back for a passing reason."""
    claim = await jobs.claim(job_id, worker_id=uuid.uuid4(), lease_s=60.0, params=TransformParams())
    assert claim is not None
    await jobs.retry(
        job_id, claim_token=claim.claim_token, delay_s=wait_s, attempt_spent=True, attempts_max=ATTEMPTS_MAX
    )


async def test_a_long_wait_never_holds_back_a_short_one_nor_new_work(line: Line) -> None:
    await line.start("api")
    long_one, short_one = await line.accepted([1, 2])
    async with jobs_of(line) as jobs:
        await fails_once(jobs, long_one, wait_s=LONG_WAIT_S)
        await fails_once(jobs, short_one, wait_s=SHORT_WAIT_S)
    await line.start("relay", "worker", "janitor")
    await line.wait_ready([short_one, *await line.accepted([3])])
    waiting = await line.row(long_one)
    assert (waiting["state"], waiting["attempts_spent"], waiting["claim_token"]) == ("queued", 1, 1)
    # It waits in the outbox and nowhere else: no message of it is in the broker, to be delivered too early.
    assert await due_in_s(line, long_one) > LONG_WAIT_S / 2


async def due_in_s(line: Line, job_id: uuid.UUID) -> float:
    return float(
        await line.raw.fetchval(
            """SELECT extract(epoch FROM available_at - clock_timestamp()) FROM spillway.outbox
            WHERE job_id = $1 AND lease_token IS NULL ORDER BY available_at DESC LIMIT 1""",
            job_id,
        )
    )


async def test_a_permanent_fault_ends_the_job_with_its_first_attempt(line: Line) -> None:
    await line.start("api", "relay", "worker", "janitor")
    whole = photo(1)
    response = await line.upload(whole[: len(whole) // 2])
    job_id = uuid.UUID(response.json()["job_id"])
    row = await line.wait_state(job_id, "failed")
    assert (row["error_code"], row["claim_token"], row["deaths"]) == ("invalid_image", 1, 0)
    await line.wait_ready(await line.accepted([2]))


async def test_an_attempt_whose_child_dies_is_spent_and_the_last_one_ends_the_job(line: Line) -> None:
    await line.start("api", "relay", "janitor")
    few = {"SPILLWAY_WORKER_CONCURRENCY": "1", "SPILLWAY_JOB_ATTEMPTS_MAX": "3", "SPILLWAY_RETRY_BASE_S": "0.1"}
    (worker,) = await line.start("worker", **few)
    response = await line.upload(photo(1, **SLOW_PHOTO))
    job_id = uuid.UUID(response.json()["job_id"])
    for attempt in range(1, 4):
        await line.wait_state(job_id, "processing", "failed")
        await until(killing(line, worker, job_id, spent=attempt), what=f"attempt {attempt} is spent")
    row = await line.wait_state(job_id, "failed")
    assert (row["error_code"], row["attempts_spent"], row["deaths"]) == ("retries_exhausted", 3, 0)
    assert worker.alive
    await line.wait_ready(await line.accepted([2]))


def killing(line: Line, worker: RoleProcess, job_id: uuid.UUID, *, spent: int) -> Callable[[], Awaitable[bool]]:
    """Return what kills the worker's children until a job has spent so many attempts."""

    async def kill_unless_spent() -> bool:
        if (await line.row(job_id))["attempts_spent"] >= spent:
            return True
        for child in psutil.Process(worker.pid).children():
            child.kill()
        return False

    return kill_unless_spent
