"""New results for old images, over the whole line: what clients see before and after, and the command for it."""

import asyncio
import hashlib
import json
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from app.core.backlog import Backlog
from app.core.jobstore import Bounds, StoredVariant
from app.core.retention import Retention
from app.core.versions import ReprocessOutcome, Versions
from contracts.errors import FailureCode
from contracts.images import VARIANT_MEDIA_TYPES, TransformParams, VariantName
from contracts.jobs import JobState
from contracts.keys import job_prefix, original_key, variant_key
from stack.reprocessing import FREE_PLACES, JOBS_PER_SLOT, jobs_max_of
from stack.roles import Roles
from stack.servers import Servers
from tests.albums import KEEP, TERMS
from tests.attached import PHOTO, VARIANTS, Desk, Sent, open_desk
from tests.books import expired
from tests.edge import open_edge
from tests.line import Line, open_line, until
from tests.reference import reference_hashes
from worker.cleaner import Cleaner
from worker.succession import Succession, SuccessionSettings

NEWER = {name: b"newer " + data for name, data in VARIANTS.items()}
LINKS_END_S = 1200.0


@pytest.fixture(scope="module")
async def desk(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Desk]:
    async with open_edge(servers, environment, janitor=False) as line, open_desk(line) as opened:
        yield opened


def versions_of(desk: Desk) -> Versions:
    return Versions(desk.database)


async def image_of(desk: Desk, sent: Sent) -> uuid.UUID:
    image_id: uuid.UUID = (await desk.line.row(sent.job_id))["image_id"]
    return image_id


async def claimed_version(desk: Desk, sent: Sent) -> tuple[uuid.UUID, int]:
    """Return a worker's hold on the job that makes the next result."""
    outcome, job_id = await versions_of(desk).reprocess(await image_of(desk, sent), terms=TERMS)
    assert outcome is ReprocessOutcome.QUEUED
    claim = await desk.jobs.claim(job_id, worker_id=uuid.uuid4(), lease_s=60, params=TransformParams())
    assert claim is not None
    return job_id, claim.claim_token


async def store_version(desk: Desk, sent: Sent, job_id: uuid.UUID) -> tuple[StoredVariant, ...]:
    """Do the worker's part up to the settle."""
    stored = []
    for name, data in NEWER.items():
        key = variant_key(await image_of(desk, sent), job_id, "1" * 12, name)
        await desk.line.objects.put(key, data, media_type=VARIANT_MEDIA_TYPES[name])
        digest = hashlib.sha256(data).hexdigest()
        stored.append(StoredVariant(name=name, key=key, sha256=digest, size_bytes=len(data), width=9, height=7))
    return tuple(stored)


async def renewed(desk: Desk, sent: Sent) -> uuid.UUID:
    job_id, token = await claimed_version(desk, sent)
    stored = await store_version(desk, sent, job_id)
    assert await desk.jobs.complete(job_id, claim_token=token, variants=stored) is JobState.READY
    return job_id


async def contents(desk: Desk, sent: Sent) -> dict[str, bytes]:
    """Return what the attachment's addresses give, and what the first job's links do."""
    found = {}
    for name in ("original", *VARIANTS):
        answer = await desk.get(f"{sent.path}/content/{name}")
        assert answer.status_code == 200
        found[str(name)] = answer.content
    job = await desk.get(f"/api/v1/image-jobs/{sent.job_id}")
    assert job.json()["status"] == "ready"
    for name, variant in job.json()["variants"].items():
        answer = await desk.line.http.get(variant["url"])
        assert answer.status_code == 200, "a link that was just given out works"
        found[f"link {name}"] = answer.content
    return found


def expected(variants: Mapping[VariantName, bytes]) -> dict[str, bytes]:
    named = {name.value: data for name, data in variants.items()}
    return {"original": PHOTO, **named, **{f"link {name}": data for name, data in named.items()}}


async def test_clients_see_the_old_result_until_the_new_one_is_ready(desk: Desk) -> None:
    sent = await desk.ready()
    await desk.message(sent)
    before = (await desk.get(sent.path)).json()
    job_id, token = await claimed_version(desk, sent)
    stored = await store_version(desk, sent, job_id)
    assert await contents(desk, sent) == expected(VARIANTS)
    assert (await desk.get(sent.path)).json() == before
    await desk.jobs.complete(job_id, claim_token=token, variants=stored)
    assert await contents(desk, sent) == expected(NEWER)
    after = (await desk.get(sent.path)).json()
    assert after.pop("variants") != before.pop("variants")
    assert after == before
    image = await desk.get(f"/api/v1/images/{await image_of(desk, sent)}")
    assert image.json()["job_id"] == str(job_id)
    assert image.json()["expires_at"] == before["expires_at"], "a new result prolongs nothing"


async def test_an_etag_of_the_old_result_is_no_longer_current(desk: Desk) -> None:
    sent = await desk.ready()
    path = f"/api/v1/image-jobs/{sent.job_id}"
    etag = (await desk.get(path)).headers["etag"]
    assert (await desk.get(path, if_none_match=etag)).status_code == 304
    await renewed(desk, sent)
    assert (await desk.get(path, if_none_match=etag)).status_code == 200


async def test_the_old_objects_go_when_their_last_link_has_ended_and_nothing_else(desk: Desk) -> None:
    sent = await desk.ready()
    image_id = await image_of(desk, sent)
    old_link = (await desk.get(f"/api/v1/image-jobs/{sent.job_id}")).json()["image_url"]
    job_id = await renewed(desk, sent)
    sweep = Succession(
        SuccessionSettings(seen_s=6.0, superseded_s=LINKS_END_S, rows_max=100),
        versions=versions_of(desk),
        objects=desk.line.objects,
    )
    await sweep.sweep_superseded()
    assert (await desk.line.http.get(old_link)).status_code == 200
    await desk.line.raw.execute(
        "UPDATE spillway.images SET superseded_at = superseded_at - make_interval(secs => $2) WHERE id = $1",
        image_id,
        LINKS_END_S + 1,
    )
    for _ in range(2):  # the second time there is nothing left to do
        await sweep.sweep_superseded()
    assert (await desk.line.http.get(old_link)).status_code == 404
    kept = set(await desk.line.objects.list_keys(f"images/{image_id}/", keys_max=100))
    assert kept == {original_key(image_id)} | {key for key in kept if key.startswith(job_prefix(image_id, job_id))}
    assert len(kept) == 1 + len(NEWER)
    assert await contents(desk, sent) == expected(NEWER)


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_what_an_attempt_in_vain_stored_is_swept_without_touching_the_image(desk: Desk, end: str) -> None:
    sent = await desk.ready()
    image_id = await image_of(desk, sent)
    before = set(await desk.line.objects.list_keys(f"images/{image_id}/", keys_max=100))
    job_id, token = await claimed_version(desk, sent)
    await store_version(desk, sent, job_id)
    if end == "cancelled":
        await desk.jobs.cancel(job_id, owner="ann")
        assert await desk.jobs.fail(job_id, claim_token=token, code=FailureCode.INTERNAL) is JobState.CANCELLED
    else:
        assert await desk.jobs.fail(job_id, claim_token=token, code=FailureCode.INTERNAL) is JobState.FAILED
        await expired(desk.line.raw, job_id)
    retention = Retention(desk.database, keep=KEEP, lease_s=30.0, rows_max=100)
    backlog = Backlog(desk.database, rows_max=100)
    await Cleaner(retention=retention, backlog=backlog, objects=desk.line.objects).sweep_gone()
    assert set(await desk.line.objects.list_keys(f"images/{image_id}/", keys_max=100)) == before
    assert await contents(desk, sent) == expected(VARIANTS)


async def test_erasing_takes_the_objects_of_all_versions(desk: Desk) -> None:
    sent = await desk.ready()
    image_id = await image_of(desk, sent)
    await renewed(desk, sent)
    assert (await desk.call("DELETE", f"/api/v1/images/{image_id}")).status_code == 204
    assert await desk.line.objects.list_keys(f"images/{image_id}/", keys_max=100) == []
    assert (await desk.get(sent.path)).status_code == 410


@pytest.fixture
async def line(roles: Roles, fresh_env: dict[str, str]) -> AsyncIterator[Line]:
    """A whole line of the test's own."""
    async with open_line(roles, fresh_env) as opened:
        yield opened


@dataclass(frozen=True, slots=True)
class Said:
    """What the command said, and its exit code."""

    code: int | None
    document: Any
    errors: str


async def spawn(line: Line, environment: Mapping[str, str], *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stack.cli", "jobs", *arguments),
        env={**environment, **line.env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def said(process: asyncio.subprocess.Process) -> Said:
    out, errors = await process.communicate()
    return Said(process.returncode, json.loads(out) if out else None, errors.decode())


async def command(line: Line, environment: Mapping[str, str], *arguments: str) -> Said:
    told = await said(await spawn(line, environment, *arguments, "--json"))
    assert told.document is not None, told.errors
    return told


async def test_a_new_result_is_made_from_the_published_original(line: Line, environment: Mapping[str, str]) -> None:
    await line.start("api", "relay", "janitor")
    (older,) = await line.start("worker", SPILLWAY_WEBP_QUALITY="30")
    job_ids = await line.accepted((1, 2))
    await line.wait_ready(job_ids)
    await line.assert_nothing_left_behind()
    await asyncio.to_thread(older.stop)
    await line.start_named("worker", name="worker-newer")
    told = await command(line, environment, "reprocess", "--all")
    assert (told.code, told.document["counts"]) == (0, {"queued": 2})
    made = [uuid.UUID(one["job_id"]) for one in told.document["outcomes"]]
    await line.wait_ready(made)
    for job_id in made:
        row = await line.row(job_id)
        source = line.sources[row["first_job_id"]]
        assert (row["held_bytes"], row["attempts_spent"], row["image_version"]) == (0, 0, 2)
        assert await line.sha256(original_key(row["image_id"])) == hashlib.sha256(source).hexdigest()
        keys = await line.objects.list_keys(job_prefix(row["image_id"], job_id), keys_max=100)
        stored = {key.rsplit("/", 1)[1]: await line.sha256(key) for key in keys}
        assert stored == await reference_hashes(source)
        old_keys = await line.objects.list_keys(job_prefix(row["image_id"], row["first_job_id"]), keys_max=100)
        assert await line.sha256(next(key for key in old_keys if "optimized" in key)) != stored["optimized.webp"]
    await line.assert_nothing_left_behind()


async def test_an_original_that_is_lost_fails_the_new_job_and_changes_nothing_else(
    line: Line, environment: Mapping[str, str]
) -> None:
    await line.start("api", "relay", "worker")
    (job_id,) = await line.accepted((1,))
    await line.wait_ready([job_id])
    before = await line.row(job_id)
    await line.objects.delete([original_key(before["image_id"])])
    told = await command(line, environment, "reprocess", str(before["image_id"]))
    made = uuid.UUID(told.document["outcomes"][0]["job_id"])
    row = await line.wait_state(made, "failed")
    assert row["error_code"] == "source_missing"
    assert dict(await line.row(job_id)) == dict(before)
    pointer = await line.raw.fetchval("SELECT ready_job_id FROM spillway.images WHERE id = $1", before["image_id"])
    assert pointer == job_id


async def test_many_images_wait_for_places_and_a_run_can_be_stopped_and_repeated(
    line: Line, environment: Mapping[str, str]
) -> None:
    await line.start("api", "relay", "janitor")
    (worker,) = await line.start("worker")
    job_ids = await line.accepted(range(8))
    await line.wait_ready(job_ids)
    await asyncio.to_thread(worker.stop)

    async def made() -> int:
        return int(await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE first_job_id IS NOT NULL"))

    full = await command(line, environment, "reprocess", "--all", "--wait-s", "0")
    places = await made()
    assert (full.code, full.document["ending"], full.document["counts"]) == (1, "no_place", {"queued": places})
    assert 0 < places < len(job_ids), "places are left for uploads"
    assert (await line.accepted((99,))) != []
    running = await spawn(line, environment, "reprocess", "--made-before", full.document["made_before"], "--json")
    await until(lambda: waits_for_a_place(line), what="the command asks for places")
    running.send_signal(signal.SIGINT)
    stopped = await said(running)
    assert (stopped.code, stopped.document["ending"]) == (1, "stopped")
    await line.start_named("worker", name="worker-again")
    rest = await command(line, environment, "reprocess", "--made-before", full.document["made_before"])
    assert (rest.code, rest.document["ending"]) == (0, "done")

    async def all_ready() -> bool:
        rows = await line.raw.fetch("SELECT state, image_version FROM spillway.jobs WHERE first_job_id IS NOT NULL")
        return len(rows) == len(job_ids) and {tuple(row) for row in rows} == {("ready", 2)}

    await until(all_ready, what="each image has one new result, and none has two")


async def waits_for_a_place(line: Line) -> bool:
    """Whether the command has asked the database lately."""
    return bool(
        await line.raw.fetchval(
            """SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'spillway-cli'
                AND datname = current_database() AND query LIKE '%spillway.reprocess(%')"""
        )
    )


async def test_the_command_says_what_is_not_so(line: Line, environment: Mapping[str, str]) -> None:
    unknown = uuid.uuid4()
    told = await command(line, environment, "reprocess", str(unknown))
    assert (told.code, told.document["counts"]) == (1, {"not_found": 1})
    for wrong in ((), ("--all", str(unknown)), ("--all", "--owner", "ann"), ("--all", "--made-before", "soon")):
        assert (await said(await spawn(line, environment, "reprocess", *wrong))).code == 2
    nothing = await said(await spawn(line, environment, "parked"))
    assert (nothing.code, nothing.errors.strip()) == (0, "0 of 0 parked jobs")


async def test_a_dry_run_changes_nothing_and_parked_jobs_are_listed(line: Line, environment: Mapping[str, str]) -> None:
    await line.start("api", "relay", "worker")
    (job_id,) = await line.accepted((1,))
    await line.wait_ready([job_id])
    dry = await command(line, environment, "reprocess", "--all", "--dry-run")
    assert (dry.code, dry.document["counts"], len(await line.rows())) == (0, {"queued": 1}, 1)
    assert "no live worker serves" not in dry.errors
    told = await command(line, environment, "reprocess", "--all", "--pipeline-version", "2")
    made = told.document["outcomes"][0]["job_id"]
    assert "no live worker serves pipeline version 2" in told.errors

    async def listed() -> Any:
        return (await command(line, environment, "parked")).document["jobs"]

    (job,) = await until(listed, what="the job is parked and listed")
    assert (job["job_id"], job["pipeline_version"], job["served"]) == (made, 2, False)
    again = await command(line, environment, "reprocess", "--all", "--pipeline-version", "2")
    assert (again.code, again.document["counts"]) == (0, {"in_work": 1})


@pytest.mark.parametrize(
    ("jobs_max", "slots", "expected"),
    [(None, 4, JOBS_PER_SLOT * 4), (1000, 4, JOBS_PER_SLOT * 4), (20, 4, 20 - FREE_PLACES), (8, 4, 1), (None, 0, 2)],
)
def test_new_results_leave_places_to_uploads(jobs_max: int | None, slots: int, expected: int) -> None:
    assert jobs_max_of(Bounds(jobs_max=jobs_max, staging_bytes_max=None), slots=slots) == expected
