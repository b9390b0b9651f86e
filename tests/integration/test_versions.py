"""The versions of an image: what takes a place, what is shown, which result stands, and what is kept for how long."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from app.core.jobstore import EraseOutcome, ReplayOutcome
from app.core.registry import Registry
from app.core.versions import ReprocessOutcome, StandingFilter
from contracts.jobs import JobState
from tests.albums import HOUR_S, TERMS, WHO, Album, variants_of
from tests.books import DAY_S, NO_BOUNDS, OWNER, SOURCE, Books
from tests.line import until

KEEP_S = 60.0
ROWS_MAX = 100


@pytest.fixture
async def album(books: Books) -> AsyncIterator[Album]:
    """Images with results in books of their own."""
    yield Album.of(books)
    await books.raw.execute("TRUNCATE spillway.attachments, spillway.messages, spillway.audit CASCADE")


async def test_the_next_version_reads_the_original_and_takes_a_place_without_bytes(album: Album) -> None:
    image = await album.image()
    before = await album.books.gate()
    job_id = await album.reprocessed(image)
    row, first = await album.books.row(job_id), await album.books.row(image.first_id)
    assert (row["state"], row["image_version"], row["first_job_id"]) == ("queued", 2, image.first_id)
    assert [row[name] for name in ("image_id", "owner", "source_sha256", "source_bytes")] == [
        first[name] for name in ("image_id", "owner", "source_sha256", "source_bytes")
    ]
    assert await album.books.gate() == {**before, "jobs_held": before["jobs_held"] + 1}
    assert await album.books.announcements(job_id) == 1
    claim = await album.books.claimed(job_id)
    assert (claim.reads_original, claim.source_sha256) == (True, SOURCE.sha256)


async def test_who_asked_for_it_is_in_the_audit_of_both_jobs(album: Album) -> None:
    image = await album.image()
    job_id = await album.reprocessed(image)
    registry = Registry(album.books.database)
    for of in (image.first_id, job_id):
        (entry,) = await registry.audit_of(of)
        assert (entry.who, entry.action) == (WHO, "reprocess")


async def test_a_later_version_still_goes_back_to_the_first_job(album: Album) -> None:
    image = await album.image()
    await album.renewed(image)
    row = await album.books.row(await album.reprocessed(image))
    assert (row["image_version"], row["first_job_id"]) == (3, image.first_id)


async def test_without_a_place_nothing_is_left_behind(album: Album) -> None:
    image = await album.image()
    await album.books.queued()
    bounds = {
        ReprocessOutcome.BACKLOG_FULL: replace(TERMS, jobs_max=1),
        ReprocessOutcome.OWNER_LIMIT: replace(TERMS, owner_jobs_max=1),
    }
    for expected, terms in bounds.items():
        outcome, job_id = await album.versions.reprocess(image.image_id, terms=terms)
        assert outcome is expected
        assert await album.books.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE id = $1", job_id) == 0
        await album.books.assert_balanced()


async def test_what_has_no_result_has_no_next_one(album: Album) -> None:
    waiting = await album.books.row(await album.books.queued())
    broken = await album.books.claimed()
    await album.fail(broken)
    for image_id, expected in (
        (uuid.uuid4(), ReprocessOutcome.NOT_FOUND),
        (waiting["image_id"], ReprocessOutcome.NOT_READY),
        (broken.image_id, ReprocessOutcome.NOT_READY),
    ):
        outlook = await album.versions.outlook(image_id, pipeline_version=1)
        outcome, _ = await album.versions.reprocess(image_id, terms=TERMS)
        assert (outlook, outcome) == (expected, expected)


async def test_what_was_erased_has_no_next_one(album: Album) -> None:
    image = await album.image()
    await album.books.jobs.erase_image(image.image_id, owner=OWNER)
    assert (await album.versions.reprocess(image.image_id, terms=TERMS))[0] is ReprocessOutcome.NOT_READY


async def test_twenty_wishes_at_once_make_one_job(album: Album) -> None:
    image = await album.image()
    answers = await asyncio.gather(*(album.versions.reprocess(image.image_id, terms=TERMS) for _ in range(20)))
    outcomes = [outcome for outcome, _ in answers]
    assert (outcomes.count(ReprocessOutcome.QUEUED), outcomes.count(ReprocessOutcome.IN_WORK)) == (1, 19)


async def test_another_pipeline_version_may_be_on_its_way_too(album: Album) -> None:
    image = await album.image()
    job_ids = [await album.reprocessed(image, pipeline_version=version) for version in (1, 2)]
    versions = [(await album.books.row(job_id))["image_version"] for job_id in job_ids]
    assert versions == [2, 3]


@pytest.mark.parametrize("end", ["none", "fail", "cancel", "cancel in work"])
async def test_until_a_version_is_ready_nothing_that_is_seen_changes(album: Album, end: str) -> None:
    image = await album.image()
    await album.attach(image)
    before = await album.shown(image)
    claim = await album.claimed(image)
    assert await album.shown(image) == before
    if end == "fail":
        await album.fail(claim)
    elif end == "cancel in work":
        assert await album.books.jobs.cancel(claim.job_id, owner=OWNER) is JobState.CANCELLING
        assert await album.complete(claim) is JobState.CANCELLED
    elif end == "cancel":
        await album.fail(claim)
        queued = await album.reprocessed(image)
        assert await album.books.jobs.cancel(queued, owner=OWNER) is JobState.CANCELLED
    assert await album.shown(image) == before
    assert before[0].message_created_at is not None
    assert await album.books.views.changed([(image.first_id, before[0].version)]) == []


async def test_a_ready_version_is_shown_by_image_and_first_job_which_stays_ready(album: Album) -> None:
    image = await album.image()
    before = await album.view(image.first_id)
    newer = await album.renewed(image)
    first, standing = await album.view(image.first_id), await album.standing(image)
    assert (first.state, first.job_id, first.variants) == (JobState.READY, image.first_id, variants_of(newer))
    assert (standing.job_id, standing.variants) == (newer, variants_of(newer))
    assert first.version > before.version
    assert await album.books.views.changed([(image.first_id, before.version)]) == [(image.first_id, before.version)]
    assert await album.books.views.changed([(image.first_id, first.version)]) == []


@pytest.mark.parametrize("ends_first", ["newer", "older"])
async def test_a_newer_result_stands_in_whatever_order_the_two_end(album: Album, ends_first: str) -> None:
    image = await album.image()
    older = await album.claimed(image, pipeline_version=1)
    newer = await album.claimed(image, pipeline_version=2)
    for claim in (newer, older) if ends_first == "newer" else (older, newer):
        assert await album.complete(claim) is JobState.READY
    assert (await album.standing(image)).job_id == newer.job_id
    for job_id in (image.first_id, older.job_id, newer.job_id):
        view = await album.view(job_id)
        assert (view.state, view.variants) == (JobState.READY, variants_of(newer.job_id))


async def age_pointer(album: Album, seconds: float) -> None:
    await album.books.raw.execute(
        "UPDATE spillway.images SET superseded_at = superseded_at - make_interval(secs => $1)", seconds
    )


async def superseded(album: Album) -> set[uuid.UUID]:
    return {found.job_id for found in await album.versions.claim_superseded(keep_s=KEEP_S, rows_max=ROWS_MAX)}


@pytest.mark.parametrize("ends_first", ["newer", "older"])
async def test_results_that_the_pointer_left_or_passed_go_when_their_links_have_ended(
    album: Album, ends_first: str
) -> None:
    image = await album.image()
    older = await album.claimed(image, pipeline_version=1)
    newer = await album.claimed(image, pipeline_version=2)
    for claim in (newer, older) if ends_first == "newer" else (older, newer):
        await album.complete(claim)
    assert await superseded(album) == set()
    await age_pointer(album, KEEP_S + 1)
    found = await superseded(album)
    assert found == {image.first_id, older.job_id}
    assert await superseded(album) == found, "a crash before the note repeats it"
    assert await album.versions.note_results_gone(list(found)) == len(found)
    assert await superseded(album) == set()
    assert (
        await album.books.raw.fetchval("SELECT superseded_at FROM spillway.images WHERE id = $1", image.image_id)
        is None
    )
    # The rows themselves name what is there, also for readers that do not look at the pointer.
    for job_id in found:
        stored = await album.books.raw.fetchval("SELECT variants::text FROM spillway.jobs WHERE id = $1", job_id)
        assert str(newer.job_id) in stored


async def test_a_row_whose_objects_are_gone_follows_the_pointer_further(album: Album) -> None:
    image = await album.image()
    second = await album.renewed(image)
    await age_pointer(album, KEEP_S + 1)
    await album.versions.note_results_gone(list(await superseded(album)))
    third = await album.renewed(image)
    await age_pointer(album, KEEP_S + 1)
    assert await superseded(album) == {second}
    stored = await album.books.raw.fetchval("SELECT variants::text FROM spillway.jobs WHERE id = $1", image.first_id)
    assert str(third) in stored


async def test_all_results_of_an_image_expire_with_its_first_job(album: Album) -> None:
    image = await album.image()
    newer = await album.renewed(image)
    failed = await album.claimed(image)
    await album.fail(failed)
    waiting = await album.reprocessed(image)
    await album.age(image.first_id, hours=4.1)
    expired = await album.retention.expire_due()
    assert set(expired) == {image.first_id, newer, failed.job_id}
    claim = await album.books.claimed(waiting)
    assert await album.complete(claim) is JobState.READY
    assert await album.retention.expire_due() == [waiting], "one that ends later goes at once"


async def test_a_result_never_expires_by_its_own_age(album: Album) -> None:
    image = await album.image()
    newer = await album.renewed(image)
    await album.age(newer, hours=5)
    assert await album.retention.expire_due() == []
    view = await album.view(newer)
    assert view.finished_at is not None
    first = await album.books.row(image.first_id)
    assert view.kept_from == first["finished_at"]


async def test_a_version_that_failed_goes_alone_after_its_own_time(album: Album) -> None:
    image = await album.image()
    claim = await album.claimed(image)
    await album.fail(claim)
    await album.age(claim.job_id, hours=2.1)
    assert await album.retention.expire_due() == [claim.job_id]
    assert await album.state(image.first_id) == "ready"


async def test_all_results_live_as_long_as_the_message_that_names_the_image(album: Album) -> None:
    image = await album.image()
    newer = await album.renewed(image)
    message_id = await album.attach(image)
    await album.age(image.first_id, newer, hours=10)
    assert await album.retention.expire_due() == []
    view = await album.view(newer)
    assert view.message_created_at is not None
    await album.books.raw.execute(
        "UPDATE spillway.messages SET created_at = created_at - interval '25 hours' WHERE id = $1", message_id
    )
    assert await album.retention.expire_messages() == [message_id]
    assert {await album.state(job_id) for job_id in (image.first_id, newer)} == {"expired"}


async def test_an_image_in_somebodys_hands_is_left_whole_to_the_next_sweep(album: Album) -> None:
    image = await album.image()
    newer = await album.renewed(image)
    message_id = await album.attach(image)
    await album.books.raw.execute("UPDATE spillway.messages SET created_at = created_at - interval '25 hours'")
    async with album.books.raw.transaction():
        await album.books.raw.execute("SELECT 1 FROM spillway.jobs WHERE id = $1 FOR UPDATE", newer)
        assert await album.retention.expire_messages() == []
    assert await album.state(image.first_id) == "ready"
    assert await album.retention.expire_messages() == [message_id]


async def test_erasing_takes_all_versions_and_waits_for_the_one_in_work(album: Album) -> None:
    image = await album.image()
    newer = await album.renewed(image)
    claim = await album.claimed(image)
    assert await album.books.jobs.erase_image(image.image_id, owner=OWNER) is EraseOutcome.STOPPING
    assert await album.complete(claim) is JobState.CANCELLED
    assert await album.books.jobs.erase_image(image.image_id, owner=OWNER) is EraseOutcome.ERASED
    states = {await album.state(job_id) for job_id in (image.first_id, newer, claim.job_id)}
    assert states == {"expired"}


async def waits(album: Album) -> bool:
    return bool(await album.books.raw.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"))


async def test_a_version_made_while_an_erase_waits_is_not_overlooked(album: Album) -> None:
    image = await album.image()
    async with album.books.raw.transaction():
        terms = (image.image_id, uuid.uuid4(), 1, None, None, DAY_S, WHO)
        answer = await album.books.raw.fetchval("SELECT spillway.reprocess($1, $2, $3, $4, $5, $6, $7)", *terms)
        assert answer == "queued"
        erasing = asyncio.ensure_future(album.books.jobs.erase_image(image.image_id, owner=OWNER))
        await until(lambda: waits(album), what="the erase waits for the rows")
    assert await erasing is EraseOutcome.ERASED


async def test_a_failed_version_is_replayed_from_the_original(album: Album) -> None:
    image = await album.image()
    claim = await album.claimed(image)
    await album.fail(claim)
    outcome = await album.books.jobs.replay(claim.job_id, bounds=NO_BOUNDS, job_deadline_s=DAY_S, who=WHO)
    assert outcome is ReplayOutcome.QUEUED
    again = await album.books.claimed(claim.job_id)
    assert again.reads_original
    assert await album.complete(again) is JobState.READY
    assert (await album.standing(image)).job_id == claim.job_id


async def test_images_are_found_by_what_stands_for_them(album: Album) -> None:
    images = [await album.image() for _ in range(3)]
    await album.books.queued()
    newer = await album.claimed(images[0], pipeline_version=2)
    await album.complete(newer)
    moment: datetime = (await album.books.row(images[2].first_id))["finished_at"]
    every = {image.image_id for image in images}
    wanted = {
        StandingFilter(): every,
        StandingFilter(owner="nobody"): set(),
        StandingFilter(version_below=2): every - {images[0].image_id},
        StandingFilter(made_before=moment): {images[1].image_id},
        StandingFilter(made_before=moment + timedelta(seconds=HOUR_S)): every,
    }
    for given, expected in wanted.items():
        found: list[uuid.UUID] = []
        after = None
        while True:
            page = await album.versions.standing(given, after=after, rows_max=2)
            found += page.image_ids
            if (after := page.next_after) is None:
                break
        assert (set(found), len(found)) == (expected, len(expected)), given
