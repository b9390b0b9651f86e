"""Where the direct loop finds and leaves its things: objects and rows of its own beside the product's.

Invariant: it never touches a row or an object of the product.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from app.core.objects import ObjectStore, store_settings
from app.core.postgres import Database, load_queries, open_database, pool_settings
from app.core.settings import Settings

SOURCE, ORIGINAL = "source", "original"
_QUERIES = load_queries(str(Path(__file__).with_name("loop.sql")))
_CONNECTIONS = 4


@asynccontextmanager
async def open_loop_store(settings: Settings) -> AsyncIterator[tuple[Database, ObjectStore]]:
    """Lend the database and the store of a loop process."""
    database = await open_database(pool_settings(settings, role="loop", connections_max=_CONNECTIONS))
    try:
        async with ObjectStore.open(store_settings(settings, connections_max=_CONNECTIONS)) as store:
            yield database, store
    finally:
        await database.close()


def loop_key(item: int, name: str) -> str:
    """Return the key of one of a file's objects."""
    return f"loop/{item:06d}/{name}"


async def finish(database: Database, *, item: int, variants: str) -> None:
    """Record one file's results, as the product records a job's."""
    await database.value(_QUERIES.finish_loop_row, item=item, variants=variants)


async def plant(settings: Settings, files: Sequence[Path]) -> None:
    """Make the rows and objects that the direct loop starts from, outside the measurement."""
    sources = [await asyncio.to_thread(file.read_bytes) for file in files]
    async with open_loop_store(settings) as (database, store):
        await database.value(_QUERIES.make_loop_table)
        for item, source in enumerate(sources):
            await database.value(_QUERIES.plant_loop_row, item=item)
            await store.put(loop_key(item, SOURCE), source, media_type="image/jpeg")
