"""A worker's hands and slots when answers are lost: nothing is dropped, forgotten or asked for without pause."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from app.core.clock import monotonic_s
from app.core.crashpoints import Crasher
from app.core.jobstore import Claim, JobStore
from app.core.objects import ObjectStore, StoreSettings
from app.core.postgres import PoolSettings, open_database
from app.core.rabbit import BrokerSettings
from contracts.images import ImageFormat, ImageLimits, TransformParams
from worker.consumer import PROBE_PAUSE_S, Consumer, ConsumerSettings
from worker.hands import Hands
from worker.life import Life, LifeSettings
from worker.outcome import HandBack, Lost
from worker.pipeline import Pipeline
from worker.sandbox import Sandbox

#: Nobody listens there.
REFUSED_PORT = 1


@pytest.fixture
async def jobs() -> AsyncIterator[JobStore]:
    """A store whose database refuses every connection."""
    database = await open_database(
        PoolSettings(
            url=f"postgresql://spillway@127.0.0.1:{REFUSED_PORT}/spillway",
            application_name="test",
            connections_max=2,
            acquire_timeout_s=2.0,
            statement_timeout_s=2.0,
        )
    )
    yield JobStore(database)
    await database.close()


def claim_of(job_id: uuid.UUID, claim_token: int) -> Claim:
    return Claim(
        job_id=job_id,
        image_id=uuid.uuid4(),
        owner="ann",
        claim_token=claim_token,
        attempts_spent=0,
        deaths=0,
        source_bytes=1,
        source_sha256="ab" * 32,
        source_format=ImageFormat.JPEG,
        params=TransformParams(),
        pipeline_version=1,
        reads_original=False,
    )


async def test_a_job_claimed_again_by_the_same_worker_outlives_the_end_of_its_older_claim(jobs: JobStore) -> None:
    hands = Hands(jobs, lease_s=30.0)
    job_id = uuid.uuid4()
    older = ExitStack()
    stale = older.enter_context(hands.hold(claim_of(job_id, 1)))
    with hands.hold(claim_of(job_id, 2)) as newer:
        assert isinstance(stale.interrupted_by, Lost)
        older.close()
        assert hands.held_ids() == [job_id]  # its heartbeat goes on
        assert newer.interrupted_by is None
    assert hands.held_ids() == []


async def test_a_claim_that_arrives_after_everything_was_told_to_stop_is_handed_back(jobs: JobStore) -> None:
    hands = Hands(jobs, lease_s=30.0)
    hands.interrupt_all(HandBack("stopping"))
    with hands.hold(claim_of(uuid.uuid4(), 1)) as held:
        assert held.interrupted_by == HandBack("stopping")


STORE = StoreSettings(
    endpoint_url=f"http://127.0.0.1:{REFUSED_PORT}",
    public_url=f"http://127.0.0.1:{REFUSED_PORT}",
    region="us-east-1",
    bucket="none",
    access_key="a",
    secret_key="b",
    timeout_s=1.0,
    connections_max=2,
)


def consumer_of(jobs: JobStore, objects: ObjectStore) -> Consumer:
    params, crasher, hands = TransformParams(), Crasher(None), Hands(jobs, lease_s=30.0)
    sandbox = Sandbox(children=1, limits=ImageLimits(), params=params)
    life = Life(
        LifeSettings(
            worker_id=uuid.uuid4(), params=params, lease_s=30.0, attempts_max=5, retry_base_s=1.0, retry_cap_s=60.0
        ),
        jobs=jobs,
        pipeline=Pipeline(objects=objects, sandbox=sandbox, crasher=crasher),
        hands=hands,
        clock=monotonic_s,
        crasher=crasher,
    )
    broker = BrokerSettings(url=f"amqp://127.0.0.1:{REFUSED_PORT}/", prefix="t", timeout_s=1.0, heartbeat_s=5)
    return Consumer(
        ConsumerSettings(concurrency=1, prefetch=1, stop_grace_s=1.0), broker=broker, life=life, hands=hands, jobs=jobs
    )


async def test_a_database_that_refuses_is_not_asked_without_a_pause(jobs: JobStore) -> None:
    stop, probed_at_s = asyncio.Event(), []

    async def probe() -> bool:
        probed_at_s.append(monotonic_s())
        if len(probed_at_s) == 3:
            stop.set()
        return True  # the store is there all the time

    async with ObjectStore.open(STORE) as objects:
        await consumer_of(jobs, objects).run(stop, probe=probe)
    assert probed_at_s[-1] - probed_at_s[0] >= 2 * PROBE_PAUSE_S * 0.9
