"""Logs and metrics of all roles: the only module that imports structlog and prometheus_client.

Logs are JSON lines with dotted past facts as events. They never hold tokens, bytes or users' file names.
"""

import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import prometheus_client
import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, values
from prometheus_client.multiprocess import MultiProcessCollector

METRICS_MEDIA_TYPE = prometheus_client.CONTENT_TYPE_LATEST

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

#: Runs before each scrape to refresh gauges.
Refresh = Callable[[], Awaitable[None]]


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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
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
