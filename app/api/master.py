"""The master of the API processes: one listening socket, so many children that share it, and one child for each slot.

Invariant: no child outlives the master (the kernel ends them with it), and a slot whose child ended gets another one
until the master is told to stop. It does not read a byte of any request.
"""

import asyncio
import contextlib
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from app.core.clock import monotonic_s
from app.core.settings import PREFIX, Settings
from app.core.telemetry import logger

#: Pauses before a slot's next child double from the first to the second while children end soon after their start.
RESTART_PAUSE_S_MIN = 0.1
RESTART_PAUSE_S_MAX = 5.0
#: A child that lived this long did not end because of its start.
SETTLED_S = 10.0
#: Between the grace given to a child and the signal it cannot refuse.
KILL_WAIT_S = 5.0

#: Where prometheus_client looks for the counters of all processes.
METRICS_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
METRICS_FILES = "*.db"


class PortTakenError(Exception):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How children are started: the command without slot and socket, and their environment."""

    command: Sequence[str]
    environment: Mapping[str, str]


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket's beginning: bound, not yet listening.

    Raises:
        PortTakenError: somebody else has the address, or it is not ours to have.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise PortTakenError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.set_inheritable(True)
    return listener


@contextmanager
def fresh_metrics_dir(wanted: str | None) -> Iterator[Path]:
    """Give a folder for the children's counters that holds nothing of an earlier life."""
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="spillway-api-") as folder:
            yield Path(folder)
        return
    path = Path(wanted)
    path.mkdir(parents=True, exist_ok=True)
    # These alone: the folder was named by a person, who may keep other things in it.
    for left in path.glob(METRICS_FILES):
        left.unlink()
    yield path


async def supervise(settings: Settings, *, launch: Launch, listener: socket.socket) -> None:
    """Keep one child for each slot until SIGTERM or SIGINT, then stop them all within the grace."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    slots = [_Slot(number, settings, launch, listener) for number in range(settings.api_processes)]
    async with asyncio.TaskGroup() as group:
        for slot in slots:
            group.create_task(slot.keep(stopping))
        await stopping.wait()
        # The children close theirs: from now on clients are told that nobody listens, instead of waiting in vain.
        listener.close()


class _Slot:
    """One place for a child."""

    def __init__(self, number: int, settings: Settings, launch: Launch, listener: socket.socket) -> None:
        self._number = number
        self._grace_s = settings.stop_grace_s
        self._launch = launch
        self._listener = listener

    async def keep(self, stopping: asyncio.Event) -> None:
        """Start children one after the other, until told to stop."""
        pause_s = RESTART_PAUSE_S_MIN
        while not stopping.is_set():
            started_s = monotonic_s()
            child = await self._spawn()
            await _first_of(child.wait(), stopping.wait())
            if stopping.is_set():
                await self._end(child)
                return
            logger().warning("api.process_ended", slot=self._number, code=child.returncode)
            settled = monotonic_s() - started_s > SETTLED_S
            pause_s = RESTART_PAUSE_S_MIN if settled else min(pause_s * 2, RESTART_PAUSE_S_MAX)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stopping.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        fd = self._listener.fileno()
        return await asyncio.create_subprocess_exec(
            *self._launch.command,
            f"--slot={self._number}",
            f"--fd={fd}",
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[fd],
            env=dict(self._launch.environment),
        )

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        for number, wait_s in ((signal.SIGTERM, self._grace_s), (signal.SIGKILL, KILL_WAIT_S)):
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await child.wait()
                    return
        logger().error("api.process_stuck", slot=self._number, pid=child.pid)


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    running = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for future in running:
        future.cancel()


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the variables from which exactly these settings are parsed again."""
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    return {PREFIX + name.upper(): _written(value) for name, value in values.items() if value is not None}


def _written(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def command(module: str) -> list[str]:
    """Return the command that runs a module of ours in this interpreter."""
    return [sys.executable, "-m", module]
