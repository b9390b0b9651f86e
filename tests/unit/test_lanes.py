"""Who runs beside whom: nobody else even holds a claim while a job with a death behind it runs."""

import asyncio

from tests.polling import eventually
from worker.lanes import Lanes


class Runner:
    """One slot's way through the lanes, step by step."""

    def __init__(self, lanes: Lanes, *, alone: bool = False) -> None:
        self._lane = lanes.enter_alone() if alone else lanes.enter()
        self.entered = False
        self.may_leave = asyncio.Event()
        self.running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with self._lane:
            self.entered = True
            await self.may_leave.wait()

    async def leave(self) -> None:
        self.may_leave.set()
        await self.running


async def turns(count: int = 20) -> None:
    """Let everything that can go on go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_waits_to_be_alone_and_newcomers_wait_before_they_claim() -> None:
    lanes = Lanes()
    neighbour = Runner(lanes)
    await eventually(lambda: neighbour.entered)
    suspect = Runner(lanes, alone=True)
    await turns()
    newcomer = Runner(lanes)
    await turns()
    assert (suspect.entered, newcomer.entered) == (False, False)
    await neighbour.leave()
    await eventually(lambda: suspect.entered)
    await turns()
    assert not newcomer.entered
    await suspect.leave()
    await eventually(lambda: newcomer.entered)
    await newcomer.leave()


async def test_two_that_want_to_be_alone_take_turns() -> None:
    lanes = Lanes()
    suspects = [Runner(lanes, alone=True) for _ in range(2)]
    await eventually(lambda: any(suspect.entered for suspect in suspects))
    await turns()
    assert [suspect.entered for suspect in suspects] == [True, False]
    await suspects[0].leave()
    await eventually(lambda: suspects[1].entered)
    await suspects[1].leave()


async def test_one_that_is_cancelled_while_it_waits_to_be_alone_holds_nobody_back() -> None:
    lanes = Lanes()
    neighbour = Runner(lanes)
    await eventually(lambda: neighbour.entered)
    suspect = Runner(lanes, alone=True)
    await turns()
    suspect.running.cancel()
    await asyncio.gather(suspect.running, return_exceptions=True)
    newcomer = Runner(lanes)
    await eventually(lambda: newcomer.entered)
    await neighbour.leave()
    await newcomer.leave()
