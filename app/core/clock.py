"""The only place that reads the machine's clocks; everything else is given a clock."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

#: A monotonic clock: seconds since some fixed moment.
Monotonic = Callable[[], float]

monotonic_s: Monotonic = time.monotonic


def utc_now() -> datetime:
    """Return the wall-clock time, for people only: order and leases come from the database's clock."""
    return datetime.now(UTC)  # noqa: TID251 - the one owner of this call
