"""When leases may be judged: only after the database has answered for a whole lease without a gap.

After an outage or a freeze (of the database, of this process, of the whole host) everybody may renew first, so that
nobody is taken for dead because nobody could renew.
"""

from app.core.clock import Monotonic

#: A silence longer than this share of a lease is a gap.
GAP_SHARE = 0.5


class Patience:
    """Watches one asker's answers from the database."""

    def __init__(self, *, lease_s: float, clock: Monotonic) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._first_s: float | None = None
        self._last_s: float | None = None

    def answered(self) -> None:
        """Note an answer."""
        now_s = self._clock()
        if self._last_s is None or now_s - self._last_s > self._lease_s * GAP_SHARE:
            self._first_s = now_s
        self._last_s = now_s

    def failed(self) -> None:
        """Note an answer that did not come: the watch starts anew."""
        self._first_s = self._last_s = None

    def may_judge(self) -> bool:
        """Return whether the last whole lease passed without a gap."""
        now_s = self._clock()
        if self._first_s is None or self._last_s is None or now_s - self._last_s > self._lease_s * GAP_SHARE:
            return False
        return now_s - self._first_s >= self._lease_s
