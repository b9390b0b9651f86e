"""The loops that the product is compared with: the transform alone, and the transform with its I/O but without a queue.

Invariant: they make the same variants with the same code and settings as the worker's children; what differs is only
what is around them. Each process is a `stack.loop`; none begins before all are ready.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.cells import CellKind

_PROJECT = Path(__file__).resolve().parents[1]
#: As the worker sets them for its children.
_LIBVIPS_VARIABLES = {"VIPS_CONCURRENCY": "1", "MALLOC_ARENA_MAX": "2", "VIPS_BLOCK_UNTRUSTED": "1"}

Child = subprocess.Popen[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Which loop, and the environment its processes get."""

    kind: CellKind
    env: Mapping[str, str]


def run_loop(loop: Loop, files: Sequence[Path], *, processes_count: int) -> list[dict[str, Any]]:
    """Work `files` off in `processes_count` processes, started together once all are ready; return a row a file.

    Raises:
        RuntimeError: a process failed.
    """
    items = [{"item": number, "file": str(file)} for number, file in enumerate(files)]
    children = [_start(loop) for _ in range(processes_count)]
    try:
        rows = _drive(children, [items[number::processes_count] for number in range(processes_count)])
    finally:
        for child in children:
            child.kill()
            child.wait()
    return sorted(rows, key=lambda row: row["item"])


def _start(loop: Loop) -> Child:
    return subprocess.Popen(
        [sys.executable, "-m", "stack.loop", loop.kind.value],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**loop.env, **_LIBVIPS_VARIABLES},
        cwd=_PROJECT,
        text=True,
    )


def _drive(children: list[Child], shares: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Hand each child its share, wait for all to be ready, let them go, collect their rows."""
    for child, share in zip(children, shares, strict=True):
        _tell(child, json.dumps(share))
    for child in children:
        if _hear(child) != "ready":
            raise RuntimeError("a loop process did not start")
    for child in children:
        _tell(child, "go")
    rows: list[dict[str, Any]] = []
    for number, child in enumerate(children):
        rows += [{"process": number, **row} for row in json.loads(_hear(child))]
    return rows


def _tell(child: Child, line: str) -> None:
    if child.stdin is not None:
        child.stdin.write(line + "\n")
        child.stdin.flush()


def _hear(child: Child) -> str:
    line = child.stdout.readline().strip() if child.stdout is not None else ""
    if not line:
        raise RuntimeError(f"a loop process ended with {child.wait()}")
    return line
