"""Carries out faults: kills, freezes, crash points, cut, slow and half-open lines, messages out of order and time.

Invariant: whatever a fault takes away it brings back, also when the run is told to stop in the middle of it; only a
run that is broken off altogether, whose processes all end, leaves that out. No two faults are on one part at once.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from uuid import UUID

from app.core.postgres import DatabaseUnavailableError
from app.core.rabbit import BrokerSession, BrokerSettings, BrokerUnavailableError, Delivery
from app.core.role import wait_or_stop
from app.core.settings import PREFIX
from contracts.messages import PIPELINE_VERSION, JobMessage
from stack.chaos_collect import Watch
from stack.chaos_history import Exit, FaultSpan
from stack.chaos_plan import Action, Fault
from stack.chaos_rig import LEADS, Rig, wall_s
from stack.proxy import LineMode
from stack.servers import BROKER_VARIABLE

#: A slow line passes each read on this late.
SLOW_PAUSE_S = 0.15
#: Connections are cut this often while a cut lasts.
CUT_EVERY_S = 0.7
#: Each of the jobs whose message is repeated gets so many more of them.
COPIES_COUNT = 3
MESSAGES_MAX = 20
#: How long messages that wait are collected before they are put in another order.
COLLECT_S = 1.0
#: The broker may still be coming back from an earlier fault.
BROKER_TRIES_MAX = 10
BROKER_PAUSE_S = 1.0
BROKER_TIMEOUT_S, BROKER_HEARTBEAT_S = 5.0, 5

_UNREADABLE = b"\x00this is no message"
_Use = Callable[[BrokerSession], Awaitable[None]]
_Doing = Callable[[Fault], AbstractAsyncContextManager[None]]


class Faults:
    """Does to a rig what a plan says."""

    def __init__(self, rig: Rig, watch: Watch, *, stop: asyncio.Event) -> None:
        self._rig = rig
        self._watch = watch
        self._stop = stop
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._doings: dict[Action, _Doing] = {
            Action.KILL: self._kill,
            Action.FREEZE: self._freeze,
            Action.CRASH: self._crash,
            Action.CUT: self._cut,
            Action.SLOW: lambda fault: self._line_mode(fault.target, LineMode.SLOW),
            Action.HOLD: lambda fault: self._line_mode(fault.target, LineMode.HELD),
            Action.DUPLICATE: self._duplicate,
            Action.REORDER: self._reorder,
            Action.STALE: self._stale,
            Action.DOUBLE: self._double,
        }

    async def carry_out(self, fault: Fault) -> FaultSpan:
        """Do one fault and return when everything it touched is there again."""
        # Messages are moved about by a session with the broker.
        async with self._turns["rabbit" if fault.target == "messages" else fault.target]:
            begun_s = wall_s()
            async with self._doings[fault.kind.action](fault):
                await wait_or_stop(self._stop, fault.lasting_s)
                back_s = wall_s()
            return FaultSpan(
                kind=fault.kind.name,
                action=fault.kind.action,
                target=fault.target,
                begun_s=begun_s,
                back_s=back_s,
                ended_s=wall_s(),
                note=fault.crash_point or "",
            )

    @asynccontextmanager
    async def _kill(self, fault: Fault) -> AsyncIterator[None]:
        if fault.target in LEADS.values():
            server = self._rig.servers.server(fault.target)
            await asyncio.to_thread(server.kill)
            yield
            await asyncio.to_thread(server.start)
            return
        with self._rig.disturbing(fault.target):
            await self._rig.kill(fault.target)
            yield
            await self._rig.bring_back(fault.target)

    @asynccontextmanager
    async def _freeze(self, fault: Fault) -> AsyncIterator[None]:
        is_server = fault.target in LEADS.values()
        frozen = self._rig.servers.server(fault.target) if is_server else self._rig.process(fault.target)
        frozen.freeze()
        try:
            yield
        finally:
            frozen.thaw()

    @asynccontextmanager
    async def _crash(self, fault: Fault) -> AsyncIterator[None]:
        with self._rig.disturbing(fault.target):
            await self._rig.kill(fault.target)
            # Not waited for: it may die of its first job before it could answer.
            await self._rig.start(fault.target, crash_point=fault.crash_point, wait=False)
            yield
            await self._rig.kill(fault.target)
            await self._rig.bring_back(fault.target)

    @asynccontextmanager
    async def _cut(self, fault: Fault) -> AsyncIterator[None]:
        over = asyncio.Event()

        async def cut_again() -> None:
            while True:
                for line in self._rig.lines_to(fault.target):
                    line.cut()
                if await wait_or_stop(over, CUT_EVERY_S):
                    return

        cutting = asyncio.create_task(cut_again())
        try:
            yield
        finally:
            over.set()
            await cutting

    @asynccontextmanager
    async def _line_mode(self, server: str, mode: LineMode) -> AsyncIterator[None]:
        for line in self._rig.lines_to(server):
            line.set_mode(mode, pause_s=SLOW_PAUSE_S)
        try:
            yield
        finally:
            for line in self._rig.lines_to(server):
                line.set_mode(LineMode.OPEN)

    @asynccontextmanager
    async def _duplicate(self, _: Fault) -> AsyncIterator[None]:
        job_ids = await self._known_jobs()
        await self._publish([_body(job_id) for job_id in job_ids for _ in range(COPIES_COUNT)])
        yield

    @asynccontextmanager
    async def _stale(self, _: Fault) -> AsyncIterator[None]:
        job_ids = await self._known_jobs()
        bodies = [_body(job_id, pipeline_version=PIPELINE_VERSION - 1) for job_id in job_ids]
        await self._publish([_UNREADABLE, *bodies])
        yield

    @asynccontextmanager
    async def _reorder(self, _: Fault) -> AsyncIterator[None]:
        """Freeze the workers so that messages gather, then put those in the opposite order."""
        workers = [self._rig.process(name) for name in self._rig.names("worker")]
        for worker in workers:
            worker.freeze()
        try:
            yield
            await self._with_session(self._reverse_waiting)
        finally:
            for worker in workers:
                worker.thaw()

    @asynccontextmanager
    async def _double(self, _: Fault) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name in ("relay-2", "janitor-2"):
                stack.enter_context(self._rig.disturbing(name))
                await self._rig.bring_back(name)  # who is told to stop before he listens for it cannot stop in order
                stack.push_async_callback(self._stop_in_order, name)
            yield

    async def _stop_in_order(self, name: str) -> None:
        code = await self._rig.stop(name)
        if code != 0:
            self._rig.exits.append(Exit(process=name, at_s=wall_s(), code=code))

    async def _known_jobs(self) -> list[UUID]:
        try:
            return await self._watch.waiting_jobs(rows_max=MESSAGES_MAX)
        except DatabaseUnavailableError:
            return []

    async def _publish(self, bodies: list[bytes]) -> None:
        async def publish(session: BrokerSession) -> None:
            for body in bodies:
                await session.publish_body(body)

        await self._with_session(publish)

    async def _reverse_waiting(self, session: BrokerSession) -> None:
        taken: list[Delivery] = []
        await session.consume(prefetch=MESSAGES_MAX, on_delivery=taken.append)
        await wait_or_stop(self._stop, COLLECT_S)
        await session.stop_consuming()
        for delivery in reversed(taken):
            if delivery.message is not None:
                await session.publish_body(delivery.message.model_dump_json().encode())
        for delivery in taken:
            await delivery.ack()

    async def _with_session(self, use: _Use) -> None:
        for _ in range(BROKER_TRIES_MAX):
            try:
                async with BrokerSession.open(self._broker) as session:
                    await use(session)
                    return
            except BrokerUnavailableError:
                if await wait_or_stop(self._stop, BROKER_PAUSE_S):
                    return

    @property
    def _broker(self) -> BrokerSettings:
        return BrokerSettings(
            url=self._rig.env[BROKER_VARIABLE],
            prefix=self._rig.env.get(f"{PREFIX}BROKER_PREFIX", "spillway"),
            timeout_s=BROKER_TIMEOUT_S,
            heartbeat_s=BROKER_HEARTBEAT_S,
        )


def _body(job_id: UUID, *, pipeline_version: int | None = None) -> bytes:
    message = json.loads(JobMessage(job_id=job_id).model_dump_json())
    if pipeline_version is not None:
        message["pipeline_version"] = pipeline_version
    return json.dumps(message).encode()
