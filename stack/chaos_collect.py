"""Watches a run from below and gathers its history: the journal in the database, rows, books, objects, worker logs.

Invariant: it reads what the product wrote and writes nothing but its own journal, in a schema of its own.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from app.core.objects import ObjectMissingError, ObjectStore, StoreSettings, StoreUnavailableError
from app.core.postgres import Database, DatabaseUnavailableError, PoolSettings, load_queries, open_database
from stack.chaos_history import Books, JobRow, PointerRow, PointerStep, Settle, Step
from stack.s3 import BUCKET, REGION
from stack.servers import DATABASE_VARIABLE, S3_VARIABLE

_QUERIES = load_queries(str(Path(__file__).with_name("chaos.sql")))

OBJECTS_MAX = 100_000
OBJECT_BYTES_MAX = 64 * 1024 * 1024
READS_AT_ONCE = 8
#: Words of the workers' log for what became of an attempt; `job.fenced` says that it was refused.
SETTLE_EVENTS = frozenset({"job.ready", "job.failed", "job.cancelled", "job.retried", "job.handed_back", "job.fenced"})
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Watch:
    """Direct ways to the database and the store of a run, past every proxy."""

    database: Database
    objects: ObjectStore

    async def begin(self) -> None:
        """Put the journal beneath the schema. Once a database."""
        await self.database.value(_QUERIES.make_journal)

    async def waiting_jobs(self, *, rows_max: int) -> list[UUID]:
        """Return the newest jobs that wait or run, and the newest that have ended: so many of each at most."""
        return [row["id"] for row in await self.database.many(_QUERIES.waiting_jobs, rows_max=rows_max)]

    async def at_rest(self, *, timeout_s: float) -> bool:
        """Wait until no job is unfinished and the sweeps are done; False when that does not come in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    with suppress(DatabaseUnavailableError):
                        if await self.database.value(_QUERIES.restless_jobs) == 0:
                            return True
                    await asyncio.sleep(_POLL_S)
        return False

    async def steps(self) -> tuple[Step, ...]:
        """Return the journal of jobs."""
        return tuple(Step(**dict(row)) for row in await self.database.many(_QUERIES.journal_steps))

    async def pointer_steps(self) -> tuple[PointerStep, ...]:
        """Return the journal of images."""
        return tuple(PointerStep(**dict(row)) for row in await self.database.many(_QUERIES.journal_pointers))

    async def jobs(self) -> tuple[JobRow, ...]:
        """Return all jobs."""
        return tuple(_job_row(dict(row)) for row in await self.database.many(_QUERIES.final_jobs))

    async def pointers(self) -> tuple[PointerRow, ...]:
        """Return all images."""
        return tuple(PointerRow(**dict(row)) for row in await self.database.many(_QUERIES.final_pointers))

    async def books(self) -> Books:
        """Return the books and the sums of the rows.

        Raises:
            LookupError: there are no books.
        """
        row = await self.database.one(_QUERIES.final_books)
        if row is None:
            raise LookupError("the gate row is missing")
        return Books(**dict(row))

    async def stored(self, prefixes: Iterable[str]) -> dict[str, str]:
        """Return key and SHA-256 of every object under these prefixes."""
        turns = asyncio.Semaphore(READS_AT_ONCE)

        async def digest(key: str) -> tuple[str, str]:
            async with turns:
                with suppress(ObjectMissingError):
                    body = await self.objects.get(key, bytes_max=OBJECT_BYTES_MAX)
                    return key, hashlib.sha256(body).hexdigest()
                return key, ""

        keys = [key for prefix in prefixes for key in await self.objects.list_keys(prefix, keys_max=OBJECTS_MAX)]
        return dict(await asyncio.gather(*(digest(key) for key in keys)))

    async def bucket_there(self, *, timeout_s: float) -> None:
        """Wait until the store takes objects.

        Raises:
            TimeoutError: it does not in time.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                with suppress(StoreUnavailableError):
                    await self.objects.ensure_bucket()
                    return
                await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def open_watch(env: Mapping[str, str]) -> AsyncIterator[Watch]:
    """Open the ways that `env` leads to."""
    database = await open_database(
        PoolSettings(
            url=env[DATABASE_VARIABLE],
            application_name="spillway-chaos",
            connections_max=4,
            acquire_timeout_s=5.0,
            statement_timeout_s=5.0,
        )
    )
    try:
        async with ObjectStore.open(_store(env)) as objects:
            yield Watch(database, objects)
    finally:
        await database.close()


def settles_of(folder: Path, job_ids: Collection[UUID]) -> Iterator[Settle]:
    """Yield what the workers' logs in a folder say of their settles of these jobs: a folder outlives its databases."""
    for path in sorted(folder.glob("worker*.log*")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                settle = _settle(path.name.partition(".")[0], line)
                if settle is not None and settle.job_id in job_ids:
                    yield settle


def _settle(process: str, line: str) -> Settle | None:
    with suppress(ValueError, KeyError, TypeError):
        said: dict[str, Any] = json.loads(line)
        if said["event"] in SETTLE_EVENTS and said.get("claim_token") is not None:
            return Settle(
                process=process,
                at_s=datetime.fromisoformat(said["timestamp"]).timestamp(),
                job_id=UUID(said["job_id"]),
                claim_token=said["claim_token"],
                state=said.get("state") or "",
            )
    return None


def _job_row(row: Mapping[str, Any]) -> JobRow:
    variants = json.loads(row["variants"]) if row["variants"] else []
    return JobRow(**{**row, "variants": {variant["key"]: variant["sha256"] for variant in variants}})


def _store(env: Mapping[str, str]) -> StoreSettings:
    return StoreSettings(
        endpoint_url=env[S3_VARIABLE],
        public_url=env[S3_VARIABLE],
        region=env.get("SPILLWAY_S3_REGION", REGION),
        bucket=env.get("SPILLWAY_S3_BUCKET", BUCKET),
        access_key=env.get("SPILLWAY_S3_ACCESS_KEY", ""),
        secret_key=env.get("SPILLWAY_S3_SECRET_KEY", ""),
        timeout_s=20.0,
        connections_max=READS_AT_ONCE + 2,
    )
