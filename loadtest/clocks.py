"""The bench's own clocks: one pair of wall and monotonic readings joins the two.

Invariant: durations come from the monotonic clock alone, which all processes of one host share; the wall clock is read
only to translate another clock's stamps. Kept apart from the product's clock, since the bench measures from outside.
"""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockPair:
    """The two clocks of this host at one instant."""

    monotonic_s: float
    wall_s: float  #: seconds since the epoch, UTC

    @property
    def wall_minus_monotonic_s(self) -> float:
        """Return what to add to a monotonic reading to get wall time."""
        return self.wall_s - self.monotonic_s


def read_clocks() -> ClockPair:
    """Return both clocks; the monotonic one is read on both sides and its middle is taken."""
    before = time.monotonic()
    wall_s = time.time()  # noqa: TID251 - the one place where the bench reads the wall clock
    after = time.monotonic()
    return ClockPair(monotonic_s=(before + after) / 2, wall_s=wall_s)
