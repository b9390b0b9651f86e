"""Stops and sweeps while another server is away: nobody's job or place pays for it."""

import asyncio
import uuid

import httpx

from app.core.jobstore import AdmitOutcome, Bounds, JobStore, Reservation
from app.core.postgres import PoolSettings, open_database
from stack.servers import Servers
from tests.line import Line, photo, until

SLOW_PHOTO = {"width": 6000, "height": 5000}  #: seconds of work


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
