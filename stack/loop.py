"""One process of a baseline loop: it is told its files, works them off, and tells how long each took.

Invariant: the transform is the worker's own, under the variables that the worker's children get.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from app.core.settings import load_settings
from contracts.cells import CellKind
from contracts.images import VARIANT_MEDIA_TYPES
from stack.loop_store import ORIGINAL, SOURCE, finish, loop_key, open_loop_store
from worker.transform import decode_master, make_variants

Item = dict[str, Any]


def _bare(items: list[Item]) -> list[Item]:
    """Make the variants of every file and drop them."""
    settings = load_settings()
    params, limits = settings.transform_params(), settings.image_limits()
    sources = [Path(item["file"]).read_bytes() for item in items]
    _await_go()
    rows = []
    for item, source in zip(items, sources, strict=True):
        begun = _begin()
        for variant in make_variants(decode_master(source, params=params, limits=limits), params=params):
            del variant
        rows.append(_row(item, len(source), begun))
    return rows


async def _direct(items: list[Item]) -> list[Item]:
    """Fetch, transform, store each variant and the original, update the row; one file after the other."""
    settings = load_settings()
    params, limits = settings.transform_params(), settings.image_limits()
    rows = []
    async with open_loop_store(settings) as (database, store):
        await finish(database, item=-1, variants="[]")  # connects, as a running loop has
        await store.probe()
        _await_go()
        for item in items:
            begun, number = _begin(), item["item"]
            source = await store.get(loop_key(number, SOURCE), bytes_max=limits.source_bytes_max)
            variants = list(make_variants(decode_master(source, params=params, limits=limits), params=params))
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    store.copy(loop_key(number, SOURCE), loop_key(number, ORIGINAL), media_type="image/jpeg")
                )
                for variant in variants:
                    media_type = VARIANT_MEDIA_TYPES[variant.name]
                    group.create_task(store.put(loop_key(number, variant.name), variant.data, media_type=media_type))
            text = json.dumps([[variant.name, variant.sha256, len(variant.data)] for variant in variants])
            await finish(database, item=number, variants=text)
            rows.append(_row(item, len(source), begun))
    return rows


def _begin() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def _row(item: Item, source_bytes: int, begun: tuple[float, float]) -> Item:
    started_s, cpu_before_s = begun
    return {
        "item": item["item"],
        "started_s": started_s,
        "ended_s": time.monotonic(),
        "cpu_s": time.process_time() - cpu_before_s,
        "source_bytes": source_bytes,
    }


def _await_go() -> None:
    """Say that everything is loaded and wait for the start that all processes share."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


def _main(kind: str) -> None:
    items = json.loads(sys.stdin.readline())
    rows = _bare(items) if kind == CellKind.BARE.value else asyncio.run(_direct(items))
    sys.stdout.write(json.dumps(rows) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
