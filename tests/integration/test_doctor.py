"""The doctor: whatever database, store and broker can disagree on is found, explained and mended; nothing else is."""

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest

from app.core.backlog import Backlog
from app.core.jobstore import AdmitOutcome, Reservation
from app.core.listing import Listed
from app.core.objects import ObjectStore
from app.core.parts import Part
from app.core.settings import Settings
from contracts.images import VariantName
from contracts.keys import inbox_key, original_key, staging_key, variant_key
from stack.bench_target import settings_from
from stack.doctor import DOUBT_OBJECTS_MIN, Finding, Order, examine
from stack.doctor_finds import Kind
from stack.roles import Roles
from stack.servers import Servers
from tests.books import NO_BOUNDS
from tests.conftest import TEMPLATE_DATABASE
from tests.jobs_by_hand import Hand, open_hand
from tests.line import FINAL, QUICK, Line, open_line, photo, until
from tests.repo.tidy.sources import ROOT

LEASE_S = 2.0
DIGEST = "0" * 12
#: Beside the load the doctor looks until it has judged so many objects in one look.
JUDGED_OBJECTS_MIN = 100


@asynccontextmanager
async def own_line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    """Lend a line whose bucket is its own too: to a doctor, objects of other databases have no row."""
    assert servers.postgres is not None
    name = f"d{uuid.uuid4().hex[:12]}"
    url = await asyncio.to_thread(servers.postgres.create_database, name, template=TEMPLATE_DATABASE)
    env = {**servers.env(), "SPILLWAY_DATABASE_URL": url, "SPILLWAY_BROKER_PREFIX": name, "SPILLWAY_S3_BUCKET": name}
    roles = Roles(servers, environment, env=env)
    try:
        async with open_line(roles, env) as line:
            await line.objects.ensure_bucket()
            yield line
    finally:
        await asyncio.to_thread(roles.kill)


@pytest.fixture(scope="module")
async def kept_hand(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Hand]:
    """Jobs moved by hand: only the API runs."""
    async with own_line(servers, environment) as line:
        await line.start("api")
        opened = await open_hand(line)
        yield opened
        await opened.database.close()


@pytest.fixture
async def hand(kept_hand: Hand) -> Hand:
    """A system without a job, a file or a part of one."""
    line = kept_hand.line
    await line.raw.execute(
        """TRUNCATE spillway.jobs, spillway.outbox, spillway.images, spillway.owners;
        UPDATE spillway.gate SET jobs_held = 0, staging_bytes = 0, failed_source_bytes = 0"""
    )
    await line.objects.delete(await line.objects.list_keys("", keys_max=1000))
    await line.objects.abort_multiparts_of("staging/")
    return kept_hand


def settings_of(line: Line, **env: str) -> Settings:
    return settings_from({**line.env, **QUICK, **env})


async def doctor(line: Line, *, mend: bool = False, **env: str) -> Finding:
    return await examine(settings_of(line, **env), Order(mend=mend), tell=lambda _: None)


def found(finding: Finding) -> dict[Kind, set[str]]:
    kinds: dict[Kind, set[str]] = {}
    for difference in finding.differences:
        kinds.setdefault(difference.kind, set()).add(difference.subject)
    return kinds


async def put(objects: ObjectStore, key: str) -> str:
    await objects.put(key, b"bytes", media_type="application/octet-stream")
    return key


async def grow_old(line: Line) -> None:
    """Wait until everything that is in the store is older than a lease, by the store's clock."""

    async def old() -> bool:
        listed = [entry async for page in line.objects.pages("") for entry in page]
        listed += await multiparts(line)
        return all(entry.age_s is not None and entry.age_s > LEASE_S for entry in listed)

    await until(old, what="everything is older than a lease")


async def multiparts(line: Line) -> list[Listed]:
    return [upload async for page in line.objects.multipart_pages("staging/") for upload in page]


async def make_objects(hand: Hand) -> dict[Kind, set[str]]:
    """Leave objects and parts that no row explains; return what is to be found."""
    line, nobody, image = hand.line, uuid.uuid4(), uuid.uuid4()
    rowless = [staging_key(nobody), inbox_key(nobody), original_key(image)]
    rowless.append(variant_key(image, nobody, DIGEST, VariantName.CROP))
    for key in rowless:
        await put(line.objects, key)
    ready, cancelled, waiting = await hand.ready(), await hand.cancelled(), await hand.queued()
    await Backlog(hand.database, rows_max=10).give_bytes_back([ready])
    await line.raw.execute("UPDATE spillway.jobs SET sweep_due_at = NULL WHERE id = $1", cancelled)
    await put(line.objects, late := variant_key(await hand.image_of(cancelled), cancelled, DIGEST, VariantName.CROP))
    for job_id in (nobody, waiting):
        await start_parts(line, job_id)
    return {
        Kind.OBJECT_WITHOUT_ROW: set(rowless),
        Kind.OBJECT_AFTER_SWEEP: {staging_key(ready), late},
        Kind.UNFINISHED_MULTIPART: {staging_key(nobody), staging_key(waiting)},
    }


async def start_parts(line: Line, job_id: uuid.UUID) -> str:
    return await line.objects.start_multipart(staging_key(job_id), media_type="application/octet-stream")


async def lose_objects(hand: Hand) -> dict[Kind, set[str]]:
    """Delete what rows say is there; return what is to be found."""
    waiting, failed, first, second = await hand.queued(), await hand.failed(), await hand.ready(), await hand.ready()
    original = original_key(await hand.image_of(first))
    variant = variant_key(await hand.image_of(second), second, DIGEST, VariantName.OPTIMIZED)
    await hand.line.objects.delete([staging_key(waiting), staging_key(failed), original, variant])
    return {
        Kind.SOURCE_MISSING: {str(waiting)},
        Kind.FAILED_SOURCE_MISSING: {str(failed)},
        Kind.ORIGINAL_MISSING: {original},
        Kind.VARIANT_MISSING: {variant},
    }


async def cook_books(hand: Hand) -> dict[Kind, set[str]]:
    """Change books, shares and announcements by hand; return what is to be found."""
    raw, ready, silent, lost = hand.line.raw, await hand.ready(), await hand.queued(), await hand.queued()
    await raw.execute("UPDATE spillway.gate SET jobs_held = jobs_held + 3, staging_bytes = staging_bytes + 1000")
    await raw.execute("UPDATE spillway.gate SET failed_source_bytes = failed_source_bytes + 7")
    await raw.execute("UPDATE spillway.owners SET jobs_held = jobs_held + 2 WHERE owner = 'ann'")
    await raw.execute("INSERT INTO spillway.owners VALUES ('bob', 1)")
    await raw.execute("DELETE FROM spillway.outbox WHERE job_id = ANY ($1)", [silent, lost])
    await raw.execute(
        """INSERT INTO spillway.outbox (job_id, available_at, created_at)
        SELECT $1, now() - interval '1 hour', now() - interval '1 hour'""",
        ready,
    )
    await raw.execute("UPDATE spillway.jobs SET due_at = now() - interval '1 hour' WHERE id = ANY ($1)", [silent])
    await raw.execute("UPDATE spillway.jobs SET published_at = now() - interval '1 hour' WHERE id = $1", lost)
    return {
        Kind.BOOK_DIFFERS: {"gate.jobs_held", "gate.staging_bytes", "gate.failed_source_bytes"},
        Kind.SHARE_DIFFERS: {"ann", "bob"},
        Kind.NEEDLESS_ANNOUNCEMENT: {str(ready)},
        Kind.NEVER_ANNOUNCED: {str(silent)},
        Kind.MESSAGES_MISSING: {"messages"},
    }


async def test_every_kind_is_found_and_mended_and_then_nothing_is_found(hand: Hand) -> None:
    line = hand.line
    expected = {**await make_objects(hand), **await lose_objects(hand), **await cook_books(hand)}
    assert set(expected) == set(Kind) - {Kind.GATE_MISSING}, "without a gate there is nothing that could differ"
    await grow_old(line)

    # No worker is there whose reports it would have to wait for.
    look = partial(doctor, line, SPILLWAY_PROCESS_SEEN_S="0.1")
    looked = await look()
    assert found(looked) == expected
    assert looked.mended == frozenset()
    assert found(await look()) == expected, "a look without --mend changed something"

    mended = await look(mend=True)
    assert found(mended) == expected
    assert {difference.kind for difference in mended.left} == {Kind.ORIGINAL_MISSING}
    (original,) = expected[Kind.ORIGINAL_MISSING]
    await put(line.objects, original)

    assert found(await look()) == {}
    states = {row["id"]: (row["state"], row["error_code"]) for row in await line.rows()}
    (lost,) = expected[Kind.SOURCE_MISSING]
    assert states[uuid.UUID(lost)] == ("failed", "source_missing")
    (waiting,) = expected[Kind.UNFINISHED_MULTIPART] & {staging_key(job_id) for job_id in states}
    assert await line.objects.exists(waiting), "the object under the key of the aborted parts"


async def test_a_missing_variant_is_made_anew_by_a_worker(servers: Servers, environment: Mapping[str, str]) -> None:
    async with own_line(servers, environment) as line:
        await line.start("api", "relay", "worker", "janitor")
        (job_id,) = await line.accepted([1])
        await line.wait_ready([job_id])
        keys = [variant["key"] for variant in json.loads((await line.row(job_id))["variants"])]
        await line.objects.delete(keys[:1])
        assert found(await doctor(line, mend=True)) == {Kind.VARIANT_MISSING: {keys[0]}}
        image_id = (await line.row(job_id))["image_id"]

        async def replaced() -> bool:
            standing = await line.raw.fetchval("SELECT ready_job_id FROM spillway.images WHERE id = $1", image_id)
            return bool(standing != job_id)

        await until(replaced, what="the image's next version is ready")
        assert found(await doctor(line)) == {}


async def test_foreign_objects_are_counted_and_never_touched(hand: Hand) -> None:
    line, nobody = hand.line, uuid.uuid4()
    keys = [
        "staging/readme.txt",
        f"staging/{nobody}.bak",
        f"staging/{str(nobody).upper()}",
        f"inbox/{nobody}/part",
        f"images/{nobody}/original.jpg",
        f"images/{nobody}/{nobody}/{DIGEST}/thumbnail.png",
        f"images/{nobody}/{nobody}/{DIGEST}/poster.jpg",
        f"images/{nobody}/{nobody}/xyz/crop.jpg",
        "elsewhere/thing",
    ]
    for key in keys:
        await put(line.objects, key)
    upload_id = await line.objects.start_multipart("staging/foreign", media_type="text/plain")
    await grow_old(line)
    finding = await doctor(line, mend=True)
    assert found(finding) == {}
    assert finding.tally.foreign == len(keys) - 1 + 1, "those outside our prefixes are not even listed"
    assert set(await line.objects.list_keys("", keys_max=100)) == set(keys)
    assert [upload.mark for upload in await multiparts(line)] == [upload_id]


@pytest.mark.parametrize("keys_max", [1, 2, 5])
async def test_a_listing_is_whole_and_in_order_however_small_its_pages(hand: Hand, keys_max: int) -> None:
    """Keys under keys, and folders that were emptied: the walk beside the rows counts on the order of ids."""
    objects, ids = hand.line.objects, [uuid.UUID(int=number << 100) for number in range(12)]
    keys = [original_key(id_) for id_ in ids] + [variant_key(id_, id_, DIGEST, VariantName.CROP) for id_ in ids]
    for key in keys:
        await put(objects, key)
    emptied = {key for id_ in ids[2:8] for key in keys if str(id_) in key}
    await objects.delete(sorted(emptied))
    pages = [page async for page in objects.pages("images/", keys_max=keys_max)]
    assert max(len(page) for page in pages) <= keys_max
    listed = [entry.key for page in pages for entry in page]
    assert sorted(listed) == sorted(set(keys) - emptied)
    assert [key.split("/")[1] for key in listed] == sorted(key.split("/")[1] for key in listed)


async def test_nothing_young_is_judged(hand: Hand) -> None:
    key = await put(hand.line.objects, staging_key(uuid.uuid4()))
    order = Order(mend=True, older_than_s=3600.0)
    finding = await examine(settings_of(hand.line), order, tell=lambda _: None)
    assert (found(finding), finding.tally.young) == ({}, 1)
    assert await hand.line.objects.exists(key)


async def test_what_an_upload_has_in_hand_is_left_alone_however_old(hand: Hand) -> None:
    line = hand.line
    reservation = Reservation(
        job_id=uuid.uuid4(), image_id=uuid.uuid4(), owner="ann", upload_token=uuid.uuid4(), held_bytes=9
    )
    outcome = await hand.jobs.admit(reservation, bounds=NO_BOUNDS, lease_s=60, deadline_s=60)
    assert outcome is AdmitOutcome.ADMITTED
    upload_id = await start_parts(line, reservation.job_id)
    await line.objects.put_part(staging_key(reservation.job_id), upload_id=upload_id, number=1, body=part(b"first"))
    await put(line.objects, inbox_key(reservation.job_id))
    await grow_old(line)
    assert found(await doctor(line, mend=True)) == {}
    assert [upload.mark for upload in await multiparts(line)] == [upload_id]


def part(data: bytes) -> Part:
    filled = Part()
    filled.write(memoryview(data))
    return filled


async def test_what_only_one_look_finds_does_not_count(hand: Hand) -> None:
    """Something that puts itself right between the looks is nobody's business."""
    line = hand.line
    await put(line.objects, key := staging_key(uuid.uuid4()))
    await line.raw.execute("UPDATE spillway.gate SET jobs_held = jobs_held + 1")
    await grow_old(line)

    async def put_right() -> None:
        await line.objects.delete([key])
        await line.raw.execute("UPDATE spillway.gate SET jobs_held = jobs_held - 1")

    said: list[str] = []
    righting: list[asyncio.Task[None]] = []

    def tell(text: str) -> None:
        said.append(text)
        if "second look" in text:
            righting.append(asyncio.ensure_future(put_right()))

    finding = await examine(settings_of(line), Order(), tell=tell)
    assert [text for text in said if text.startswith("2 found")]
    await asyncio.gather(*righting)
    assert found(finding) == {}


async def test_a_store_whose_objects_have_no_rows_here_is_doubted(hand: Hand) -> None:
    keys = {await put(hand.line.objects, staging_key(uuid.uuid4())) for _ in range(DOUBT_OBJECTS_MIN)}
    await grow_old(hand.line)
    finding = await doctor(hand.line, mend=True)
    assert finding.doubted
    assert {difference.subject for difference in finding.left} == keys
    assert set(await hand.line.objects.list_keys("staging/", keys_max=100)) == keys


async def test_beside_load_nothing_is_found(servers: Servers, environment: Mapping[str, str]) -> None:
    """Uploads, work, cancels, images that fail, and sweeps go on while one look follows the other."""
    async with own_line(servers, environment) as line:
        await line.start("api", "relay", "worker", "janitor")
        stop = asyncio.Event()

        async def load(seed: int) -> None:
            while not stop.is_set():
                seed += 2
                answer = await line.upload(photo(seed, width=160, height=120) if seed % 5 else b"\xff\xd8\xff broken")
                if answer.status_code == httpx.codes.ACCEPTED and seed % 7 == 0:
                    await cancel(line, answer.json()["job_id"])

        looks: list[Finding] = []
        async with asyncio.TaskGroup() as group:
            for first in range(2):
                group.create_task(load(first))
            while not looks or looks[-1].tally.objects - looks[-1].tally.young < JUDGED_OBJECTS_MIN:
                looks.append(await doctor(line, mend=True))
            stop.set()
        assert [found(look) for look in looks if look.differences] == []

        async def all_final() -> bool:
            return {row["state"] for row in await line.rows()} <= FINAL

        await until(all_final, what="all jobs final")
        assert {row["state"] for row in await line.rows()} == FINAL
        assert found(await doctor(line)) == {}


async def cancel(line: Line, job_id: str) -> None:
    path = f"{line.base_url}/api/v1/image-jobs/{job_id}"
    await line.http.delete(path, headers={"Authorization": f"Bearer {line.token}"})


def run_command(line: Line, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "stack.cli", "doctor", *arguments],
        env={**line.env, **QUICK, "PATH": "", **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_command_tells_by_its_exit_code(hand: Hand) -> None:
    line = hand.line
    clean = await asyncio.to_thread(run_command, line)
    assert (clean.returncode, clean.stdout) == (0, "")
    assert "no differences" in clean.stderr
    await put(line.objects, key := staging_key(uuid.uuid4()))
    await grow_old(line)
    seen = await asyncio.to_thread(run_command, line, "--json", "--older-than-s=1")
    assert seen.returncode == 1
    document = json.loads(seen.stdout)
    (difference,) = document["differences"]
    assert (difference["kind"], difference["subject"], difference["mended"]) == ("object_without_row", key, False)
    assert all(difference[name] for name in ("what", "cause", "remedy", "since", "detail"))
    assert (document["left"], document["looked_at"]["objects"]) == (1, 1)
    mended = await asyncio.to_thread(run_command, line, "--mend")
    assert mended.returncode == 0
    assert key in mended.stderr
    assert "(mended)" in mended.stderr
    assert not await line.objects.exists(key)
    for variable in ("SPILLWAY_DATABASE_URL", "SPILLWAY_S3_ENDPOINT_URL"):
        away = await asyncio.to_thread(
            run_command, line, **{variable: line.env[variable].replace("127.0.0.1", "127.0.0.2")}
        )
        assert away.returncode == 3, away.stderr
        assert "Is the stack up?" in away.stderr
