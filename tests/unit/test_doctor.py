"""What the doctor decides without a server: whose an object is, whether rows explain it, what two looks agree on."""

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from app.core.listing import Listed, Lister, listed_multiparts, listed_objects
from contracts.images import VariantName
from contracts.jobs import JobState
from contracts.keys import inbox_key, original_key, staging_key, variant_key
from stack.doctor_finds import EXPLANATIONS, Difference, Kind, lasting
from stack.doctor_judge import judge_object, may_be_joined
from stack.doctor_keys import OriginalObject, OurObject, SourceObject, VariantObject, our_object
from stack.doctor_rows import JobFacts

JOB, IMAGE = uuid.UUID(int=0xAB1), uuid.UUID(int=0xAB2)
DIGEST = "0123456789ab"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SOURCE, ORIGINAL, VARIANT = SourceObject(JOB), OriginalObject(IMAGE), VariantObject(IMAGE, JOB)


def job(state: JobState, *, held_bytes: int = 0, sweep_due: bool = False, results_gone: bool = False) -> JobFacts:
    return JobFacts(JOB, IMAGE, state, held_bytes, sweep_due, results_gone)


def judged(stands_for: OurObject, facts: JobFacts | None, *, needed: bool | None = None) -> Kind | None:
    jobs = {} if facts is None else {JOB: facts}
    return judge_object(stands_for, jobs=jobs, images={} if needed is None else {IMAGE: needed})


@pytest.mark.parametrize(
    ("key", "stands_for"),
    [
        (staging_key(JOB), SOURCE),
        (inbox_key(JOB), SOURCE),
        (original_key(IMAGE), ORIGINAL),
        *((variant_key(IMAGE, JOB, DIGEST, name), VARIANT) for name in VariantName),
    ],
)
def test_keys_that_our_functions_make_are_ours(key: str, stands_for: OurObject) -> None:
    assert our_object(key) == stands_for


@pytest.mark.parametrize(
    "key",
    [
        "",
        "health/probe",
        "staging/",
        f"staging/{str(JOB).upper()}",
        f"staging/{JOB.hex}",
        f"staging/{{{JOB}}}",
        f"staging/{JOB}/",
        f"staging/{JOB}\n",
        f"/staging/{JOB}",
        f"old-staging/{JOB}",
        f"images/{IMAGE}/",
        f"images/{IMAGE}/original/",
        f"images/{IMAGE}/original.jpg",
        f"images/{IMAGE}/{JOB}/{DIGEST}/thumbnail.webp",
        f"images/{IMAGE}/{JOB}/{DIGEST}/poster.jpg",
        f"images/{IMAGE}/{JOB}/{DIGEST.upper()}/crop.jpg",
        f"images/{IMAGE}/{JOB}/{DIGEST[1:]}/crop.jpg",
        f"images/{IMAGE}/{JOB}/{DIGEST}/x/crop.jpg",
    ],
)
def test_any_other_key_is_foreign(key: str) -> None:
    assert our_object(key) is None


def test_an_object_without_a_row_is_one() -> None:
    assert judged(SOURCE, None) is Kind.OBJECT_WITHOUT_ROW
    assert judged(VARIANT, None) is Kind.OBJECT_WITHOUT_ROW
    assert judged(ORIGINAL, None) is Kind.OBJECT_WITHOUT_ROW


def test_a_variant_under_another_image_than_its_jobs_has_no_row() -> None:
    assert judged(VariantObject(uuid.UUID(int=1), JOB), job(JobState.READY)) is Kind.OBJECT_WITHOUT_ROW


@pytest.mark.parametrize("state", list(JobState))
def test_a_staged_file_is_explained_while_its_bytes_are_booked(state: JobState) -> None:
    assert judged(SOURCE, job(state, held_bytes=9)) is None


@pytest.mark.parametrize("state", [JobState.READY, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED])
def test_a_staged_file_of_a_final_job_is_over_when_its_bytes_are_given_back(state: JobState) -> None:
    assert judged(SOURCE, job(state)) is Kind.OBJECT_AFTER_SWEEP
    assert judged(SOURCE, job(state, sweep_due=True)) is None


@pytest.mark.parametrize("state", [JobState.UPLOADING, JobState.DROPPED, JobState.QUEUED, JobState.PROCESSING])
def test_a_staged_file_of_an_unfinished_job_is_never_judged(state: JobState) -> None:
    assert judged(SOURCE, job(state)) is None


@pytest.mark.parametrize("state", list(JobState))
def test_a_variant_is_over_when_its_job_is_swept(state: JobState) -> None:
    swept = state in (JobState.CANCELLED, JobState.EXPIRED)
    assert judged(VARIANT, job(state)) is (Kind.OBJECT_AFTER_SWEEP if swept else None)
    assert judged(VARIANT, job(state, sweep_due=True)) is None


def test_a_variant_is_over_when_a_newer_result_stands_and_its_own_were_deleted() -> None:
    assert judged(VARIANT, job(JobState.READY, results_gone=True)) is Kind.OBJECT_AFTER_SWEEP


def test_an_original_is_over_when_no_job_of_its_image_needs_it() -> None:
    assert judged(ORIGINAL, None, needed=True) is None
    assert judged(ORIGINAL, None, needed=False) is Kind.OBJECT_AFTER_SWEEP


@pytest.mark.parametrize("state", list(JobState))
def test_parts_are_joined_by_an_upload_only(state: JobState) -> None:
    assert may_be_joined(job(state)) is (state in (JobState.UPLOADING, JobState.DROPPED))
    assert not may_be_joined(None)


def test_every_kind_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Kind)


def difference(subject: str, evidence: str, kind: Kind = Kind.BOOK_DIFFERS) -> Difference:
    return Difference(kind=kind, subject=subject, detail=f"{subject} {evidence}", evidence=evidence)


def test_only_what_both_looks_found_alike_lasts() -> None:
    first = [difference("a", "+1"), difference("b", "+1"), difference("c", "+1")]
    second = [difference("b", "+2"), difference("c", "+1"), difference("d", "+1"), difference("a", "+1")]
    assert [found.subject for found in lasting(first, second)] == ["a", "c"]


def answer(age_s: float, *, date: datetime | None = NOW) -> dict[str, object]:
    headers = {} if date is None else {"date": format_datetime(date, usegmt=True)}
    since = NOW - timedelta(seconds=age_s)
    return {
        "ResponseMetadata": {"HTTPHeaders": headers},
        "Contents": [{"Key": "k", "ETag": "e", "Size": 5, "LastModified": since}],
        "Uploads": [{"Key": "k", "UploadId": "e", "Initiated": since}],
    }


@pytest.mark.parametrize("read", [listed_objects, listed_multiparts])
def test_an_age_is_of_the_stores_own_clock(read: Callable[[Mapping[str, object]], list[Listed]]) -> None:
    (listed,) = read(answer(7.0))
    assert (listed.key, listed.mark, listed.age_s) == ("k", "e", 7.0)


def test_an_answer_without_a_date_tells_no_age() -> None:
    (listed,) = listed_objects(answer(7.0, date=None))
    assert listed.age_s is None


class Scripted(Lister):
    """A store that gives these answers one after the other."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, object]] = []

    async def _ask(self, operation: str, **query: object) -> dict[str, object]:
        self.asked.append({"operation": operation, **query})
        return self.answers.pop(0)


def object_page(*keys: str, token: str | None) -> dict[str, object]:
    contents = [{"Key": key, "ETag": "e", "Size": 5, "LastModified": NOW} for key in keys]
    more = {} if token is None else {"NextContinuationToken": token}
    return {"Contents": contents, "IsTruncated": token is not None, **more}


async def test_an_empty_page_is_not_the_last_one() -> None:
    """SeaweedFS gives such pages where folders were emptied."""
    store = Scripted(object_page("a", token="1"), object_page(token="2"), object_page("b", token=None))
    assert await store.list_keys("p", keys_max=10) == ["a", "b"]
    assert [query.get("ContinuationToken") for query in store.asked] == [None, "1", "2"]


async def test_a_store_that_goes_in_a_circle_is_left() -> None:
    store = Scripted(*(object_page("a", token="1") for _ in range(3)))
    assert await store.list_keys("p", keys_max=10) == ["a", "a"]


async def test_multiparts_go_on_from_the_last_one_where_the_store_does_not_say() -> None:
    first = {"Uploads": [{"Key": "k", "UploadId": "1", "Initiated": NOW}], "IsTruncated": True}
    store = Scripted(first, {"Uploads": [{"Key": "k", "UploadId": "2", "Initiated": NOW}]})
    assert [[listed.mark for listed in page] async for page in store.multipart_pages("p")] == [["1"], ["2"]]
    assert (store.asked[1]["KeyMarker"], store.asked[1]["UploadIdMarker"]) == ("k", "1")
