"""Jobs brought into each state by hand, with the worker's own statements, so that a test needs no worker."""

import uuid
from dataclasses import dataclass

import httpx

from app.core.jobstore import JobStore, StoredVariant
from app.core.postgres import Database, PoolSettings, open_database
from app.core.tokens import TokenStore
from contracts.errors import FailureCode
from contracts.images import TransformParams, VariantName
from contracts.keys import original_key, variant_key
from tests.edge import body, post
from tests.line import Line, photo

PHOTO = photo(1)
CONTENTS = {VariantName.THUMBNAIL: b"thumbnail bytes", VariantName.CROP: b"crop bytes", VariantName.OPTIMIZED: b"webp"}
JOBS = "/api/v1/image-jobs"
IMAGES = "/api/v1/images"


@dataclass(frozen=True, slots=True)
class Hand:
    """A line whose jobs a test moves itself."""

    line: Line
    database: Database
    jobs: JobStore

    async def queued(self) -> uuid.UUID:
        answer = await post(self.line, body(PHOTO))
        assert answer.status == 202, answer.body
        return uuid.UUID(answer.json()["job_id"])

    async def claimed(self) -> tuple[uuid.UUID, int]:
        job_id = await self.queued()
        claim = await self.jobs.claim(job_id, worker_id=uuid.uuid4(), lease_s=60, params=TransformParams())
        assert claim is not None
        return job_id, claim.claim_token

    async def ready(self) -> uuid.UUID:
        """Return a job that is ready, with its original and variants in the store."""
        job_id, token = await self.claimed()
        image_id = await self.image_of(job_id)
        await self.line.objects.put(original_key(image_id), PHOTO, media_type="image/jpeg")
        stored = []
        for name, data in CONTENTS.items():
            key = variant_key(image_id, job_id, "0" * 12, name)
            await self.line.objects.put(key, data, media_type="application/octet-stream")
            stored.append(StoredVariant(name=name, key=key, sha256="ab" * 32, size_bytes=len(data), width=9, height=7))
        await self.jobs.complete(job_id, claim_token=token, variants=tuple(stored))
        return job_id

    async def failed(self, code: FailureCode = FailureCode.INVALID_IMAGE) -> uuid.UUID:
        job_id, token = await self.claimed()
        await self.jobs.fail(job_id, claim_token=token, code=code)
        return job_id

    async def cancelled(self) -> uuid.UUID:
        job_id = await self.queued()
        await self.jobs.cancel(job_id, owner="ann")
        return job_id

    async def image_of(self, job_id: uuid.UUID) -> uuid.UUID:
        image_id: uuid.UUID = (await self.line.row(job_id))["image_id"]
        return image_id

    async def token_of(self, owner: str) -> str:
        return (await TokenStore(self.database).create(owner=owner))[1]

    async def ask(self, method: str, path: str, *, token: str | None = None, **headers: str) -> httpx.Response:
        """Send a request as ann, or with another token; `_` in a header's name stands for `-`."""
        sent = {"Authorization": f"Bearer {token or self.line.token}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.line.http.request(method, self.line.base_url + path, headers=sent)

    async def read(self, job_id: object, **headers: str) -> httpx.Response:
        return await self.ask("GET", f"{JOBS}/{job_id}", **headers)

    async def keys_of(self, job_id: uuid.UUID, image_id: uuid.UUID) -> list[str]:
        """Return every key in the store that belongs to a job or its image, by listing all."""
        keys = await self.line.objects.list_keys("", keys_max=100_000)
        return [key for key in keys if str(job_id) in key or str(image_id) in key]


async def open_hand(line: Line) -> Hand:
    """Return a line with stores of our own; the caller closes its database."""
    database = await open_database(
        PoolSettings(
            url=line.env["SPILLWAY_DATABASE_URL"],
            application_name="test",
            connections_max=4,
            acquire_timeout_s=5,
            statement_timeout_s=5,
        )
    )
    return Hand(line, database, JobStore(database))
