"""Composition root of the API: the master, and the child that it starts for each slot.

Invariant: a child gets its settings from the master through its environment, so all processes of one master agree.
"""

import argparse
import asyncio
import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import uvloop

from app.api.master import (
    METRICS_DIR_VARIABLE,
    Launch,
    PortTakenError,
    bind,
    command,
    environment_of,
    fresh_metrics_dir,
    supervise,
)
from app.core.parts import BLOCK_BYTES
from app.core.settings import PREFIX, Settings, load_settings
from app.core.telemetry import configure_logs, logger, share_counters_by_slot

EXIT_UNFIT = 3

#: prctl's "tell me when my parent dies" (linux/prctl.h).
_PR_SET_PDEATHSIG = 1
#: What is larger than the threshold goes back to the kernel at once; a threshold that is set is not raised by the
#: allocator. Blocks of uploads stay below it and are used again: to have their pages made anew for each takes a third
#: of the time of a large upload. What a burst needed is kept; it does not grow from burst to burst.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(4 * BLOCK_BYTES), "MALLOC_ARENA_MAX": "2"}


def run_api(settings: Settings) -> int:
    """Serve the API until SIGTERM or SIGINT; returns 0, or 3 when the address cannot be had."""
    configure_logs(role="api", level=settings.log_level)
    try:
        listener = bind(settings.api_host, settings.api_port)
    except PortTakenError as error:
        sys.stderr.write(f"spillway api: {error}\n")
        return EXIT_UNFIT
    with listener, fresh_metrics_dir(settings.api_metrics_dir) as metrics_dir:
        launch = Launch(
            command=[*command("app.main"), f"--parent={os.getpid()}"],
            environment={
                **_foreign_environment(),
                **environment_of(settings),
                **_MALLOC,
                METRICS_DIR_VARIABLE: str(metrics_dir),
            },
        )
        logger().info("api.started", host=settings.api_host, port=settings.api_port, processes=settings.api_processes)
        asyncio.run(supervise(settings, launch=launch, listener=listener))
    return 0


def _foreign_environment() -> dict[str, str]:
    """Return what is not ours: children find the same machine as the master, and settings only as it was given."""
    environment = os.environ  # noqa: TID251 - a child's environment cannot come from anywhere else
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX)}


def _run_child(*, slot: int, fd: int, parent_pid: int) -> int:
    _die_with(parent_pid)
    _lift_file_limit()
    settings = load_settings()
    configure_logs(role="api", level=settings.log_level)
    metrics_dir = Path(os.environ[METRICS_DIR_VARIABLE])  # noqa: TID251 - the master put it there for a library
    share_counters_by_slot(metrics_dir, slot=slot)
    # Only now: whatever creates a metric must find its place set.
    from app.api.server import Process, serve  # noqa: PLC0415

    with socket.socket(fileno=fd) as listener:
        listener.setblocking(False)
        uvloop.run(serve(settings, process=Process(slot=slot, metrics_dir=metrics_dir), listener=listener))
    return 0


def _die_with(parent_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we could ask to be told
        sys.exit(1)


def _lift_file_limit() -> None:
    """Allow as many connections as the system grants: the usual soft limit of 1024 is less than we count on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Run the master, or with a slot one child of it."""
    parser = argparse.ArgumentParser(prog="python -m app.main", description="The API; settings come from SPILLWAY_*.")
    parser.add_argument("--slot", type=int, help="set by the master")
    parser.add_argument("--fd", type=int, help="set by the master")
    parser.add_argument("--parent", type=int, help="set by the master")
    arguments = parser.parse_args()
    if arguments.slot is None:
        return run_api(load_settings())
    return _run_child(slot=arguments.slot, fd=arguments.fd, parent_pid=arguments.parent)


if __name__ == "__main__":
    sys.exit(main())
