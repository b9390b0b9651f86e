"""One API process: opens the database and the store, serves a listening socket, keeps its loops going, and stops.

Invariant: on SIGTERM nothing more is admitted, the uploads in hand may end, and the process is gone within its grace.
"""

import asyncio
import contextlib
import logging
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from app.admission import Admission
from app.api.authentication import Authenticator, CacheLimits
from app.api.content_response import CONTENTS_MAX
from app.api.edge import edge
from app.api.health import StoreWatch
from app.api.metrics import Metrics
from app.api.open_files import BACKGROUND_CONNECTIONS, CONNECTIONS_MAX, Room, files_max, room_of
from app.api.protocol import edge_protocol
from app.api.services import Services
from app.api.waiting import POLL_INTERVAL_S, Waiters
from app.core.clock import monotonic_s
from app.core.jobstore import JobStore
from app.core.jobviews import JobViews
from app.core.messages import MessageStore
from app.core.objects import ObjectStore, store_settings
from app.core.postgres import Database, DatabaseUnavailableError, open_database, pool_settings
from app.core.processes import ProcessRegister, ProcessReport
from app.core.registry import Registry
from app.core.settings import Settings
from app.core.telemetry import logger
from app.core.tokens import TokenStore
from app.places import Places
from app.reserving import Reserving
from app.uploads import Uploads

#: A client is told that the database is away soon, rather than kept waiting for a connection.
ACQUIRE_TIMEOUT_S_MAX = 1.0
STORE_PROBE_INTERVAL_S = 2.0
#: Connections that the kernel completes before they are accepted.
LISTEN_BACKLOG = 2048
KEEP_ALIVE_S = 5
#: Of the grace, kept for aborts, the register and closing connections after the last upload.
CLOSING_S = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Which of the API processes this is."""

    slot: int
    metrics_dir: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What a process has open."""

    services: Services
    background: Database

    @property
    def settings(self) -> Settings:
        return self.services.settings


async def serve(settings: Settings, *, process: Process, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    async with _opened(settings, process) as opened:
        services = opened.services
        server = _Server(_server_config(edge(services), settings))

        def stop() -> None:
            services.reserving.shutting_down = True
            services.waiters.release()
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        async with _looping(opened):
            await server.serve(sockets=[listener])
            # Within this block, so that leases are renewed until the last upload is undone.
            await services.uploads.close()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which would end the process by the signal instead of in order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server_config(app: Any, settings: Settings) -> uvicorn.Config:
    # What the servers' libraries have to say about requests, the edge says itself.
    for name in ("uvicorn.error", "python_multipart", "python_multipart.multipart"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return uvicorn.Config(
        app,
        loop="none",
        http=edge_protocol(
            header_bytes_max=settings.header_bytes_max,
            headers_s_max=settings.upload_idle_s_max,
            room=_room(settings),
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=LISTEN_BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, int(settings.stop_grace_s - CLOSING_S)),
    )


def _room(settings: Settings) -> Room:
    files = files_max()
    room = room_of(settings, files_max=files)
    if room.connections_max < CONNECTIONS_MAX:
        logger().warning("api.connections_cut", files_max=files, connections_max=room.connections_max)
    return room


@asynccontextmanager
async def _opened(settings: Settings, process: Process) -> AsyncIterator[_Opened]:
    pool = pool_settings(settings, role="api")
    pool = replace(pool, acquire_timeout_s=min(pool.acquire_timeout_s, ACQUIRE_TIMEOUT_S_MAX))
    # A part on its way to a slow store is bounded by the upload's deadline; a stalled one is given up by `Uploads`.
    stores = replace(store_settings(settings), timeout_s=settings.upload_deadline_s)
    async with contextlib.AsyncExitStack() as stack:
        database = await open_database(pool)
        stack.push_async_callback(database.close)
        # For leases, snapshots and reports, which must not starve: no request waits for one of these.
        background = await open_database(replace(pool, connections_max=BACKGROUND_CONNECTIONS))
        stack.push_async_callback(background.close)
        store = await stack.enter_async_context(ObjectStore.open(stores))
        reading = replace(store_settings(settings), connections_max=CONTENTS_MAX)
        contents = await stack.enter_async_context(ObjectStore.open(reading))
        metrics, store_watch = Metrics(slot=process.slot), StoreWatch()
        jobs, views = JobStore(database), JobViews(database)
        leases = JobStore(background)
        count_failure = store_watch.noting(metrics.count_failure)
        uploads = Uploads(settings, jobs=jobs, leases=leases, store=store, count_failure=count_failure)
        admission = Admission(settings, monotonic_s=monotonic_s, rng=random.SystemRandom())
        reserving = Reserving(jobs=jobs, admission=admission, count_failure=metrics.count_failure)
        services = Services(
            settings=settings,
            jobs=jobs,
            views=views,
            messages=MessageStore(database, attachments_max=settings.message_attachments_max),
            registry=Registry(database),
            store=store,
            contents=contents,
            uploads=uploads,
            admission=admission,
            reserving=reserving,
            places=Places(settings, jobs=jobs, store=store, reserving=reserving, count_failure=metrics.count_failure),
            authenticator=_authenticator(settings, database),
            metrics=metrics,
            store_watch=store_watch,
            waiters=Waiters(views.changed, waiters_max=settings.prefer_waiters_max),
            metrics_dir=process.metrics_dir,
        )
        yield _Opened(services=services, background=background)


def _authenticator(settings: Settings, database: Database) -> Authenticator:
    limits = CacheLimits(age_s_max=settings.token_cache_s, entries_max=settings.token_cache_entries_max)
    return Authenticator(TokenStore(database).identity, limits=limits, monotonic_s=monotonic_s)


@asynccontextmanager
async def _looping(opened: _Opened) -> AsyncIterator[None]:
    """Keep the loops of the process going."""
    services, settings = opened.services, opened.settings
    register = ProcessRegister(opened.background, role="api", report_interval_s=settings.process_seen_s)

    async def refresh() -> None:
        snapshot = await register.snapshot()
        services.admission.update(snapshot)
        services.metrics.set_books(snapshot, services.admission.bounds)
        services.metrics.set_in_flight(services.uploads.in_flight)

    async def report() -> None:
        await register.report(ProcessReport())

    async def probe() -> None:
        # By the readers' clients: a write that the store leaves unanswered must not last as long as an upload may.
        if not await services.store_watch.probe(services.contents):
            services.metrics.count_failure("store", "probe")

    steps: list[tuple[str, Callable[[], Awaitable[None]], float]] = [
        ("snapshot", refresh, settings.admission_snapshot_s),
        ("report", report, settings.process_seen_s),
        ("renew", services.uploads.renew, services.uploads.renew_interval_s),
        ("probe", probe, STORE_PROBE_INTERVAL_S),
        ("waiters", services.waiters.poll, POLL_INTERVAL_S),
    ]
    # The first request finds a snapshot already.
    await asyncio.gather(*(_once(name, step, services) for name, step, _ in steps))
    loops = [asyncio.create_task(_repeat(name, step, interval_s, services)) for name, step, interval_s in steps]
    try:
        yield
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)
        with contextlib.suppress(DatabaseUnavailableError):
            await register.forget()


async def _repeat(name: str, step: Callable[[], Awaitable[None]], interval_s: float, services: Services) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await _once(name, step, services)


async def _once(name: str, step: Callable[[], Awaitable[None]], services: Services) -> None:
    try:
        await step()
    except DatabaseUnavailableError:
        services.metrics.count_failure("database", name)
    except Exception:  # noqa: BLE001 - the outermost place of a loop that must outlive whatever a step runs into
        logger().exception("api.loop_failed", loop=name)
