"""Waiting for a condition with a deadline, in place of sleeping for luck."""

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.01


async def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Return as soon as the condition holds; fail the test when it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true in time"
        await asyncio.sleep(POLL_S)
