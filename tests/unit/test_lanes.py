"""Who runs beside whom: nobody else even holds a claim while a job with a death behind it runs."""

import asyncio

from tests.polling import eventually
from worker.lanes import Lane, Lanes


class Runner:
    """One slot's way through the lanes, step by step."""

    def __init__(self, lanes: Lanes, *, wants_alone: bool = False) -> None:
        self._lanes = lanes
        self._wants_alone = wants_alone
        self.entered = False
        self.was_alone: bool | None = None
        self.may_leave = asyncio.Event()
        self.running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with self._lanes.enter() as lane:
            self.entered = True
            await self._stay(lane)

    async def _stay(self, lane: Lane) -> None:
        if self._wants_alone:
            self.was_alone = await lane.be_alone()
        await self.may_leave.wait()

    async def leave(self) -> None:
        self.may_leave.set()
        await self.running


async def turns(count: int = 20) -> None:
    """Let everything that can go on go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_job_waits_to_be_alone_and_newcomers_wait_before_they_claim() -> None:
    lanes = Lanes()
    neighbour = Runner(lanes)
    await eventually(lambda: neighbour.entered)
    suspect = Runner(lanes, wants_alone=True)
    await eventually(lambda: suspect.entered)
    newcomer = Runner(lanes)
    await turns()
    assert (suspect.was_alone, newcomer.entered) == (None, False)
    await neighbour.leave()
    await eventually(lambda: suspect.was_alone is True)
    await turns()
    assert not newcomer.entered
    await suspect.leave()
    await eventually(lambda: newcomer.entered)
    await newcomer.leave()


async def test_of_two_that_want_to_be_alone_the_second_gives_way() -> None:
    lanes = Lanes()
    neighbour = Runner(lanes)
    await eventually(lambda: neighbour.entered)
    # Both claimed before either knew.
    async with lanes.enter() as first, lanes.enter() as second:
        waiting = asyncio.ensure_future(first.be_alone())
        await turns()
        assert not await second.be_alone()
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    newcomer = Runner(lanes)
    await eventually(lambda: newcomer.entered)
    await neighbour.leave()
    await newcomer.leave()


async def test_one_that_is_cancelled_while_it_waits_to_be_alone_holds_nobody_back() -> None:
    lanes = Lanes()
    neighbour, suspect = Runner(lanes), Runner(lanes, wants_alone=True)
    await eventually(lambda: neighbour.entered and suspect.entered)
    suspect.running.cancel()
    await asyncio.gather(suspect.running, return_exceptions=True)
    newcomer = Runner(lanes)
    await eventually(lambda: newcomer.entered)
    await neighbour.leave()
    await newcomer.leave()
