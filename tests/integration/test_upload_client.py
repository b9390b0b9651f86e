"""The client against the whole line: it follows jobs to their end, and waits as long as it is told."""

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from app.client import submit_files
from app.submission import Ending, Patience, Submission
from stack.servers import Servers
from tests.edge import body, open_edge, post
from tests.line import Line, photo, until
from tests.reference import reference_hashes


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment, env={"SPILLWAY_ADMISSION_JOBS_MAX": "4"}) as opened:
        yield opened


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("one.jpg", "no-image.jpg", "half.jpg")]
    paths[0].write_bytes(photo(1))
    paths[1].write_bytes(b"hello")
    paths[2].write_bytes(photo(2)[:5000])
    return paths


async def submit(line: Line, paths: list[Path], *, wait: bool, patience: Patience | None = None) -> list[Submission]:
    return await submit_files(paths, url=line.base_url, token=line.token, wait=wait, patience=patience)


async def test_a_refused_upload_is_tried_again_no_earlier_than_told(line: Line, files: list[Path]) -> None:
    for _ in range(4):
        assert (await post(line, body(photo(1)))).status == 202
    refused = await post(line, body(photo(1)))
    assert refused.code == "backlog_full"

    async def release_when_refused() -> None:
        refusals = b'spillway_http_refusals_total{code="backlog_full"} 2.0'

        async def seen() -> bool:
            return refusals in (await line.http.get(f"{line.base_url}/metrics")).content

        await until(seen, timeout_s=5, what="the client's refusal")
        await line.raw.execute("SELECT spillway.cancel(id, owner) FROM spillway.jobs WHERE state = 'queued'")

    since_s = time.monotonic()
    (submission,), _ = await asyncio.gather(submit(line, files[:1], wait=False), release_when_refused())
    assert submission.ending is Ending.ACCEPTED
    assert submission.tries == 2
    assert time.monotonic() - since_s >= 1.0


async def test_files_that_are_still_refused_after_the_last_try_are_told_so(line: Line, files: list[Path]) -> None:
    (submission,) = await submit_files(files[:1], url=line.base_url, token="wrong")
    assert (submission.ending, submission.code, submission.ok) == (Ending.REJECTED, "unauthenticated", False)


async def test_an_address_where_nobody_is_ends_soon(files: list[Path]) -> None:
    patience = Patience(upload_tries_max=2, deadline_s=5)
    (submission,) = await submit_files(files[:1], url="http://127.0.0.1:9", token="x", patience=patience)
    assert (submission.ending, submission.tries) == (Ending.UNREACHABLE, 2)


async def test_each_file_is_followed_to_its_end(line: Line, files: list[Path]) -> None:
    await line.raw.execute("SELECT spillway.cancel(id, owner) FROM spillway.jobs WHERE state = 'queued'")
    await line.start("relay", "worker")
    good, no_image, half = await submit(line, files, wait=True, patience=Patience(deadline_s=30))
    assert (good.ending, good.ok) == (Ending.READY, True)
    assert good.job["thumb_url"]
    assert (no_image.ending, no_image.code, no_image.job_id) == (Ending.REJECTED, "unsupported_format", None)
    assert (half.ending, half.code) == (Ending.FAILED, "invalid_image")


async def test_results_are_saved_and_are_what_a_single_run_makes(line: Line, files: list[Path], tmp_path: Path) -> None:
    told: list[str] = []
    (submission,) = await submit_files(
        files[:1],
        url=line.base_url,
        token=line.token,
        wait=True,
        save_dir=tmp_path / "out",
        on_progress=lambda progress: told.append(progress.text),
    )
    assert submission.ending is Ending.READY
    saved = {path.name.split(".", 1)[1]: hashlib.sha256(path.read_bytes()).hexdigest() for path in submission.saved}
    assert saved == await reference_hashes(files[0].read_bytes())
    assert "uploading 100 %" in told


async def test_a_job_that_does_not_end_in_time_is_left_alone(line: Line, files: list[Path]) -> None:
    for process in line.roles.processes:
        if process.role == "worker":
            await asyncio.to_thread(process.stop)
    (submission,) = await submit(line, files[:1], wait=True, patience=Patience(deadline_s=4))
    assert submission.ending is Ending.TIMED_OUT
    assert submission.job_id is not None
    assert (await line.row(uuid.UUID(submission.job_id)))["state"] == "queued"
