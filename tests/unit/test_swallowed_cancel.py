"""A cancel that a library swallows still ends the call to it: a role that is told to end does end."""

import asyncio

import pytest

from app.core.rabbit import in_time


async def swallowing(*, then: Exception | None) -> str:
    try:
        await asyncio.sleep(60.0)
    except asyncio.CancelledError:
        if then is not None:
            raise then from None
    return "connected all the same"


@pytest.mark.parametrize("then", [None, ConnectionError()], ids=["an answer", "an error"])
async def test_a_swallowed_cancel_is_a_cancel(then: Exception | None) -> None:
    call = asyncio.ensure_future(in_time(swallowing(then=then), timeout_s=30.0))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_cancel_by_the_library_itself_is_a_call_without_an_answer() -> None:
    async def dropped() -> None:
        raise asyncio.CancelledError

    with pytest.raises(TimeoutError):
        await in_time(dropped(), timeout_s=30.0)
