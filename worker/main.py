"""Composition roots of the roles worker, relay and janitor: settings → adapters → role. Nothing is global."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from app.core import role
from app.core.backlog import Backlog
from app.core.clock import monotonic_s
from app.core.crashpoints import Crasher
from app.core.jobstore import JobStore
from app.core.objects import ObjectStore, store_settings
from app.core.outbox import Outbox
from app.core.postgres import Database, Listener, open_database, pool_settings
from app.core.processes import ProcessRegister, Role
from app.core.rabbit import broker_settings
from app.core.retention import Retention, keep_settings
from app.core.settings import Settings
from app.core.versions import Versions
from worker.cleaner import Cleaner
from worker.consumer import Consumer, ConsumerSettings
from worker.hands import Hands
from worker.janitor import Janitor, JanitorSettings
from worker.life import Life, LifeSettings
from worker.pipeline import Pipeline
from worker.relay import Relay, RelaySettings
from worker.sandbox import Sandbox
from worker.succession import Succession, SuccessionSettings

#: Relay and janitor do one thing at a time; a few connections are plenty.
QUIET_ROLE_CONNECTIONS = 4
#: S3 calls of one job in flight at once: the original's copy and three variants.
STORE_CALLS_PER_JOB = 4


def run_worker(settings: Settings) -> int:
    """Run one worker process until SIGTERM; returns its exit code."""
    return role.run(lambda stop: _worker(settings, stop), role="worker", settings=settings)


def run_relay(settings: Settings) -> int:
    """Run one relay process until SIGTERM; returns its exit code."""
    return role.run(lambda stop: _relay(settings, stop), role="relay", settings=settings)


def run_janitor(settings: Settings) -> int:
    """Run one janitor process until SIGTERM; returns its exit code."""
    return role.run(lambda stop: _janitor(settings, stop), role="janitor", settings=settings)


@asynccontextmanager
async def registered(settings: Settings, name: Role) -> AsyncIterator[tuple[Database, ProcessRegister]]:
    """Lend a role's database and its entry in the register of processes."""
    database = await open_database(pool_settings(settings, role=name, connections_max=QUIET_ROLE_CONNECTIONS))
    try:
        yield database, ProcessRegister(database, role=name, report_interval_s=settings.process_seen_s)
    finally:
        await database.close()


async def _worker(settings: Settings, stop: asyncio.Event) -> None:
    connections = _consumer_settings(settings).slots * STORE_CALLS_PER_JOB + 1
    async with (
        registered(settings, "worker") as (database, register),
        ObjectStore.open(store_settings(settings, connections_max=connections)) as objects,
    ):
        sandbox = Sandbox(
            children=settings.worker_children or min(settings.worker_concurrency, len(os.sched_getaffinity(0))),
            limits=settings.image_limits(),
            params=settings.transform_params(),
            nice=settings.worker_children_nice,
        )
        await sandbox.start()
        pipeline = Pipeline(
            objects=objects,
            sandbox=sandbox,
            crasher=Crasher(settings.crash_point),
        )
        try:
            await consume(
                settings, stop, database=database, register=register, pipeline=pipeline, probe=objects.probe_work
            )
        finally:
            await sandbox.close()


async def consume(
    settings: Settings,
    stop: asyncio.Event,
    *,
    database: Database,
    register: ProcessRegister,
    pipeline: Pipeline,
    probe: Callable[[], Awaitable[bool]],
) -> None:
    """Claim, do and settle jobs until told to stop; `probe` tells whether the store works again after an outage."""
    jobs, crasher = JobStore(database), Crasher(settings.crash_point)
    hands = Hands(jobs, lease_s=settings.job_lease_s)
    life = Life(
        _life_settings(settings, register),
        jobs=jobs,
        pipeline=pipeline,
        hands=hands,
        clock=monotonic_s,
        crasher=crasher,
    )
    consumer = Consumer(
        _consumer_settings(settings),
        broker=broker_settings(settings),
        life=life,
        hands=hands,
        jobs=jobs,
    )
    # Heartbeats and reports go on until the last job is settled.
    done = asyncio.Event()
    async with role.metrics_port(settings), asyncio.TaskGroup() as group:
        group.create_task(hands.beat_until(done))
        group.create_task(
            role.report_until_stopped(register, consumer.report, interval_s=settings.process_seen_s, stop=done)
        )
        try:
            await consumer.run(stop, probe=probe)
        finally:
            done.set()


def _consumer_settings(settings: Settings) -> ConsumerSettings:
    return ConsumerSettings(
        concurrency=settings.worker_concurrency,
        prefetch=settings.prefetch,
        stop_grace_s=settings.worker_stop_grace_s,
    )


def _life_settings(settings: Settings, register: ProcessRegister) -> LifeSettings:
    return LifeSettings(
        worker_id=register.process_id,
        params=settings.transform_params(),
        lease_s=settings.job_lease_s,
        attempts_max=settings.job_attempts_max,
        retry_base_s=settings.retry_base_s,
        retry_cap_s=settings.retry_cap_s,
        pipeline_versions=settings.served_versions,
    )


async def _relay(settings: Settings, stop: asyncio.Event) -> None:
    listen_url = (settings.database_listen_url or settings.database_url).get_secret_value()
    listener = Listener(
        listen_url,
        channel="spillway_outbox",
        timeout_s=settings.database_acquire_timeout_s,
        application_name="spillway-relay-listen",
    )
    async with registered(settings, "relay") as (database, register):
        relay = Relay(
            RelaySettings(
                batch_rows=settings.relay_batch_rows, poll_s=settings.relay_poll_s, lease_s=settings.relay_lease_s
            ),
            broker=broker_settings(settings),
            outbox=Outbox(database),
            listener=listener,
            crasher=Crasher(settings.crash_point),
        )
        async with role.metrics_port(settings), asyncio.TaskGroup() as group:
            group.create_task(
                role.report_until_stopped(register, relay.report, interval_s=settings.process_seen_s, stop=stop)
            )
            await relay.run(stop)
        await listener.close()


async def _janitor(settings: Settings, stop: asyncio.Event) -> None:
    async with (
        registered(settings, "janitor") as (database, register),
        ObjectStore.open(store_settings(settings, connections_max=4)) as objects,
    ):
        backlog = Backlog(database, rows_max=settings.janitor_rows_max)
        retention = Retention(
            database,
            keep=keep_settings(settings),
            lease_s=settings.job_lease_s,
            rows_max=settings.janitor_rows_max,
        )
        cleaner = Cleaner(retention=retention, backlog=backlog, objects=objects)
        succession = Succession(
            SuccessionSettings(
                seen_s=register.seen_s, superseded_s=settings.superseded_s, rows_max=settings.janitor_rows_max
            ),
            versions=Versions(database),
            objects=objects,
        )
        janitor = Janitor(
            JanitorSettings(
                interval_s=settings.janitor_interval_s,
                job_lease_s=settings.job_lease_s,
                upload_lease_s=settings.upload_lease_s,
                broker=broker_settings(settings),
                crash_point=settings.crash_point,
            ),
            backlog=backlog,
            register=register,
            objects=objects,
            housekeeping=(
                cleaner.expire,
                cleaner.sweep_gone,
                cleaner.purge_failed_sources,
                cleaner.delete_rows,
                succession.announce_parked,
                succession.sweep_superseded,
            ),
            clock=monotonic_s,
        )
        async with role.metrics_port(settings, refresh=janitor.refresh_gauges), asyncio.TaskGroup() as group:
            group.create_task(
                role.report_until_stopped(register, janitor.report, interval_s=settings.process_seen_s, stop=stop)
            )
            await janitor.run(stop)
