"""Keys and jobs in any order of what clients, workers and the janitor do: model and database never disagree."""

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from app.core.backlog import Backlog
from app.core.jobstore import (
    AdmitOutcome,
    Bounds,
    EraseOutcome,
    JobStore,
    Operation,
    ReplayOutcome,
    Reservation,
    Source,
    UploadKey,
)
from app.core.postgres import Database, PoolSettings, open_database
from app.core.retention import Keep, Retention
from contracts.errors import FailureCode
from contracts.images import ImageFormat, TransformParams
from contracts.jobs import FINAL, JobState
from stack.servers import Servers
from tests.books import VARIANTS
from tests.conftest import TEMPLATE_DATABASE

JOBS_MAX = 4
OWNER_JOBS_MAX = 3
HELD_BYTES = 1000
OWNERS = ("ann", "ben")
KEYS = ("k1", "k2")
ENDS = ("complete", "fail", "retry")
BOUNDS = Bounds(jobs_max=JOBS_MAX, staging_bytes_max=None, owner_jobs_max=OWNER_JOBS_MAX)
DAY_S = 86_400.0
UNFINISHED = frozenset(JobState) - FINAL - {JobState.DROPPED}
KEEP = Keep(
    ready_s=DAY_S, failed_s=DAY_S, cancelled_s=DAY_S, message_s=DAY_S, gone_s=DAY_S, failed_source_bytes_max=10**9
)
EXAMPLES = 40
#: Which of the jobs that a step can move it is about; 0 for one that it perhaps cannot.
PICKS = st.integers(0, JOBS_MAX + 1)
#: 1 for what should be refused.
RARELY = st.sampled_from((0, 0, 0, 1))
STEPS = 30

_T = TypeVar("_T")


class Loop:
    """An event loop of its own: the machine's rules are plain functions."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[_T]) -> _T:
        async def awaited() -> _T:
            return await work

        future: Future[_T] = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        return future.result(timeout=30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(slots=True)
class Modelled:
    """What the model knows of one job."""

    reservation: Reservation
    state: JobState = JobState.UPLOADING
    claim_token: int = 0
    erase_asked: bool = False
    holds_bytes: bool = True

    @property
    def id(self) -> uuid.UUID:
        return self.reservation.job_id


@dataclass(frozen=True, slots=True)
class World:
    """The database under test."""

    loop: Loop
    database: Database
    raw: asyncpg.Connection

    def fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        return self.loop.run(self.raw.fetch(statement, *values))


@pytest.fixture(scope="module")
def world(servers: Servers) -> Iterator[World]:
    assert servers.postgres is not None
    url = servers.postgres.create_database(f"m{uuid.uuid4().hex[:12]}", template=TEMPLATE_DATABASE)
    pool = PoolSettings(url=url, application_name="test", connections_max=2, acquire_timeout_s=5, statement_timeout_s=5)
    loop = Loop()
    opened = World(loop, loop.run(open_database(pool)), loop.run(asyncpg.connect(url)))
    yield opened
    loop.run(opened.raw.close())
    loop.run(opened.database.close())
    loop.close()


def some(*states: JobState) -> Callable[["JobMachine"], bool]:
    """Return whether some job is in one of the states: steps that change nothing find nothing."""
    return lambda machine: any(job.state in states for job in machine.known.values())


class JobMachine(RuleBasedStateMachine):
    """Clients, workers and the janitor, one call at a time, in any order."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        database = self.world.database
        self.run = self.world.loop.run
        self.store = JobStore(database)
        self.backlog = Backlog(database, rows_max=100)
        self.retention = Retention(database, keep=KEEP, lease_s=60, rows_max=100)
        self.known: dict[uuid.UUID, Modelled] = {}
        self.keys: dict[tuple[str, str], uuid.UUID] = {}
        self.world.loop.run(
            self.world.raw.execute(
                """TRUNCATE spillway.jobs, spillway.outbox, spillway.images, spillway.owners, spillway.idempotency_keys;
                UPDATE spillway.gate SET jobs_held = 0, staging_bytes = 0, failed_source_bytes = 0"""
            )
        )

    def picked(self, pick: int, *states: JobState) -> tuple[uuid.UUID, Modelled | None]:
        """Return a job in one of the states; for 0 any of the newest, or an id that nobody knows."""
        fitting = [job for job in self.known.values() if job.state in states]
        if pick and fitting:
            job = fitting[pick % len(fitting)]
            return job.id, job
        newest = list(self.known.values())[-1:]
        return (newest[0].id, newest[0]) if newest else (uuid.uuid4(), None)

    def asker(self, job: Modelled | None, other: int) -> str:
        """Return the job's owner, or the other one."""
        owner = OWNERS[0] if job is None else job.reservation.owner
        return OWNERS[1 - OWNERS.index(owner)] if other else owner

    def held(self, owner: str | None = None) -> int:
        return sum(
            job.state in UNFINISHED and (owner is None or job.reservation.owner == owner) for job in self.known.values()
        )

    @rule(owner=st.sampled_from(OWNERS), key=st.none() | st.sampled_from(KEYS))
    def admit(self, owner: str, key: str | None) -> None:
        upload_key = None if key is None else UploadKey(operation=Operation.IMAGE, key=key, lifetime_s=DAY_S)
        reservation = Reservation(
            job_id=uuid.uuid4(),
            image_id=uuid.uuid4(),
            owner=owner,
            upload_token=uuid.uuid4(),
            held_bytes=HELD_BYTES,
            key=upload_key,
        )
        outcome = self.run(self.store.admit(reservation, bounds=BOUNDS, lease_s=DAY_S, deadline_s=DAY_S))
        if key is not None and (owner, key) in self.keys:
            expected = AdmitOutcome.KEY_TAKEN
        elif self.held(owner) >= OWNER_JOBS_MAX:
            expected = AdmitOutcome.OWNER_LIMIT
        elif self.held() >= JOBS_MAX:
            expected = AdmitOutcome.BACKLOG_FULL
        else:
            expected = AdmitOutcome.ADMITTED
            self.known[reservation.job_id] = Modelled(reservation)
            if key is not None:
                self.keys[owner, key] = reservation.job_id
        assert outcome is expected

    @precondition(some(JobState.UPLOADING))
    @rule(pick=PICKS, wrong=RARELY)
    def accept(self, pick: int, wrong: int) -> None:
        self.accepted(*self.picked(pick, JobState.UPLOADING), wrong=wrong)

    def accepted(self, job_id: uuid.UUID, job: Modelled | None, *, wrong: int) -> None:
        token = job.reservation.upload_token if job is not None and not wrong else uuid.uuid4()
        source = Source(source_bytes=900, sha256="ab" * 32, format=ImageFormat.JPEG, width=10, height=20)
        accepted = self.run(self.store.accept(job_id=job_id, upload_token=token, source=source, job_deadline_s=DAY_S))
        may = job is not None and not wrong and job.state is JobState.UPLOADING
        assert accepted is may
        if job is not None and may:
            job.state = JobState.QUEUED

    @precondition(some(JobState.UPLOADING))
    @rule(pick=PICKS)
    def drop(self, pick: int) -> None:
        job_id, job = self.picked(pick, JobState.UPLOADING)
        token = uuid.uuid4() if job is None else job.reservation.upload_token
        dropped = self.run(self.store.drop_upload(job_id=job_id, upload_token=token))
        assert dropped is (job is not None and job.state is JobState.UPLOADING)
        if job is not None and dropped:
            job.state = JobState.DROPPED
            self.forget_keys(job_id)

    @precondition(some(JobState.QUEUED))
    @rule(pick=PICKS)
    def claim(self, pick: int) -> None:
        self.claimed(*self.picked(pick, JobState.QUEUED))

    def claimed(self, job_id: uuid.UUID, job: Modelled | None) -> None:
        claim = self.run(self.store.claim(job_id, worker_id=uuid.uuid4(), lease_s=DAY_S, params=TransformParams()))
        assert (claim is not None) is (job is not None and job.state is JobState.QUEUED)
        if job is not None and claim is not None:
            assert claim.claim_token == job.claim_token + 1
            job.state, job.claim_token = JobState.PROCESSING, claim.claim_token

    @precondition(some(JobState.PROCESSING, JobState.CANCELLING))
    @rule(pick=PICKS, how=st.sampled_from(ENDS), late=RARELY)
    def settle(self, pick: int, how: str, late: int) -> None:
        self.settled(*self.picked(pick, JobState.PROCESSING, JobState.CANCELLING), how=how, late=late)

    @rule(owner=st.sampled_from(OWNERS), key=st.none() | st.sampled_from(KEYS), how=st.none() | st.sampled_from(ENDS))
    def whole(self, owner: str, key: str | None, how: str | None) -> None:
        """Do in one step what most jobs live through, so that other steps meet jobs in every state."""
        before = set(self.known)
        self.admit(owner=owner, key=key)
        for job_id in set(self.known) - before:
            job = self.known[job_id]
            self.accepted(job_id, job, wrong=0)
            self.claimed(job_id, job)
            if how is not None:
                self.settled(job_id, job, how=how, late=0)

    def settled(self, job_id: uuid.UUID, job: Modelled | None, *, how: str, late: int) -> None:
        token = (job.claim_token if job is not None else 1) - late
        state = self.run(self._settled(job_id, token, how))
        working = job is not None and job.state in (JobState.PROCESSING, JobState.CANCELLING)
        if job is None or not working or late:
            assert state is None
            return
        ends = {"complete": JobState.READY, "fail": JobState.FAILED, "retry": JobState.QUEUED}
        expected = JobState.CANCELLED if job.state is JobState.CANCELLING else ends[how]
        assert state is expected
        job.state = expected

    def _settled(self, job_id: uuid.UUID, token: int, how: str) -> Awaitable[JobState | None]:
        if how == "complete":
            return self.store.complete(job_id, claim_token=token, variants=VARIANTS)
        if how == "fail":
            return self.store.fail(job_id, claim_token=token, code=FailureCode.INTERNAL)
        return self.store.retry(job_id, claim_token=token, delay_s=0, attempt_spent=False, attempts_max=5)

    @precondition(some(JobState.QUEUED, JobState.PROCESSING))
    @rule(pick=PICKS, other=RARELY)
    def cancel(self, pick: int, other: int) -> None:
        job_id, job = self.picked(pick, JobState.QUEUED, JobState.PROCESSING)
        asker = self.asker(job, other)
        state = self.run(self.store.cancel(job_id, owner=asker))
        stopped = {
            JobState.QUEUED: JobState.CANCELLED,
            JobState.PROCESSING: JobState.CANCELLING,
            JobState.CANCELLING: JobState.CANCELLING,
        }
        mine = job is not None and job.reservation.owner == asker
        expected = stopped.get(job.state) if job is not None and mine else None
        assert state is expected
        if job is not None and expected is not None:
            job.state = expected

    @precondition(some(JobState.FAILED))
    @rule(pick=PICKS)
    def replay(self, pick: int) -> None:
        job_id, job = self.picked(pick, JobState.FAILED)
        outcome = self.run(self.store.replay(job_id, bounds=BOUNDS, job_deadline_s=DAY_S, who="test"))
        if job is None or job.state is not JobState.FAILED:
            assert outcome is ReplayOutcome.NOT_FAILED
        elif not job.holds_bytes:
            assert outcome is ReplayOutcome.SOURCE_MISSING
        elif self.held(job.reservation.owner) >= OWNER_JOBS_MAX:
            assert outcome is ReplayOutcome.OWNER_LIMIT
        elif self.held() >= JOBS_MAX:
            assert outcome is ReplayOutcome.BACKLOG_FULL
        else:
            assert outcome is ReplayOutcome.QUEUED
            job.state = JobState.QUEUED

    @precondition(some(*JobState))
    @rule(pick=PICKS, other=RARELY)
    def erase(self, pick: int, other: int) -> None:
        job_id, job = self.picked(pick, *JobState)
        image_id = uuid.uuid4() if job is None else job.reservation.image_id
        asker = self.asker(job, other)
        outcome = self.run(self.store.erase_image(image_id, owner=asker))
        hidden = job is None or job.reservation.owner != asker
        if job is None or hidden or job.state in (JobState.UPLOADING, JobState.DROPPED):
            assert outcome is None
            return
        self.forget_keys(job_id)
        if job.state in (JobState.PROCESSING, JobState.CANCELLING):
            assert outcome is EraseOutcome.STOPPING
            job.state, job.erase_asked = JobState.CANCELLING, True
        else:
            assert outcome is EraseOutcome.ERASED
            job.state = JobState.EXPIRED

    @rule()
    def expire_due(self) -> None:
        expired = set(self.run(self.retention.expire_due()))
        due = {job.id for job in self.known.values() if job.erase_asked and job.state in FINAL - {JobState.EXPIRED}}
        assert expired == due
        for job_id in due:
            self.known[job_id].state = JobState.EXPIRED

    @precondition(some(*FINAL, JobState.DROPPED))
    @rule(pick=PICKS)
    def objects_go(self, pick: int) -> None:
        job_id, job = self.picked(pick, *FINAL, JobState.DROPPED)
        given = self.run(self.backlog.give_bytes_back([job_id]))
        assert given == int(job is not None and job.state not in UNFINISHED and job.holds_bytes)
        if job is not None and given:
            job.holds_bytes = False

    @precondition(some(JobState.DROPPED))
    @rule(pick=PICKS)
    def forget_dropped(self, pick: int) -> None:
        job_id, job = self.picked(pick, JobState.DROPPED)
        deleted = self.run(self.backlog.delete_dropped([job_id]))
        assert deleted == int(job is not None and job.state is JobState.DROPPED and not job.holds_bytes)
        if deleted:
            del self.known[job_id]

    def forget_keys(self, job_id: uuid.UUID) -> None:
        self.keys = {key: stands for key, stands in self.keys.items() if stands != job_id}

    @invariant()
    def the_rows_are_what_the_model_says(self) -> None:
        rows = self.world.fetch("SELECT id, state, holds_place, held_bytes > 0 AS holds_bytes FROM spillway.jobs")
        found = {row["id"]: (row["state"], row["holds_place"], row["holds_bytes"]) for row in rows}
        assert found == {
            job.id: (job.state.value, job.state in UNFINISHED, job.holds_bytes) for job in self.known.values()
        }

    @invariant()
    def the_books_are_the_sums_of_the_rows(self) -> None:
        (gate,) = self.world.fetch("SELECT jobs_held, staging_bytes, failed_source_bytes FROM spillway.gate")
        (sums,) = self.world.fetch(
            """SELECT count(*) FILTER (WHERE holds_place) AS jobs_held,
                coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'staging'), 0)::bigint AS staging_bytes,
                coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'failed_source'), 0)::bigint AS failed_source_bytes
            FROM spillway.jobs"""
        )
        assert dict(gate) == dict(sums)
        assert gate["jobs_held"] <= JOBS_MAX

    @invariant()
    def every_owners_share_is_what_it_holds(self) -> None:
        rows = self.world.fetch("SELECT owner, jobs_held FROM spillway.owners")
        shares = dict.fromkeys(OWNERS, 0) | {row["owner"]: row["jobs_held"] for row in rows}
        assert shares == {owner: self.held(owner) for owner in OWNERS}

    @invariant()
    def every_key_stands_for_its_job_and_no_other_key_is_left(self) -> None:
        rows = self.world.fetch("SELECT owner, key, job_id FROM spillway.idempotency_keys")
        assert {(row["owner"], row["key"]): row["job_id"] for row in rows} == self.keys

    @invariant()
    def what_waits_is_announced_and_nothing_else(self) -> None:
        rows = self.world.fetch("SELECT DISTINCT job_id FROM spillway.outbox")
        announced = {row["job_id"] for row in rows}
        waiting = {job.id for job in self.known.values() if job.state is JobState.QUEUED}
        working = {job.id for job in self.known.values() if job.state in UNFINISHED}
        assert waiting <= announced <= working


def test_no_order_of_calls_makes_books_keys_or_states_disagree(world: World) -> None:
    JobMachine.world = world
    bounded = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(JobMachine, settings=bounded)
