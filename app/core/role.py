"""What every background role shares: signals, logs, a liveness and metrics port, and its entry in the register."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
import uvloop

from app.core import telemetry
from app.core.postgres import DatabaseUnavailableError
from app.core.processes import ProcessRegister, ProcessReport
from app.core.settings import Settings

#: Connections that the metrics port serves at once; more get 503.
METRICS_CONNECTIONS_MAX = 64

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def run(main: Callable[[asyncio.Event], Awaitable[None]], *, role: str, settings: Settings) -> int:
    """Run a role until SIGTERM or SIGINT sets its stop event; returns its exit code."""
    telemetry.configure_logs(role=role, level=settings.log_level)
    uvloop.run(_run_until_signal(main))
    return 0


async def _run_until_signal(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    await main(stop)


async def wait_or_stop(stop: asyncio.Event, timeout_s: float) -> bool:
    """Wait until stop is set or the time is over; returns whether stop is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await stop.wait()
    return stop.is_set()


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiting:
            waiter.cancel()


async def report_until_stopped(
    register: ProcessRegister, report: Callable[[], ProcessReport], *, interval_s: float, stop: asyncio.Event
) -> None:
    """Keep this process's entry in the register fresh; an outage of the database is survived."""
    while True:
        with contextlib.suppress(DatabaseUnavailableError):
            await register.report(report())
        if await wait_or_stop(stop, interval_s):
            break
    with contextlib.suppress(DatabaseUnavailableError):
        await register.forget()


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the role."""
        yield


@asynccontextmanager
async def metrics_port(settings: Settings, *, refresh: telemetry.Refresh | None = None) -> AsyncIterator[None]:
    """Serve `/metrics` and `/health/live` while the block runs; `refresh` updates gauges before each scrape."""

    async def application(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/metrics":
            if refresh is not None:
                await refresh()
            await _answer(send, 200, telemetry.METRICS_MEDIA_TYPE, telemetry.render_metrics(None))
        elif scope["path"] == "/health/live":
            await _answer(send, 200, "application/json", b'{"status":"live"}')
        else:
            await _answer(send, 404, "application/problem+json", b'{"code":"not_found","status":404}')

    config = uvicorn.Config(
        application,
        host=settings.metrics_host,
        port=settings.metrics_port,
        log_config=None,
        access_log=False,
        lifespan="off",
        limit_concurrency=METRICS_CONNECTIONS_MAX,
        timeout_graceful_shutdown=1,
    )
    server = _QuietServer(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve())
        try:
            yield
        finally:
            server.should_exit = True
            await serving


async def _answer(send: Send, status: int, media_type: str, body: bytes) -> None:
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
