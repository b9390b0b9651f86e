"""What runs of a stack, read from its state and the process table; starts and changes nothing."""

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from stack.identity import Identity
from stack.state import ProcessRecord, StateFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One process of the stack. `rss_bytes` counts its descendants too; shared pages count more than once."""

    name: str
    pid: int
    alive: bool
    port: int | None
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """The stack of one data folder."""

    data: str
    running: bool  #: everything that belongs to it runs, and it was ready once
    url: str
    processes: tuple[ProcessStatus, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def stack_status(folder: Path) -> StackStatus:
    """Return the status of a data folder's stack; one that was never started has no processes.

    Raises:
        EnvironmentUnfitError: the folder's state cannot be read.
    """
    state = StateFile(folder.absolute()).read()
    if state is None:
        return StackStatus(data=str(folder.absolute()), running=False, url="", processes=())
    launcher = [ProcessRecord("launcher", state.launcher)] if state.launcher is not None else []
    processes = tuple(_status(record) for record in [*launcher, *state.processes])
    running = state.ready and bool(launcher) and all(process.alive for process in processes)
    return StackStatus(data=str(folder.absolute()), running=running, url=state.url, processes=processes)


def _status(record: ProcessRecord) -> ProcessStatus:
    alive = record.identity.alive
    # The launcher's descendants are listed themselves.
    rss_bytes = _rss_bytes(record.identity, descendants=record.name != "launcher") if alive else 0
    return ProcessStatus(name=record.name, pid=record.identity.pid, alive=alive, port=record.port, rss_bytes=rss_bytes)


def _rss_bytes(identity: Identity, *, descendants: bool) -> int:
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(identity.pid)
        for member in [process, *(process.children(recursive=True) if descendants else [])]:
            with contextlib.suppress(psutil.Error):
                total += int(member.memory_info().rss)
    return total
