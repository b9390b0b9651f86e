"""Cancel and erase: places and storage come back, nothing of an erased image is left, not even of a late writer."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping

import pytest

from app.core.jobstore import StoredVariant
from contracts.images import VariantName
from contracts.jobs import JobState
from contracts.keys import original_key, staging_key, variant_key
from stack.roles import Roles
from stack.servers import Servers
from tests.edge import open_edge
from tests.jobs_by_hand import IMAGES, JOBS, PHOTO, Hand, open_hand
from tests.line import Line, open_line, photo, until


@pytest.fixture(scope="module")
async def hand(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Hand]:
    async with open_edge(servers, environment) as line:
        opened = await open_hand(line)
        yield opened
        await opened.database.close()


async def attempt_written(hand: Hand, job_id: uuid.UUID) -> tuple[StoredVariant, ...]:
    """Write what an attempt may have written before it is stopped: the original and one variant."""
    image_id = await hand.image_of(job_id)
    key = variant_key(image_id, job_id, "0" * 12, VariantName.CROP)
    await hand.line.objects.put(key, b"crop", media_type="image/jpeg")
    await hand.line.objects.put(original_key(image_id), PHOTO, media_type="image/jpeg")
    return (StoredVariant(name=VariantName.CROP, key=key, sha256="ab" * 32, size_bytes=4, width=128, height=128),)


async def assert_nothing_is_left(hand: Hand, job_id: uuid.UUID) -> None:
    """After the sweeps: no object, no place and no byte of a job is left."""
    image_id = await hand.image_of(job_id)

    async def gone() -> bool:
        row = await hand.line.row(job_id)
        held = row["holds_place"] or row["held_bytes"]
        return not held and not await hand.keys_of(job_id, image_id)

    await until(gone, timeout_s=10, what="place, bytes and objects given back")


async def test_a_queued_job_is_cancelled_at_once(hand: Hand) -> None:
    job_id = await hand.queued()
    answer = await hand.ask("DELETE", f"{JOBS}/{job_id}")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert (answer.headers["cache-control"], "retry-after" in answer.headers) == ("no-store", False)
    assert not (await hand.line.row(job_id))["holds_place"]
    assert answer.json() == (await hand.read(job_id)).json()
    await assert_nothing_is_left(hand, job_id)


async def test_a_job_in_work_is_asked_to_stop_and_what_it_wrote_goes(hand: Hand) -> None:
    job_id, token = await hand.claimed()
    for _ in range(2):
        answer = await hand.ask("DELETE", f"{JOBS}/{job_id}")
        assert (answer.status_code, answer.json()["status"]) == (202, "cancelling")
        assert int(answer.headers["retry-after"]) >= 1
    written = await attempt_written(hand, job_id)
    assert await hand.jobs.complete(job_id, claim_token=token, variants=written) is JobState.CANCELLED
    final = (await hand.read(job_id)).json()
    assert (final["status"], "variants" in final, "error" in final) == ("cancelled", False, False)
    await assert_nothing_is_left(hand, job_id)


async def test_what_a_late_worker_writes_for_a_cancelled_job_is_swept_as_well(hand: Hand) -> None:
    job_id = await hand.cancelled()
    await assert_nothing_is_left(hand, job_id)
    await attempt_written(hand, job_id)
    await assert_nothing_is_left(hand, job_id)


@pytest.mark.parametrize("state", ["ready", "failed", "cancelled"])
async def test_what_is_final_cannot_be_cancelled(hand: Hand, state: str) -> None:
    makers = {"ready": hand.ready, "failed": hand.failed, "cancelled": hand.cancelled}
    job_id = await makers[state]()
    answer = await hand.ask("DELETE", f"{JOBS}/{job_id}")
    assert (answer.status_code, answer.json()["code"]) == (409, "already_final")
    assert (await hand.read(job_id)).json()["status"] == state


async def test_foreign_and_unknown_jobs_and_images_cannot_be_told_apart(hand: Hand) -> None:
    job_id = await hand.queued()
    ben = await hand.token_of("ben")
    for foreign, unknown in ((f"{JOBS}/{job_id}", JOBS), (f"{IMAGES}/{await hand.image_of(job_id)}", IMAGES)):
        theirs = await hand.ask("DELETE", foreign, token=ben)
        nobodys = await hand.ask("DELETE", f"{unknown}/{uuid.uuid4()}")
        assert (theirs.status_code, nobodys.status_code) == (404, 404)
        assert theirs.content == nobodys.content
    assert (await hand.line.row(job_id))["state"] == "queued"


async def test_an_erased_image_leaves_no_copy_and_no_key(hand: Hand) -> None:
    job_id = await hand.ready()
    image_id = await hand.image_of(job_id)
    await hand.line.raw.execute(
        "INSERT INTO spillway.idempotency_keys VALUES ('ann', 'image', $1, $2, 'ab', now() + interval '1 day')",
        str(job_id),
        job_id,
    )
    assert len(await hand.keys_of(job_id, image_id)) >= 4
    for _ in range(2):
        answer = await hand.ask("DELETE", f"{IMAGES}/{image_id}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert await hand.keys_of(job_id, image_id) == []
    assert await hand.line.raw.fetchval("SELECT count(*) FROM spillway.idempotency_keys WHERE job_id = $1", job_id) == 0
    for path in (f"{JOBS}/{job_id}", f"{IMAGES}/{image_id}"):
        answer = await hand.ask("GET", path)
        assert (answer.status_code, answer.json()["code"]) == (410, "expired")
    cancelled = await hand.ask("DELETE", f"{JOBS}/{job_id}")
    assert (cancelled.status_code, cancelled.json()["code"]) == (410, "expired")


@pytest.mark.parametrize("state", ["queued", "failed", "cancelled"])
async def test_an_image_without_a_result_is_erased_at_once(hand: Hand, state: str) -> None:
    makers = {"queued": hand.queued, "failed": hand.failed, "cancelled": hand.cancelled}
    job_id = await makers[state]()
    image_id = await hand.image_of(job_id)
    assert (await hand.ask("DELETE", f"{IMAGES}/{image_id}")).status_code == 204
    assert await hand.keys_of(job_id, image_id) == []
    assert (await hand.read(job_id)).status_code == 410
    await assert_nothing_is_left(hand, job_id)


async def test_erasing_an_image_in_work_stops_its_worker_first(hand: Hand) -> None:
    job_id, token = await hand.claimed()
    image_id = await hand.image_of(job_id)
    for _ in range(2):
        answer = await hand.ask("DELETE", f"{IMAGES}/{image_id}")
        assert (answer.status_code, answer.json()) == (202, {"image_id": str(image_id), "status": "erasing"})
        assert int(answer.headers["retry-after"]) >= 1
    assert (await hand.read(job_id)).json()["status"] == "cancelling"
    await hand.jobs.complete(job_id, claim_token=token, variants=await attempt_written(hand, job_id))
    assert (await hand.ask("DELETE", f"{IMAGES}/{image_id}")).status_code == 204
    assert await hand.keys_of(job_id, image_id) == []
    assert (await hand.read(job_id)).status_code == 410


async def test_an_erasure_that_nobody_asks_for_again_is_finished_by_the_janitor(hand: Hand) -> None:
    job_id, token = await hand.claimed()
    image_id = await hand.image_of(job_id)
    assert (await hand.ask("DELETE", f"{IMAGES}/{image_id}")).status_code == 202
    await hand.jobs.complete(job_id, claim_token=token, variants=await attempt_written(hand, job_id))
    await hand.line.wait_state(job_id, "expired", timeout_s=10)
    await assert_nothing_is_left(hand, job_id)
    assert (await hand.read(job_id)).status_code == 410


async def test_what_is_written_after_the_erasure_is_swept_a_lease_later(hand: Hand) -> None:
    job_id = await hand.ready()
    image_id = await hand.image_of(job_id)
    assert (await hand.ask("DELETE", f"{IMAGES}/{image_id}")).status_code == 204
    await attempt_written(hand, job_id)
    await hand.line.objects.put(staging_key(job_id), PHOTO, media_type="image/jpeg")
    assert len(await hand.keys_of(job_id, image_id)) == 3
    await assert_nothing_is_left(hand, job_id)


@pytest.fixture
async def whole(roles: Roles, fresh_env: dict[str, str]) -> AsyncIterator[Line]:
    async with open_line(roles, fresh_env) as line:
        yield line


async def test_a_real_worker_stops_when_its_job_is_cancelled(whole: Line) -> None:
    await whole.start("api", "janitor", "relay", "worker")
    accepted = await whole.upload(photo(1, width=4500, height=3000))
    job_id = uuid.UUID(accepted.json()["job_id"])
    await whole.wait_state(job_id, "processing", timeout_s=15)
    headers = {"Authorization": f"Bearer {whole.token}"}
    answer = await whole.http.delete(f"{whole.base_url}{JOBS}/{job_id}", headers=headers)
    assert (answer.status_code, answer.json()["status"]) == (202, "cancelling")
    await whole.wait_state(job_id, "cancelled", timeout_s=10)
    await whole.assert_nothing_left_behind()
    (next_id,) = await whole.accepted([2])
    await whole.wait_ready([next_id])


async def test_a_worker_frozen_over_the_erasure_leaves_nothing_when_it_goes_on(whole: Line) -> None:
    processes = await whole.start("api", "janitor", "relay", "worker")
    worker = next(process for process in processes if process.role == "worker")
    opened = await open_hand(whole)
    accepted = await whole.upload(photo(3, width=4500, height=3000))
    job_id = uuid.UUID(accepted.json()["job_id"])
    image_id = uuid.UUID(accepted.json()["image_id"])
    await whole.wait_state(job_id, "processing", timeout_s=15)
    worker.freeze()

    async def erased() -> bool:
        return (await opened.ask("DELETE", f"{IMAGES}/{image_id}")).status_code == 204

    assert not await erased()
    # The lease runs out, the janitor ends the job for the worker that sleeps, and the next call erases.
    await until(erased, timeout_s=15, what="erased")
    assert await opened.keys_of(job_id, image_id) == []
    worker.thaw()
    lease_s = 2

    async def swept_after_a_lease() -> bool:
        row = await whole.row(job_id)
        later = row["sweep_due_at"] is not None and (row["sweep_due_at"] - row["expired_at"]).total_seconds() > lease_s
        return later and row["held_bytes"] == 0

    await until(swept_after_a_lease, timeout_s=15, what="the second sweep")
    assert await opened.keys_of(job_id, image_id) == []
    (next_id,) = await whole.accepted([4])
    await asyncio.wait_for(whole.wait_ready([next_id]), timeout=30)
    assert await opened.keys_of(job_id, image_id) == []
    await opened.database.close()
