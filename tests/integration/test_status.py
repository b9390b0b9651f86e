"""The status of a job: predictable fields in every state, links that open, and nothing for anybody else."""

import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import datetime

import httpx
import pytest

from app.core.jobstore import JobStore, StoredVariant
from app.core.postgres import Database, PoolSettings, open_database
from app.core.tokens import TokenStore
from contracts.errors import FAILURE_MESSAGES, FailureCode
from contracts.images import TransformParams, VariantName
from contracts.keys import variant_key
from stack.servers import Servers
from tests.edge import body, open_edge, post
from tests.line import Line, photo, until

PHOTO = photo(1)
ALWAYS = {"job_id", "image_id", "status", "created_at"}
VARIANTS = {VariantName.THUMBNAIL: b"thumbnail bytes", VariantName.CROP: b"crop bytes", VariantName.OPTIMIZED: b"webp"}


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment, janitor=False) as opened:
        yield opened


@pytest.fixture(scope="module")
async def database(line: Line) -> AsyncIterator[Database]:
    opened = await open_database(
        PoolSettings(
            url=line.env["SPILLWAY_DATABASE_URL"],
            application_name="test",
            connections_max=1,
            acquire_timeout_s=5,
            statement_timeout_s=5,
        )
    )
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def jobs(database: Database) -> JobStore:
    return JobStore(database)


async def accepted(line: Line) -> uuid.UUID:
    answer = await post(line, body(PHOTO))
    assert answer.status == 202
    return uuid.UUID(answer.json()["job_id"])


async def claimed(line: Line, jobs: JobStore) -> tuple[uuid.UUID, int]:
    job_id = await accepted(line)
    claim = await jobs.claim(job_id, worker_id=uuid.uuid4(), lease_s=60, params=TransformParams())
    assert claim is not None
    return job_id, claim.claim_token


async def read(line: Line, job_id: object, *, token: str | None = None) -> httpx.Response:
    return await line.http.get(
        f"{line.base_url}/api/v1/image-jobs/{job_id}", headers={"Authorization": f"Bearer {token or line.token}"}
    )


async def shown(line: Line, job_id: uuid.UUID, *, final: bool, fields: set[str]) -> dict[str, object]:
    """Return a found job after checking what holds in every state."""
    answer = await read(line, job_id)
    document: dict[str, object] = answer.json()
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert ("retry-after" in answer.headers) is not final
    assert set(document) == ALWAYS | fields | ({"finished_at", "expires_at"} if final else set())
    assert document["job_id"] == str(job_id)
    row = await line.row(job_id)
    assert document["image_id"] == str(row["image_id"])
    assert datetime.fromisoformat(str(document["created_at"])) == row["accepted_at"]
    if final:
        assert datetime.fromisoformat(str(document["finished_at"])) == row["finished_at"]
    return document


async def test_a_queued_job(line: Line) -> None:
    document = await shown(line, await accepted(line), final=False, fields=set())
    assert document["status"] == "queued"


async def test_a_job_in_work_and_one_that_is_asked_to_stop(line: Line, jobs: JobStore) -> None:
    job_id, _ = await claimed(line, jobs)
    assert (await shown(line, job_id, final=False, fields=set()))["status"] == "processing"
    await jobs.cancel(job_id, owner="ann")
    assert (await shown(line, job_id, final=False, fields=set()))["status"] == "cancelling"


async def test_a_ready_job_has_links_that_open(line: Line, jobs: JobStore) -> None:
    job_id, token = await claimed(line, jobs)
    image_id = (await line.row(job_id))["image_id"]
    stored = []
    for name, data in VARIANTS.items():
        key = variant_key(image_id, job_id, "0" * 12, name)
        await line.objects.put(key, data, media_type="application/octet-stream")
        stored.append(StoredVariant(name=name, key=key, sha256="ab" * 32, size_bytes=len(data), width=9, height=7))
    await jobs.complete(job_id, claim_token=token, variants=tuple(stored))
    fields = {"image_url", "thumb_url", "variants"}
    document = await shown(line, job_id, final=True, fields=fields)
    variants = document["variants"]
    assert isinstance(variants, dict)
    assert document["status"] == "ready"
    assert set(variants) == {"thumbnail", "crop", "optimized"}
    assert document["image_url"] == variants["optimized"]["url"]
    assert document["thumb_url"] == variants["thumbnail"]["url"]
    assert variants["optimized"]["media_type"] == "image/webp"
    assert variants["crop"]["bytes"] == len(VARIANTS[VariantName.CROP])
    for name, data in VARIANTS.items():
        opened = await line.http.get(variants[name.value]["url"])
        assert (opened.status_code, opened.content) == (200, data)
    unsigned = str(document["thumb_url"]).split("?", maxsplit=1)[0]
    assert (await line.http.get(unsigned)).status_code == 403


async def test_a_failed_job_is_a_successful_answer(line: Line, jobs: JobStore) -> None:
    job_id, token = await claimed(line, jobs)
    await jobs.fail(job_id, claim_token=token, code=FailureCode.INVALID_IMAGE)
    document = await shown(line, job_id, final=True, fields={"error"})
    assert document["status"] == "failed"
    assert document["error"] == {"code": "invalid_image", "message": FAILURE_MESSAGES[FailureCode.INVALID_IMAGE]}


async def test_a_cancelled_job(line: Line, jobs: JobStore) -> None:
    job_id = await accepted(line)
    await jobs.cancel(job_id, owner="ann")
    assert (await shown(line, job_id, final=True, fields=set()))["status"] == "cancelled"


async def test_reading_changes_nothing(line: Line) -> None:
    job_id = await accepted(line)
    before = dict(await line.row(job_id))
    for _ in range(3):
        await read(line, job_id)
    assert dict(await line.row(job_id)) == before


async def test_foreign_and_unknown_jobs_look_the_same(line: Line, database: Database) -> None:
    _, foreign_token = await TokenStore(database).create(owner="ben")
    job_id = await accepted(line)
    foreign = await read(line, job_id, token=foreign_token)
    unknown = await read(line, uuid.uuid4())
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.content == unknown.content
    assert foreign.json()["code"] == "not_found"


@pytest.mark.parametrize(
    "name", ["x", "0", "job-456", "%00", "{JOB}", "urn:uuid:JOB", "HEX", "a" * 5000, "..", "%2e%2e%2f"]
)
async def test_a_malformed_id_is_an_unknown_one(line: Line, name: str) -> None:
    job_id = await accepted(line)
    answer = await read(line, name.replace("JOB", str(job_id)).replace("HEX", job_id.hex))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_reservations_are_shown_to_nobody(line: Line) -> None:
    await line.raw.execute("SELECT spillway.admit($1, $1, 'ann', $1, 9, NULL, NULL, 60, 60)", hidden := uuid.uuid4())
    assert (await read(line, hidden)).status_code == 404


async def test_without_a_token_there_is_nothing_to_see(line: Line) -> None:
    answer = await line.http.get(f"{line.base_url}/api/v1/image-jobs/{await accepted(line)}")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_without_its_other_processes_it_is_degraded_and_still_accepts(line: Line) -> None:
    answer = await line.http.get(f"{line.base_url}/health/ready")
    components = answer.json()["components"]
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert components == {
        "database": "up",
        "store": "up",
        "broker": "away",
        "relay": "away",
        "workers": "away",
        "janitor": "away",
    }
    await accepted(line)


async def test_with_all_processes_it_is_ready(line: Line) -> None:
    await line.start("janitor", "relay", "worker")

    async def ready() -> bool:
        answer = await line.http.get(f"{line.base_url}/health/ready")
        return answer.status_code == 200 and answer.json()["status"] == "ready"

    await until(ready, timeout_s=15, what="ready")
