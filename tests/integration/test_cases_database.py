"""What others met with PostgreSQL, tried here: migrations that race, and a snapshot that somebody holds for long."""

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

import migrations
from stack.roles import Roles
from stack.servers import Servers
from tests.books import VARIANTS, Books
from tests.line import QUICK, until

MIGRATORS = 6
REPOSITORY = Path(__file__).resolve().parents[2]
CYCLES, COMPARED, CLIENTS = 1_200, 200, 8


def schema_of(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["database_url"] = url.replace("postgresql://", "postgresql+asyncpg://", 1)
    return config


def migrate_up_to_the_last_but_one(url: str) -> None:
    """Leave the newest migration pending; in a thread, since it runs an event loop of its own."""
    config = schema_of(url)
    _, last_but_one, *_ = ScriptDirectory.from_config(config).walk_revisions()
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(command.upgrade, config, last_but_one.revision).result()


@pytest.mark.parametrize("pending", ["all", "the newest"])
async def test_many_processes_that_migrate_at_once_do_it_once(
    servers: Servers, environment: Mapping[str, str], pending: str
) -> None:
    assert servers.postgres is not None
    url = servers.postgres.create_database(f"race_{uuid.uuid4().hex[:8]}")
    if pending != "all":
        migrate_up_to_the_last_but_one(url)
    env = {**environment, **servers.env(), "SPILLWAY_DATABASE_URL": url}
    command_line = (sys.executable, "-m", "stack.cli", "migrate")
    racers = [await asyncio.create_subprocess_exec(*command_line, env=env, cwd=REPOSITORY) for _ in range(MIGRATORS)]
    codes = await asyncio.gather(*(racer.wait() for racer in racers))
    assert codes == [0] * MIGRATORS
    raw = await asyncpg.connect(url)
    try:
        found = await raw.fetch("SELECT version_num FROM schema_version")
        assert [row["version_num"] for row in found] == ScriptDirectory.from_config(schema_of(url)).get_heads()
    finally:
        await raw.close()


@pytest.mark.alone
async def test_a_snapshot_held_for_long_does_not_slow_claims_down(books: Books, migrated_url: str) -> None:
    claims_s: list[float] = []

    async def cycles(count: int) -> None:
        for _ in range(count):
            job_id = await books.queued()
            began_s = time.perf_counter()
            claim = await books.claimed(job_id)
            claims_s.append(time.perf_counter() - began_s)
            await books.jobs.complete(job_id, claim_token=claim.claim_token, variants=VARIANTS)

    async def many(count: int) -> None:
        await asyncio.gather(*(cycles(count // CLIENTS) for _ in range(CLIENTS)))

    await many(COMPARED)
    first_s = statistics.median(claims_s)
    holder = await asyncpg.connect(migrated_url)
    async with holder.transaction(isolation="repeatable_read"):
        await holder.fetch("SELECT count(*) FROM spillway.jobs")
        await many(CYCLES)
        last_s = statistics.median(claims_s[-COMPARED:])
    await holder.close()
    assert last_s < 2 * first_s, f"claims took {first_s * 1000:.1f} ms and take {last_s * 1000:.1f} ms now"


async def test_a_snapshot_held_for_long_is_told(roles: Roles, fresh_env: dict[str, str]) -> None:
    janitor = roles.spawn("janitor", env=QUICK)
    await asyncio.to_thread(janitor.wait_live)

    async def age_s() -> float:
        text = (await asyncio.to_thread(janitor.get, "/metrics"))[1].decode()
        (line,) = [line for line in text.splitlines() if line.startswith("spillway_oldest_snapshot_seconds ")]
        return float(line.split()[1])

    async def old() -> bool:
        return await age_s() > 1.0

    async def gone() -> bool:
        return await age_s() == 0.0

    holder = await asyncpg.connect(fresh_env["SPILLWAY_DATABASE_URL"])
    try:
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetch("SELECT 1")
            await until(old, what="the gauge shows the snapshot's age")
        await until(gone, what="the gauge shows that it is gone")
    finally:
        await holder.close()
