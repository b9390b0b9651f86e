"""Logs and metrics of all roles: the only module that imports structlog and prometheus_client.

Logs are JSON lines with dotted past facts as events. They never hold tokens, bytes or users' file names.
"""

import logging
import os
import re
import stat
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

import prometheus_client
import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, values
from prometheus_client.multiprocess import MultiProcessCollector

from app.core.clock import Monotonic, monotonic_s

METRICS_MEDIA_TYPE = prometheus_client.CONTENT_TYPE_LATEST

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

#: Runs before each scrape to refresh gauges.
Refresh = Callable[[], Awaitable[None]]


#: An outage that goes on is told again this often, seconds, and at once when its reason changes.
OUTAGE_TOLD_EVERY_S = 60.0
#: Characters of a library's words on an outage that the log takes.
REASON_CHARS_MAX = 300
_PASSWORD = re.compile(r"(?<=://)[^@/\s]*@")


class LossyStream:
    """A text stream whose writes neither fail nor wait: no job is lost because a line about it could not be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        with suppress(OSError, ValueError):
            if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
                os.set_blocking(stream.fileno(), False)

    def write(self, text: str) -> int:
        """Write, or lose the line when the disk is full, or its reader has gone or does not read."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be."""
        with suppress(OSError, ValueError):
            self._stream.flush()


class ServerWatch:
    """Tells in the log that a server is away, with its reason, and that it is back: not at each call, but once."""

    def __init__(self, server: str, *, clock: Monotonic = monotonic_s) -> None:
        self._server = server
        self._clock = clock
        self._reason: str | None = None
        self._away_at_s = self._told_at_s = 0.0

    def failed(self, error: BaseException) -> None:
        """Take note of a call that the server did not answer."""
        reason, now_s = _reason_of(error), self._clock()
        if self._reason is None:
            self._away_at_s = now_s
        elif reason == self._reason and now_s - self._told_at_s < OUTAGE_TOLD_EVERY_S:
            return
        self._reason, self._told_at_s = reason, now_s
        logger().warning("server.away", server=self._server, reason=reason)

    def answered(self) -> None:
        """Take note of a call that the server answered."""
        if self._reason is not None:
            self._reason = None
            logger().info("server.back", server=self._server, away_s=round(self._clock() - self._away_at_s, 1))


def _reason_of(error: BaseException) -> str:
    words = _PASSWORD.sub("***@", f"{type(error).__name__}: {error}")
    return words.rstrip(": ")[:REASON_CHARS_MAX]


def configure_logs(*, role: str, level: str) -> None:
    """Send JSON lines to standard error, one per event, each naming its role."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without the frames' locals, which hold tokens: the library shows them unless told not to.
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", LossyStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(role=role)
    # Libraries speak through logging; their warnings are ours to see, their chatter is not.
    logging.basicConfig(level=logging.WARNING, format='{"library": "%(name)s", "event": "%(message)s"}')


def logger() -> Any:
    """Return a logger; call it with an event name and fields."""
    return structlog.get_logger()


def share_counters_by_slot(directory: Path, *, slot: int) -> None:
    """Keep this process's counters in a file of its slot: a restarted slot goes on counting where it was.

    Must run before any metric is created. One file a slot, so dead processes leave no files behind.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values.ValueClass = values.MultiProcessValue(process_identifier=lambda: slot)  # type: ignore[no-untyped-call] # untyped library


def render_metrics(shared_dir: Path | None) -> bytes:
    """Return the metrics text of this process, or the sum over all slots of a shared directory."""
    if shared_dir is None:
        return prometheus_client.generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(shared_dir))  # type: ignore[no-untyped-call] # untyped library
    return prometheus_client.generate_latest(registry)


def counter(name: str, text: str, *labels: str) -> Counter:
    """Create a counter under our prefix."""
    return Counter(f"spillway_{name}", text, labels)


def gauge(name: str, text: str, *labels: str) -> Gauge:
    """Create a gauge under our prefix; over several processes the newest value counts."""
    return Gauge(f"spillway_{name}", text, labels, multiprocess_mode="mostrecent")


def histogram(name: str, text: str, *labels: str) -> Histogram:
    """Create a histogram of seconds under our prefix."""
    return Histogram(f"spillway_{name}", text, labels, buckets=SECONDS_BUCKETS)
