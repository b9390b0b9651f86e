"""Whether the running coroutine was told to end: what the event loop counts, whatever a library made of it."""

import asyncio


def is_cancelled() -> bool:
    """Return whether the present asyncio task has been cancelled and has not taken note of it."""
    own = asyncio.current_task()
    return own is not None and own.cancelling() > 0
