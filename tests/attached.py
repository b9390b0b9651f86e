"""Attachments for tests: uploaded over HTTP, and brought to any state without a worker."""

import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx

from app.core.jobstore import JobStore, StoredVariant
from app.core.postgres import Database, PoolSettings, open_database
from app.core.tokens import TokenStore
from contracts.errors import FailureCode
from contracts.images import VARIANT_MEDIA_TYPES, TransformParams, VariantName
from contracts.keys import original_key, variant_key
from tests.line import Line, photo

ATTACHMENTS = "/api/v1/attachments"
MESSAGES = "/api/v1/messages"
PHOTO = photo(1)
VARIANTS = {VariantName.THUMBNAIL: b"thumbnail bytes", VariantName.CROP: b"crop bytes", VariantName.OPTIMIZED: b"webp"}


@dataclass(frozen=True, slots=True)
class Sent:
    """One attachment of a test."""

    attachment_id: str
    job_id: uuid.UUID

    @property
    def path(self) -> str:
        return f"{ATTACHMENTS}/{self.attachment_id}"


@dataclass(frozen=True, slots=True)
class Desk:
    """A client with a token on a line, and the worker's part done by hand."""

    line: Line
    jobs: JobStore
    tokens: TokenStore
    database: Database

    async def call(
        self, method: str, path: str, *, token: str | None = None, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        given = {"Authorization": f"Bearer {token or self.line.token}", **(headers or {})}
        return await self.line.http.request(method, f"{self.line.base_url}{path}", headers=given, **more)

    async def get(self, path: str, *, token: str | None = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.call("GET", path, token=token, headers=named)

    async def post(self, path: str, document: object, *, token: str | None = None) -> httpx.Response:
        return await self.call("POST", path, token=token, json=document)

    async def upload(self, data: bytes = PHOTO, *, token: str | None = None) -> httpx.Response:
        return await self.call("POST", ATTACHMENTS, token=token, files={"file": ("a.jpg", data, "text/html")})

    async def queued(self, data: bytes = PHOTO, *, token: str | None = None) -> Sent:
        answer = await self.upload(data, token=token)
        assert answer.status_code == 202, answer.text
        return Sent(answer.json()["attachment_id"], uuid.UUID(answer.json()["job_id"]))

    async def claimed(self, *, token: str | None = None) -> tuple[Sent, int]:
        sent = await self.queued(token=token)
        claim = await self.jobs.claim(sent.job_id, worker_id=uuid.uuid4(), lease_s=60, params=TransformParams())
        assert claim is not None
        return sent, claim.claim_token

    async def ready(self, original: bytes = PHOTO, *, stored: bool = True, token: str | None = None) -> Sent:
        """Return a ready attachment whose original is what is given, of any size, in the store or lost by it."""
        sent, claim_token = await self.claimed(token=token)
        image_id = (await self.line.row(sent.job_id))["image_id"]
        variants = []
        for name, data in VARIANTS.items():
            key = variant_key(image_id, sent.job_id, "0" * 12, name)
            if stored:
                await self.line.objects.put(key, data, media_type=VARIANT_MEDIA_TYPES[name])
            digest = hashlib.sha256(data).hexdigest()
            variants.append(StoredVariant(name=name, key=key, sha256=digest, size_bytes=len(data), width=9, height=7))
        if stored:
            await self.line.objects.put(original_key(image_id), original, media_type="image/jpeg")
        await self.line.raw.execute(
            "UPDATE spillway.jobs SET source_bytes = $2, source_sha256 = $3 WHERE id = $1",
            sent.job_id,
            len(original),
            hashlib.sha256(original).hexdigest(),
        )
        await self.jobs.complete(sent.job_id, claim_token=claim_token, variants=tuple(variants))
        return sent

    async def failed(self) -> Sent:
        sent, token = await self.claimed()
        await self.jobs.fail(sent.job_id, claim_token=token, code=FailureCode.INVALID_IMAGE)
        return sent

    async def message(self, *sent: Sent, text: str = "hello") -> str:
        document = {"text": text, "attachment_ids": [one.attachment_id for one in sent]}
        answer = await self.post(MESSAGES, document)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["message_id"])

    async def other_token(self) -> str:
        _, token = await self.tokens.create(owner=f"o{uuid.uuid4().hex[:8]}")
        return token

    async def count(self, table: str) -> int:
        return int(await self.line.raw.fetchval(f"SELECT count(*) FROM spillway.{table}"))  # noqa: S608 - a test's own word


@asynccontextmanager
async def open_desk(line: Line) -> AsyncIterator[Desk]:
    """Give a desk on a line whose API runs."""
    database = await open_database(
        PoolSettings(
            url=line.env["SPILLWAY_DATABASE_URL"],
            application_name="test",
            connections_max=1,
            acquire_timeout_s=5,
            statement_timeout_s=5,
        )
    )
    try:
        yield Desk(line, JobStore(database), TokenStore(database), database)
    finally:
        await database.close()


async def fetch_attachment_rows(raw: asyncpg.Connection) -> list[asyncpg.Record]:
    return await raw.fetch("SELECT * FROM spillway.attachments ORDER BY created_at")
