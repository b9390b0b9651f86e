"""The whole line under test: roles on a database and queues of their own, uploads over HTTP, looks behind it."""

import asyncio
import hashlib
import io
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aio_pika
import aioboto3
import asyncpg
import httpx
import numpy as np
from PIL import Image

from app.core.objects import ObjectStore, StoreSettings
from app.core.postgres import PoolSettings, open_database
from app.core.tokens import TokenStore
from contracts.keys import original_key, staging_key
from contracts.messages import jobs_queue
from stack.roles import Role, RoleProcess, Roles
from tests.reference import reference_hashes

#: Everything that takes "a lease" or "a few sweeps" is over quickly in tests.
QUICK = {
    "SPILLWAY_JOB_LEASE_S": "2",
    "SPILLWAY_UPLOAD_LEASE_S": "2",
    "SPILLWAY_RELAY_LEASE_S": "1",
    "SPILLWAY_RELAY_POLL_S": "0.2",
    "SPILLWAY_JANITOR_INTERVAL_S": "0.2",
    "SPILLWAY_PROCESS_SEEN_S": "0.5",
    "SPILLWAY_ADMISSION_SNAPSHOT_S": "0.1",
}
FINAL_S_MAX = 45.0
FINAL = {"ready", "failed", "cancelled"}


def photo(seed: int, *, width: int = 400, height: int = 300) -> bytes:
    """A JPEG with edges and noise; another one for each seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (8, 10, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(image, dtype=np.int16) + rng.integers(-9, 9, (height, width, 3), dtype=np.int16)
    out = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
    return out.getvalue()


def store_client(env: Mapping[str, str]) -> Any:
    """Return a client of the store that is none of the product's, to be entered."""
    return aioboto3.Session().client(
        "s3",
        endpoint_url=env["SPILLWAY_S3_ENDPOINT_URL"],
        aws_access_key_id=env["SPILLWAY_S3_ACCESS_KEY"],
        aws_secret_access_key=env["SPILLWAY_S3_SECRET_KEY"],
        region_name=env["SPILLWAY_S3_REGION"],
    )


async def until(condition: Callable[[], Awaitable[Any]], *, timeout_s: float = FINAL_S_MAX, what: str) -> Any:
    """Poll a condition until it is truthy and return its value; fail with `what` when it never is."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = await condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        await asyncio.sleep(0.05)


@dataclass(slots=True)
class Line:
    """One test's system."""

    roles: Roles
    env: dict[str, str]
    token: str
    http: httpx.AsyncClient
    objects: ObjectStore
    raw: asyncpg.Connection
    base_url: str = ""
    sources: dict[uuid.UUID, bytes] = field(default_factory=dict)

    async def start(self, *names: Role, crash_point: str | None = None, **env: str) -> list[RoleProcess]:
        """Spawn roles and wait until each answers; the API's address becomes the line's."""
        armed = {} if crash_point is None else {"SPILLWAY_CRASH_POINT": crash_point}
        started = [self.roles.spawn(name, env={**QUICK, **armed, **env}) for name in names]
        await asyncio.gather(*(asyncio.to_thread(process.wait_live) for process in started))
        for process in started:
            if process.role == "api":
                self.base_url = process.url
        return started

    async def start_named(self, role: Role, *, name: str, **env: str) -> RoleProcess:
        """Spawn one more process of a role, under a name of its own."""
        process = self.roles.spawn(role, name=name, env={**QUICK, **env})
        await asyncio.to_thread(process.wait_live)
        return process

    async def reconnect(self) -> None:
        """Open the watcher's connection anew, after the database went away."""
        self.raw = await asyncpg.connect(self.env["SPILLWAY_DATABASE_URL"])

    async def delete_jobs_queue(self) -> None:
        """Delete the queue under everybody's feet."""
        connection = await aio_pika.connect(self.env["SPILLWAY_BROKER_URL"])
        async with connection:
            channel = await connection.channel()
            await channel.queue_delete(jobs_queue(self.env["SPILLWAY_BROKER_PREFIX"]), if_unused=False, if_empty=False)

    async def upload(self, data: bytes) -> httpx.Response:
        """Post one file and return the answer."""
        response = await self.http.post(
            f"{self.base_url}/api/v1/images",
            files={"file": ("a.jpg", data, "image/jpeg")},
            headers={"Authorization": f"Bearer {self.token}"},
        )
        if response.status_code == httpx.codes.ACCEPTED:
            self.sources[uuid.UUID(response.json()["job_id"])] = data
        return response

    async def accepted(self, seeds: Iterable[int]) -> list[uuid.UUID]:
        """Upload photos one after the other, each of which must be accepted."""
        job_ids = []
        for seed in seeds:
            response = await self.upload(photo(seed))
            assert response.status_code == httpx.codes.ACCEPTED, response.text
            job_ids.append(uuid.UUID(response.json()["job_id"]))
        return job_ids

    async def rows(self) -> list[asyncpg.Record]:
        return await self.raw.fetch("SELECT * FROM spillway.jobs ORDER BY admitted_at")

    async def row(self, job_id: uuid.UUID) -> asyncpg.Record:
        row = await self.raw.fetchrow("SELECT * FROM spillway.jobs WHERE id = $1", job_id)
        assert row is not None
        return row

    async def wait_state(self, job_id: uuid.UUID, *states: str, timeout_s: float = FINAL_S_MAX) -> asyncpg.Record:
        """Wait until a job is in one of the states; return its row."""

        async def reached() -> asyncpg.Record | None:
            row = await self.row(job_id)
            return row if row["state"] in states else None

        row: asyncpg.Record = await until(reached, timeout_s=timeout_s, what=f"job in {states}")
        return row

    async def wait_published(self, job_ids: list[uuid.UUID]) -> None:
        """Wait until the broker has confirmed the message of every job."""

        async def published() -> bool:
            rows = await self.raw.fetch("SELECT published_at FROM spillway.jobs WHERE id = ANY ($1)", job_ids)
            return all(row["published_at"] is not None for row in rows)

        await until(published, what="all jobs announced")

    async def wait_ready(self, job_ids: list[uuid.UUID], *, timeout_s: float = FINAL_S_MAX) -> None:
        """Wait until all jobs are final; all must be ready."""

        async def all_final() -> bool:
            rows = await self.raw.fetch("SELECT state FROM spillway.jobs WHERE id = ANY ($1)", job_ids)
            return len(rows) == len(job_ids) and all(row["state"] in FINAL for row in rows)

        await until(all_final, timeout_s=timeout_s, what="all jobs final")
        for job_id in job_ids:
            assert (await self.row(job_id))["state"] == "ready"

    async def assert_equal_to_a_single_run(self, job_ids: list[uuid.UUID]) -> None:
        """Original and variants in the store are what one undisturbed run makes, and nothing else is there."""
        for job_id in job_ids:
            row = await self.row(job_id)
            keys = await self.objects.list_keys(f"images/{row['image_id']}/", keys_max=100)
            stored = {key.rsplit("/", 1)[1]: await self.sha256(key) for key in keys}
            assert stored.pop("original") == hashlib.sha256(self.sources[job_id]).hexdigest()
            assert stored == await reference_hashes(self.sources[job_id])

    async def sha256(self, key: str) -> str:
        return hashlib.sha256(await self.objects.get(key, bytes_max=64 * 1024**2)).hexdigest()

    async def assert_nothing_left_behind(self) -> None:
        """After the sweeps: no place or byte held by anything final, no staging object of ready or dropped jobs."""

        async def clean() -> bool:
            held = await self.raw.fetchval(
                """SELECT count(*) FROM spillway.jobs
                WHERE state IN ('uploading', 'dropped') OR (held_bytes > 0 AND state <> 'failed')"""
            )
            gate = await self.raw.fetchrow("SELECT jobs_held, staging_bytes FROM spillway.gate")
            return held == 0 and gate is not None and tuple(gate) == (0, 0)

        await until(clean, what="books empty")
        for row in await self.rows():
            assert await self.objects.exists(staging_key(row["id"])) is (row["state"] == "failed")
            assert await self.objects.exists(original_key(row["image_id"])) is (row["state"] == "ready")


@asynccontextmanager
async def token_store(env: Mapping[str, str]) -> AsyncIterator[TokenStore]:
    """Lend the tokens of a line's database."""
    database = await open_database(
        PoolSettings(
            url=env["SPILLWAY_DATABASE_URL"],
            application_name="test",
            connections_max=2,
            acquire_timeout_s=5.0,
            statement_timeout_s=5.0,
        )
    )
    try:
        yield TokenStore(database)
    finally:
        await database.close()


@asynccontextmanager
async def open_line(roles: Roles, env: dict[str, str]) -> AsyncIterator[Line]:
    """Open the connections of a line; its roles are started by the test."""
    async with token_store(env) as tokens:
        _, token = await tokens.create(owner="ann")
    raw = await asyncpg.connect(env["SPILLWAY_DATABASE_URL"])
    async with httpx.AsyncClient(timeout=30.0) as http, ObjectStore.open(_store(env)) as objects:
        opened = Line(roles, env, token, http, objects, raw)
        try:
            yield opened
        finally:
            await opened.raw.close()


def _store(env: dict[str, str]) -> StoreSettings:
    url = env["SPILLWAY_S3_ENDPOINT_URL"]
    return StoreSettings(
        endpoint_url=url,
        public_url=url,
        region=env["SPILLWAY_S3_REGION"],
        bucket=env["SPILLWAY_S3_BUCKET"],
        access_key=env["SPILLWAY_S3_ACCESS_KEY"],
        secret_key=env["SPILLWAY_S3_SECRET_KEY"],
        timeout_s=20.0,
        connections_max=8,
    )
