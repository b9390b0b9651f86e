"""Stops under load, stops and sweeps while another server is away: nobody's job or place pays for it."""

import asyncio
import contextlib
import itertools
import uuid

import httpx

from app.core.jobstore import AdmitOutcome, Bounds, JobStore, Reservation
from app.core.postgres import PoolSettings, open_database
from stack.roles import Role
from stack.servers import Servers
from tests.faults.prompt import assert_no_attempt_spent
from tests.line import Line, photo, until

SLOW_PHOTO = {"width": 6000, "height": 5000}  #: seconds of work
ROLES: tuple[Role, ...] = ("worker", "relay", "janitor", "api")
GRACE_S = 4.0
#: Beyond the grace: what was interrupted is settled, connections are closed, and the machine may be slow.
CLOSING_S = 10.0
UPLOADS_MAX = 400


async def test_a_worker_stopped_while_the_broker_is_away_hands_its_job_back_at_no_cost(
    line: Line, servers: Servers
) -> None:
    assert servers.rabbit is not None
    await line.start("api", "relay", "janitor")
    (worker,) = await line.start("worker", SPILLWAY_WORKER_STOP_GRACE_S="0.1", SPILLWAY_WORKER_CONCURRENCY="1")
    response = await line.upload(photo(1, **SLOW_PHOTO))
    assert response.status_code == httpx.codes.ACCEPTED
    (job_id,) = line.sources
    await line.wait_state(job_id, "processing")
    await asyncio.to_thread(servers.rabbit.kill)

    async def without_session() -> bool:
        return await line.raw.fetchval("SELECT broker_ok FROM spillway.processes WHERE role = 'worker'") is False

    await until(without_session, what="the worker knows that the broker is away")
    assert (await line.row(job_id))["state"] == "processing"
    assert await asyncio.to_thread(worker.stop, 10.0) == 0
    row = await line.row(job_id)
    assert row["state"] in ("queued", "ready")
    assert (row["attempts_spent"], row["deaths"]) == (0, 0)


async def test_places_of_dead_uploads_come_back_while_the_store_hangs(line: Line, servers: Servers) -> None:
    """A janitor whose sweeps wait for the store still hears the database, and judges leases."""
    assert servers.s3 is not None
    await line.start("janitor", SPILLWAY_S3_TIMEOUT_S="2")
    database = await open_database(
        PoolSettings(
            url=line.env["SPILLWAY_DATABASE_URL"],
            application_name="test",
            connections_max=2,
            acquire_timeout_s=5.0,
            statement_timeout_s=5.0,
        )
    )
    jobs = JobStore(database)
    servers.s3.freeze()
    try:
        for _ in range(2):  # the first one's bytes keep every sweep waiting from then on
            reservation = Reservation(
                job_id=uuid.uuid4(), image_id=uuid.uuid4(), owner="ann", upload_token=uuid.uuid4(), held_bytes=1000
            )
            bounds = Bounds(jobs_max=None, staging_bytes_max=None)
            outcome = await jobs.admit(reservation, bounds=bounds, lease_s=0.1, deadline_s=60.0)
            assert outcome is AdmitOutcome.ADMITTED

            async def given_back() -> bool:
                return bool(await line.raw.fetchval("SELECT jobs_held = 0 FROM spillway.gate"))

            await until(given_back, timeout_s=20.0, what="the place of a dead upload")
    finally:
        servers.s3.thaw()
        await database.close()


async def test_sigterm_under_load_fails_no_job_and_each_role_is_gone_within_its_grace(line: Line) -> None:
    graces = {"SPILLWAY_WORKER_STOP_GRACE_S": str(GRACE_S), "SPILLWAY_STOP_GRACE_S": str(GRACE_S)}
    stopped = [await line.start_named(role, name=f"{role}-1", **graces) for role in ROLES]
    await line.start(*ROLES, **graces)
    urls = itertools.cycle((line.base_url, stopped[-1].url))
    enough, answers = asyncio.Event(), set()

    async def load() -> None:
        for number, url in zip(range(UPLOADS_MAX), urls, strict=False):
            if enough.is_set():
                return
            with contextlib.suppress(httpx.TransportError):  # a process that is gone takes no connection
                answers.add(await upload_to(line, url, number))

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(load())
        await until(lambda: some_ready(line), what="jobs are in work")
        for process in stopped:
            assert await asyncio.to_thread(process.stop, GRACE_S + CLOSING_S) == 0, process.name
        enough.set()
    assert "accepted" in answers
    assert answers <= {"accepted", "shutting_down", "backlog_full"}
    await line.wait_ready([*line.sources])
    await assert_no_attempt_spent(line)
    await line.assert_nothing_left_behind()


async def upload_to(line: Line, url: str, seed: int) -> str:
    answer = await line.http.post(
        f"{url}/api/v1/images",
        content=photo(seed),
        headers={"Authorization": f"Bearer {line.token}", "Content-Type": "image/jpeg"},
    )
    if answer.status_code == httpx.codes.ACCEPTED:
        line.sources[uuid.UUID(answer.json()["job_id"])] = b""
        return "accepted"
    return str(answer.json()["code"])


async def some_ready(line: Line) -> bool:
    return bool(await line.raw.fetchval("SELECT count(*) > 3 FROM spillway.jobs WHERE state = 'ready'"))
