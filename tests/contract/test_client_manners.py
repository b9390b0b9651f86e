"""The client's manners, against a server that says by a script what no healthy instance can be made to say."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.client import open_client, submit_files
from app.submission import Ending, Patience, Progress, Submission
from tests.polling import eventually
from tests.scripted_server import Reply, Script, scripted

JOB = "/api/v1/image-jobs/7"
UPLOAD, LOOK = "POST /api/v1/images", f"GET {JOB}"
THUMB = b"a thumbnail, let us say"
QUICK = Patience(poll_pauses_s=(0.01, 0.02), refused_pause_s=0.02, deadline_s=20.0)
TOKEN = "sesame"


def problem(code: str, *, status: int, wait: str | None = None) -> Reply:
    headers = {"Content-Type": "application/problem+json", **({} if wait is None else {"Retry-After": wait})}
    return Reply(status=status, headers=headers, body=json.dumps({"code": code, "detail": "So it is."}).encode())


def accepted(**headers: str) -> Reply:
    body = json.dumps({"job_id": "7", "image_id": "8", "status": "queued", "message": "In."}).encode()
    return Reply(status=202, headers={"Location": JOB, **headers}, body=body)


def job(status: str, *, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return Reply(headers=headers or {}, body=json.dumps({"job_id": "7", "status": status, **fields}).encode())


def ready(url: str, *, sha256: str) -> Reply:
    variant = {"url": url, "sha256": sha256, "media_type": "image/jpeg"}
    return job("ready", variants={"thumbnail": variant})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"\xff\xd8 a photo \xff\xd9" * 1000)
    return path


async def submit(script: Script, file: Path, *, wait: bool = True, **options: Any) -> Submission:
    options = {"patience": QUICK, **options}
    (submission,) = await submit_files([file], url=script.url, token=TOKEN, wait=wait, **options)
    return submission


async def test_every_try_carries_the_same_key_and_the_digest_of_the_file(file: Path) -> None:
    tries = [Reply(status=None), problem("backlog_full", status=503), problem("internal", status=500), accepted()]
    async with scripted({UPLOAD: tries}) as script:
        submission = await submit(script, file, wait=False)
    keys = {asked.headers["idempotency-key"] for asked in script.asked}
    assert (submission.ending, submission.tries, len(script.asked)) == (Ending.ACCEPTED, 4, 4)
    assert keys == {submission.key}
    assert {asked.headers["repr-digest"][:9] for asked in script.asked} == {"sha-256=:"}


async def test_two_files_have_two_keys(file: Path) -> None:
    async with scripted({UPLOAD: [accepted()]}) as script:
        first, second = await submit_files([file, file], url=script.url, token=TOKEN)
    assert first.key != second.key


async def test_a_key_that_is_still_in_use_is_waited_for_and_its_replay_is_told(file: Path) -> None:
    replayed = accepted(**{"Idempotency-Replayed": "true"})
    async with scripted({UPLOAD: [problem("key_in_use", status=409, wait="1"), replayed]}) as script:
        submission = await submit(script, file, wait=False)
    first, second = script.asked
    assert (submission.ending, submission.replayed) == (Ending.ACCEPTED, True)
    assert second.at_s - first.at_s >= 1.0


@pytest.mark.parametrize(("code", "status"), [("key_conflict", 409), ("too_many_bytes", 413), ("forbidden", 403)])
async def test_what_no_other_try_changes_is_not_tried_again(file: Path, code: str, status: int) -> None:
    async with scripted({UPLOAD: [problem(code, status=status)]}) as script:
        submission = await submit(script, file)
    assert (submission.ending, submission.code, len(script.asked)) == (Ending.REJECTED, code, 1)


async def test_the_first_look_comes_no_earlier_than_told(file: Path) -> None:
    async with scripted({UPLOAD: [accepted(**{"Retry-After": "1"})], LOOK: [job("ready")]}) as script:
        submission = await submit(script, file)
    post, look = script.asked
    assert submission.ending is Ending.READY
    assert 1.0 <= look.at_s - post.at_s < 3.0


async def test_states_that_it_does_not_know_are_waited_out(file: Path) -> None:
    looks = [job("polishing"), job("cancelling"), job("processing"), job("cancelled"), job("ready")]
    async with scripted({UPLOAD: [accepted()], LOOK: looks}) as script:
        submission = await submit(script, file)
    assert submission.ending is Ending.CANCELLED
    assert len(script.of("GET")) == 4


@pytest.mark.parametrize(
    ("status", "code"), [(404, "not_found"), (410, "expired"), (401, "unauthenticated"), (403, "forbidden")]
)
async def test_a_job_that_is_gone_or_not_ours_ends_the_wait(file: Path, status: int, code: str) -> None:
    async with scripted({UPLOAD: [accepted()], LOOK: [problem(code, status=status)]}) as script:
        submission = await submit(script, file)
    assert (submission.ending, submission.code, len(script.of("GET"))) == (Ending.GONE, code, 1)


async def test_passing_troubles_of_the_server_are_waited_out(file: Path) -> None:
    looks = [Reply(status=None), problem("dependency_unavailable", status=503), Reply(body=b"no json"), job("ready")]
    async with scripted({UPLOAD: [accepted()], LOOK: looks}) as script:
        assert (await submit(script, file)).ending is Ending.READY


async def test_a_refused_look_is_repeated_no_earlier_than_told(file: Path) -> None:
    looks = [problem("rate_limited", status=429, wait="1"), job("ready")]
    async with scripted({UPLOAD: [accepted()], LOOK: looks}) as script:
        assert (await submit(script, file)).ending is Ending.READY
    first, second = script.of("GET")
    assert second.at_s - first.at_s >= 1.0


async def test_a_server_that_stays_silent_about_the_job_is_given_up(file: Path) -> None:
    async with scripted({UPLOAD: [accepted()], LOOK: [Reply(status=None)]}) as script:
        submission = await submit(script, file)
    assert (submission.ending, submission.job_id) == (Ending.UNREACHABLE, "7")
    assert "broke off" in str(submission.message)


async def test_a_server_that_keeps_failing_is_told_by_its_status(file: Path) -> None:
    async with scripted({UPLOAD: [accepted()], LOOK: [Reply(status=500, body=b"")]}) as script:
        submission = await submit(script, file)
    assert (submission.ending, submission.job_id, submission.ok) == (Ending.SERVER_ERROR, "7", False)
    assert submission.message == "the server answered 500 Said"
    async with scripted({UPLOAD: [Reply(status=500, body=b"")]}) as script:
        submission = await submit(script, file)
    assert (submission.ending, submission.message) == (Ending.REFUSED, "the server answered 500 Said")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(status=None), "broke off"),
        (None, "nobody answers"),
        (Reply(headers={"Content-Length": "x"}), "broke off"),
    ],
)
async def test_why_there_is_no_answer_is_said_in_words(file: Path, reply: Reply | None, said: str) -> None:
    async with scripted({UPLOAD: [reply or Reply()], LOOK: [Reply(status=None)]}) as script:
        address = script.url
        if reply is not None:
            submission = await submit(script, file)
    if reply is None:
        (submission,) = await submit_files([file], url=address, token=TOKEN, patience=QUICK)
    assert submission.ending is Ending.UNREACHABLE
    assert said in str(submission.message)


async def test_a_job_whose_address_is_none_is_given_up(file: Path) -> None:
    async with scripted({UPLOAD: [accepted(Location="http://[::1")]}) as script:
        submission = await submit(script, file)
    assert (submission.ending, "named no address" in str(submission.message)) == (Ending.UNREACHABLE, True)


async def test_the_deadline_ends_everything_and_tells_which_job_goes_on(file: Path) -> None:
    patience = Patience(poll_pauses_s=(0.01,), deadline_s=0.5)
    async with scripted({UPLOAD: [accepted()], LOOK: [job("processing")]}) as script:
        submission = await submit(script, file, patience=patience)
    assert (submission.ending, submission.job_id, submission.ok) == (Ending.TIMED_OUT, "7", False)


async def test_a_cancelled_submission_asks_nothing_more(file: Path) -> None:
    async with (
        scripted({UPLOAD: [accepted()], LOOK: [job("processing")]}) as script,
        open_client(url=script.url, token=TOKEN, patience=QUICK) as client,
    ):
        submitting = asyncio.create_task(client.submit(file, wait=True))
        await eventually(lambda: len(script.of("GET")) >= 3)
        submitting.cancel()
        await asyncio.wait({submitting})
        asked = len(script.asked)
        await asyncio.sleep(0.1)
        assert submitting.cancelled()
        assert len(script.asked) == asked


async def test_the_token_goes_only_to_the_address_that_was_named(file: Path, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(THUMB).hexdigest()
    async with scripted({f"GET {JOB}": [job("ready")], "GET /thumb": [Reply(body=THUMB)]}) as elsewhere:
        replies = {
            UPLOAD: [accepted(Location=f"{elsewhere.url}{JOB}")],
            LOOK: [ready(f"{elsewhere.url}/thumb", sha256=sha256)],
        }
        async with scripted(replies) as script:
            submission = await submit(script, file, save_dir=tmp_path / "out")
    assert submission.ending is Ending.READY
    assert {asked.headers.get("authorization") for asked in script.asked} == {f"Bearer {TOKEN}"}
    assert [(asked.path, asked.headers.get("authorization")) for asked in elsewhere.asked] == [("/thumb", None)]


async def test_a_result_is_saved_when_its_hash_is_right(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "new/out"
    replies = {UPLOAD: [accepted()], "GET /thumb": [Reply(body=THUMB[:5]), Reply(body=THUMB)]}
    async with scripted(replies) as script:
        script.replies[LOOK] = [ready(f"{script.url}/thumb", sha256=hashlib.sha256(THUMB).hexdigest())]
        submission = await submit(script, file, save_dir=out)
    assert (submission.ending, submission.saved) == (Ending.READY, (out / "photo.thumbnail.jpg",))
    assert [path.name for path in out.iterdir()] == ["photo.thumbnail.jpg"]
    assert submission.saved[0].read_bytes() == THUMB


async def test_a_result_with_another_hash_is_not_kept(file: Path, tmp_path: Path) -> None:
    replies = {UPLOAD: [accepted()], "GET /thumb": [Reply(body=b"something else")]}
    async with scripted(replies) as script:
        script.replies[LOOK] = [ready(f"{script.url}/thumb", sha256=hashlib.sha256(THUMB).hexdigest())]
        submission = await submit(script, file, save_dir=tmp_path / "out")
    assert (submission.ending, submission.ok, submission.saved) == (Ending.SPOILED, False, ())
    assert list((tmp_path / "out").iterdir()) == []


async def test_links_that_have_run_out_are_read_anew(file: Path, tmp_path: Path) -> None:
    replies = {UPLOAD: [accepted()], "GET /old": [Reply(status=403)], "GET /new": [Reply(body=THUMB)]}
    async with scripted(replies) as script:
        sha256 = hashlib.sha256(THUMB).hexdigest()
        script.replies[LOOK] = [ready(f"{script.url}{path}", sha256=sha256) for path in ("/old", "/new")]
        assert (await submit(script, file, save_dir=tmp_path / "out")).ending is Ending.READY


async def test_progress_tells_bytes_states_and_the_end(file: Path) -> None:
    told: list[Progress] = []
    async with scripted({UPLOAD: [accepted()], LOOK: [job("processing"), job("ready")]}) as script:
        await submit(script, file, on_progress=told.append)
    texts: Sequence[str] = [progress.text for progress in told]
    assert "uploading 100 %" in texts
    assert texts[-3:] == ["accepted", "processing", "ready"]
    assert [progress.over for progress in told].count(True) == 1
