"""An upgrade is no moment: processes of the last release go on to work on the new schema, beside those of the new one.

`last_release/*.sql` holds the statements that they send, word for word.
"""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiosql
import asyncpg
import pytest
from alembic import command
from alembic.config import Config

import migrations
from app.core.jobstore import JobStore, Reservation
from app.core.jobviews import JobViews
from app.core.postgres import PoolSettings, open_database
from app.core.versions import ReprocessOutcome, Versions
from contracts.images import TransformParams
from contracts.jobs import JobState
from stack.servers import Servers
from tests.albums import TERMS, Album
from tests.books import DAY_S, NO_BOUNDS, OWNER, SOURCE, VARIANTS, Books
from tests.conftest import migrate_apart

STATEMENTS = sorted(Path(__file__).with_name("last_release").glob("*.sql"))
#: The schema of the last release.
LAST = "0003"

FUNCTIONS = """
SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ') -> ' || pg_get_function_result(p.oid)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'spillway'
"""


def migrate_to(url: str, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["database_url"] = url.replace("postgresql://", "postgresql+asyncpg://", 1)
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(command.upgrade, config, revision).result()


@dataclass(frozen=True, slots=True)
class Last:
    """A process of the last release: its statements on a connection of its own."""

    raw: asyncpg.Connection
    sql: Any

    async def queued(self) -> uuid.UUID:
        job_id, token = await self.reserved()
        assert await self.accept(job_id, token)
        return job_id

    async def reserved(self) -> tuple[uuid.UUID, uuid.UUID]:
        job_id, token = uuid.uuid4(), uuid.uuid4()
        unsaid = dict.fromkeys(
            ("operation", "key", "key_s", "declared_bytes", "declared_sha256", "declared_media_type")
        )
        answer = await self.sql.admit(
            self.raw,
            job_id=job_id,
            image_id=uuid.uuid4(),
            owner=OWNER,
            upload_token=token,
            held_bytes=1000,
            **asdict(NO_BOUNDS),
            lease_s=30.0,
            deadline_s=60.0,
            **unsaid,
        )
        assert answer == "admitted"
        return job_id, token

    async def accept(self, job_id: uuid.UUID, token: uuid.UUID) -> bool:
        source = {**asdict(SOURCE), "format": SOURCE.format.value}
        return bool(
            await self.sql.accept(
                self.raw,
                job_id=job_id,
                upload_token=token,
                **source,
                pipeline_version=1,
                job_deadline_s=DAY_S,
                attachment_id=None,
            )
        )

    async def claim(self, job_id: uuid.UUID) -> int | None:
        """Return the claim's token."""
        row = await self.sql.claim(
            self.raw,
            job_id=job_id,
            worker_id=uuid.uuid4(),
            lease_s=30.0,
            transform_params=json.dumps(asdict(TransformParams())),
        )
        return None if row is None else int(row["claim_token"])

    async def complete(self, job_id: uuid.UUID, token: int) -> str | None:
        variants = json.dumps([asdict(variant) for variant in VARIANTS])
        state: str | None = await self.sql.complete(self.raw, job_id=job_id, claim_token=token, variants=variants)
        return state

    async def fail(self, job_id: uuid.UUID, token: int) -> str | None:
        state: str | None = await self.sql.fail(self.raw, job_id=job_id, claim_token=token, code="internal")
        return state

    async def retry(self, job_id: uuid.UUID, token: int) -> str | None:
        state: str | None = await self.sql.retry(
            self.raw, job_id=job_id, claim_token=token, delay_s=0.0, attempt_spent=True, attempts_max=5
        )
        return state

    async def listed(self) -> dict[uuid.UUID, str]:
        rows = self.sql.list_jobs(self.raw, owner=OWNER, states=None, before_at=None, before_id=None, rows_max=100)
        return {row["id"]: row["state"] async for row in rows}


def statements(name: str) -> Any:
    path = next(path for path in STATEMENTS if path.stem == name)
    return aiosql.from_path(path, "asyncpg", mandatory_parameters=False)


@pytest.fixture
async def last(books: Books) -> Last:
    return Last(books.raw, statements("jobs"))


def blocks() -> list[tuple[str, str]]:
    return [(path.stem, name) for path in STATEMENTS for name in statements(path.stem).available_queries]


@pytest.mark.parametrize(("file", "name"), [block for block in blocks() if not block[1].endswith("_cursor")])
async def test_every_statement_of_the_last_release_still_means_something(books: Books, file: str, name: str) -> None:
    await books.raw.prepare(getattr(statements(file), name).sql)


async def test_every_function_of_the_last_release_keeps_its_arguments_and_its_answer(
    servers: Servers, books: Books
) -> None:
    assert servers.postgres is not None
    url = servers.postgres.create_database(f"u{uuid.uuid4().hex[:12]}")
    migrate_to(url, LAST)
    before = await asyncpg.connect(url)
    try:
        known = {row[0] for row in await before.fetch(FUNCTIONS)}
    finally:
        await before.close()
    now = {row[0] for row in await books.raw.fetch(FUNCTIONS)}
    assert len(known) > 10
    assert known - now == set()


async def test_the_last_release_takes_jobs_from_admit_to_every_end(last: Last, books: Books) -> None:
    job_ids = {end: await last.queued() for end in ("ready", "failed", "queued")}
    for end, settle in (("ready", last.complete), ("failed", last.fail), ("queued", last.retry)):
        token = await last.claim(job_ids[end])
        assert token is not None
        assert await settle(job_ids[end], token) == end
        assert await settle(job_ids[end], token) is None, "a second time the claim is no longer theirs"
    assert await last.listed() == {job_id: end for end, job_id in job_ids.items()}
    await books.assert_balanced()


async def test_both_releases_go_on_with_each_others_jobs(last: Last, books: Books) -> None:
    ours, theirs = await books.queued(), await last.queued()
    token = await last.claim(ours)
    assert token is not None
    claim = await books.claimed(theirs)
    assert await last.retry(ours, token) == "queued"
    again = await books.claimed(ours)
    assert await books.jobs.complete(ours, claim_token=again.claim_token, variants=VARIANTS) is JobState.READY
    assert await last.complete(ours, token) is None, "the fence holds between releases too"
    assert await last.complete(theirs, claim.claim_token) == "ready"
    assert set((await last.listed()).values()) == {"ready"}


async def test_an_upload_of_one_release_is_accepted_by_the_other(last: Last, books: Books) -> None:
    reservation = await books.reserve()
    assert isinstance(reservation, Reservation)
    assert await last.accept(reservation.job_id, reservation.upload_token)
    job_id, token = await last.reserved()
    assert await books.jobs.accept(job_id=job_id, upload_token=token, source=SOURCE, job_deadline_s=DAY_S)
    assert set((await last.listed()).values()) == {"queued"}


async def test_a_worker_of_the_last_release_takes_no_job_that_it_cannot_do(last: Last, books: Books) -> None:
    album = Album.of(books)
    image = await album.image()
    version = await album.reprocessed(image)
    other = await books.queued()
    await books.raw.execute("UPDATE spillway.jobs SET pipeline_version = 2 WHERE id = $1", other)
    for job_id in (version, other):
        assert await last.claim(job_id) is None
        assert (await books.row(job_id))["state"] == "queued"
    claim = await books.claimed(version)
    assert await books.jobs.retry(
        version, claim_token=claim.claim_token, delay_s=0.0, attempt_spent=False, attempts_max=5
    )
    assert await last.claim(version) is None, "nor after a worker of ours gave it back"


async def test_a_reader_of_the_last_release_is_led_to_what_is_there_after_the_sweep(last: Last, books: Books) -> None:
    album = Album.of(books)
    image = await album.image()
    newer = await album.renewed(image)
    await books.raw.execute("UPDATE spillway.images SET superseded_at = superseded_at - interval '1 hour'")
    assert await album.versions.claim_superseded(keep_s=60.0, rows_max=10)
    row = await last.sql.find_job(last.raw, job_id=image.first_id, owner=OWNER)
    assert [variant["key"] for variant in json.loads(row["variants"])] == [f"images/{newer}"]


@pytest.fixture
def old_url(servers: Servers) -> str:
    """A database that the last release has worked on."""
    assert servers.postgres is not None
    url = servers.postgres.create_database(f"u{uuid.uuid4().hex[:12]}")
    migrate_to(url, LAST)
    return url


async def test_what_the_last_release_left_is_shown_and_gets_new_results(old_url: str) -> None:
    raw = await asyncpg.connect(old_url)
    database = await open_database(
        PoolSettings(
            url=old_url, application_name="test", connections_max=2, acquire_timeout_s=5, statement_timeout_s=5
        )
    )
    try:
        last = Last(raw, statements("jobs"))
        ready_id, claimed_id, waiting_id = [await last.queued() for _ in range(3)]
        for job_id in (ready_id, claimed_id):
            token = await last.claim(job_id)
            assert token is not None
        assert await last.complete(ready_id, 1) == "ready"
        migrate_apart(old_url)
        assert await last.complete(claimed_id, 1) == "ready", "an attempt goes on through the migration"
        view = await JobViews(database).find_job(ready_id, owner=OWNER)
        assert view is not None
        assert (view.state, view.variants, view.kept_from) == (JobState.READY, VARIANTS, view.finished_at)
        outcome, job_id = await Versions(database).reprocess(view.image_id, terms=TERMS)
        assert outcome is ReprocessOutcome.QUEUED
        jobs = JobStore(database)
        for queued in (waiting_id, job_id):
            assert await jobs.claim(queued, worker_id=uuid.uuid4(), lease_s=30, params=TransformParams()) is not None
    finally:
        await database.close()
        await raw.close()
