"""A job of a version that no worker serves waits, is shown, and goes on as soon as such a worker is there."""

import uuid
from collections.abc import AsyncIterator

import aio_pika
import pytest

from app.core.jobstore import Claim
from app.core.processes import ProcessRegister, ProcessReport
from app.core.versions import Versions
from contracts.images import TransformParams
from contracts.messages import JobMessage, jobs_queue
from stack.roles import Roles
from tests.books import Books
from tests.line import Line, open_line, until

SEEN_S = 30.0
ROWS_MAX = 100


async def queued_of(books: Books, version: int, *, job_deadline_s: float = 60.0) -> uuid.UUID:
    job_id = await books.queued(job_deadline_s=job_deadline_s)
    await books.raw.execute("UPDATE spillway.jobs SET pipeline_version = $2 WHERE id = $1", job_id, version)
    return job_id


async def published(books: Books, job_id: uuid.UUID) -> None:
    token = uuid.uuid4()
    rows = await books.outbox.lease(lease_token=token, lease_s=30.0, rows_max=100)
    await books.outbox.finish([row.id for row in rows if row.job_id == job_id], lease_token=token)


async def parked(books: Books, version: int) -> uuid.UUID:
    job_id = await queued_of(books, version)
    await published(books, job_id)
    assert await books.jobs.park(job_id, pipeline_versions=(1,)) == version
    return job_id


async def claimed_as(books: Books, job_id: uuid.UUID, *versions: int) -> Claim | None:
    return await books.jobs.claim(
        job_id, worker_id=uuid.uuid4(), lease_s=30.0, params=TransformParams(), pipeline_versions=versions
    )


async def worker_of(books: Books, *versions: int) -> ProcessRegister:
    register = ProcessRegister(books.database, role="worker", report_interval_s=SEEN_S / 3)
    await register.report(ProcessReport(pipeline_versions=versions))
    return register


async def test_a_job_is_claimed_by_a_worker_of_its_version_only(books: Books) -> None:
    job_id = await queued_of(books, 2)
    assert await claimed_as(books, job_id, 1, 3) is None
    claim = await claimed_as(books, job_id, 1, 2)
    assert claim is not None
    assert claim.pipeline_version == 2


async def test_a_job_of_another_version_is_parked_once_and_stays_queued(books: Books) -> None:
    job_id = await queued_of(books, 2)
    assert await books.jobs.park(job_id, pipeline_versions=(1, 2)) is None
    assert await books.jobs.park(job_id, pipeline_versions=(1,)) == 2
    assert await books.jobs.park(job_id, pipeline_versions=(1,)) is None
    row = await books.row(job_id)
    assert (row["state"], row["attempts_spent"], row["holds_place"]) == ("queued", 0, True)
    (shown,) = await Versions(books.database).parked(seen_s=SEEN_S, rows_max=ROWS_MAX)
    assert (shown.job_id, shown.pipeline_version, shown.served) == (job_id, 2, False)


async def test_only_what_waits_is_parked(books: Books) -> None:
    claim = await books.claimed()
    assert await books.jobs.park(claim.job_id, pipeline_versions=(2,)) is None
    assert await books.jobs.park(uuid.uuid4(), pipeline_versions=(2,)) is None


async def test_parked_jobs_are_no_lost_messages(books: Books) -> None:
    await parked(books, 2)
    census = await books.backlog.census(seen_s=SEEN_S, lease_s=0.0)
    assert (census.waiting, census.in_delivery, census.overtaken) == (0, 0, False)
    assert await books.backlog.announce_again(quiet_s=0.0, rows_max=ROWS_MAX) == []


async def test_a_parked_job_is_announced_when_a_live_worker_serves_it(books: Books) -> None:
    versions = Versions(books.database)
    job_id, other_id = await parked(books, 2), await parked(books, 3)
    await worker_of(books, 1)
    assert await versions.announce_parked(seen_s=SEEN_S, rows_max=ROWS_MAX) == []
    await worker_of(books, 1, 2)
    assert [shown.served for shown in await versions.parked(seen_s=SEEN_S, rows_max=ROWS_MAX)] == [True, False]
    assert await versions.announce_parked(seen_s=SEEN_S, rows_max=ROWS_MAX) == [job_id]
    assert await books.announcements(job_id) == 1
    assert await versions.announce_parked(seen_s=SEEN_S, rows_max=ROWS_MAX) == []
    assert [shown.job_id for shown in await versions.parked(seen_s=SEEN_S, rows_max=ROWS_MAX)] == [other_id]
    assert await claimed_as(books, job_id, 2) is not None


async def test_a_worker_not_seen_for_long_serves_nothing(books: Books) -> None:
    job_id = await parked(books, 2)
    register = await worker_of(books, 2)
    await books.raw.execute(
        "UPDATE spillway.processes SET seen_at = seen_at - interval '1 minute' WHERE id = $1", register.process_id
    )
    versions = Versions(books.database)
    assert await versions.announce_parked(seen_s=SEEN_S, rows_max=ROWS_MAX) == []
    assert [shown.job_id for shown in await versions.parked(seen_s=SEEN_S, rows_max=ROWS_MAX)] == [job_id]


async def test_a_parked_job_fails_at_its_deadline(books: Books) -> None:
    job_id = await queued_of(books, 2, job_deadline_s=0.0)
    await books.jobs.park(job_id, pipeline_versions=(1,))
    assert await books.backlog.fail_overdue() == [job_id]
    row = await books.row(job_id)
    assert (row["state"], row["error_code"], row["parked_at"]) == ("failed", "deadline_exceeded", None)


async def test_an_announcement_carries_the_version_of_its_job(books: Books) -> None:
    job_ids = {await queued_of(books, version): version for version in (1, 7)}
    rows = await books.outbox.lease(lease_token=uuid.uuid4(), lease_s=30.0, rows_max=ROWS_MAX)
    assert {row.job_id: row.pipeline_version for row in rows} == job_ids


@pytest.fixture
async def line(roles: Roles, fresh_env: dict[str, str]) -> AsyncIterator[Line]:
    """A whole line of the test's own."""
    async with open_line(roles, fresh_env) as opened:
        yield opened


async def publish(line: Line, message: JobMessage) -> None:
    connection = await aio_pika.connect(line.env["SPILLWAY_BROKER_URL"])
    async with connection:
        channel = await connection.channel()
        await channel.default_exchange.publish(
            aio_pika.Message(message.model_dump_json().encode()), jobs_queue(line.env["SPILLWAY_BROKER_PREFIX"])
        )


async def test_two_sorts_of_workers_side_by_side_do_each_their_own(line: Line) -> None:
    await line.start("api")
    job_ids = await line.accepted(range(6))
    newer = job_ids[::2]
    await line.raw.execute("UPDATE spillway.jobs SET pipeline_version = 2 WHERE id = ANY ($1)", newer)
    await line.start("relay", "janitor")
    await line.start_named("worker", name="worker-1")

    async def all_parked() -> bool:
        return int(await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE parked_at IS NOT NULL")) == 3

    await line.wait_ready([job_id for job_id in job_ids if job_id not in newer])
    await until(all_parked, what="the jobs of another version are parked")
    assert {(await line.row(job_id))["state"] for job_id in newer} == {"queued"}
    await line.start_named("worker", name="worker-2", SPILLWAY_WORKER_PIPELINE_VERSIONS="2")
    await line.wait_ready(newer)
    for job_id in job_ids:
        row = await line.row(job_id)
        assert (row["attempts_spent"], row["deaths"]) == (0, 0)
        assert row["claimed_as"] == (2 if job_id in newer else 1)
    await line.assert_equal_to_a_single_run(job_ids)


async def test_a_stale_message_changes_nothing(line: Line) -> None:
    """What counts is the version in the job's row: whatever a message says, the job is done once and none is parked."""
    await line.start("api", "relay")
    ready_id, waiting_id = await line.accepted((1, 2))
    await line.wait_published([ready_id, waiting_id])
    for job_id in (ready_id, waiting_id, uuid.uuid4()):
        await publish(line, JobMessage(job_id=job_id, pipeline_version=99))
    await line.start("worker")
    await line.wait_ready([ready_id, waiting_id])
    assert [row["claim_token"] for row in await line.rows()] == [1, 1]
