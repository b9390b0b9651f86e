"""`spillway jobs` as an operator uses it: lists, dry runs, bulk replays that wait for places, stop and go on."""

import asyncio
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core.backlog import Backlog
from app.core.jobstore import JobStore
from app.core.jobviews import JobViews
from app.core.outbox import Outbox
from app.core.postgres import PoolSettings, open_database
from app.core.registry import DeadReason
from contracts.errors import FailureCode
from tests.books import Books
from tests.line import until

PROJECT = Path(__file__).parents[2]
COMMAND_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody with a shell, and the books of a database of their own that no role works on."""

    books: Books
    environment: Mapping[str, str]

    def start(self, *args: str, **env: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "stack.cli", "jobs", *args],
            env={**self.environment, **env},
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def run(self, *args: str, **env: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of a command."""
        return await self.end_of(self.start(*args, **env))

    async def run_all(self, args: list[str]) -> tuple[int, str, str]:
        return await self.run(*args)

    async def end_of(self, command: "subprocess.Popen[str]") -> tuple[int, str, str]:
        out, err = await asyncio.to_thread(command.communicate, timeout=COMMAND_S_MAX)
        return command.returncode, out, err

    async def object(self, *args: str, code: int = 0, **env: str) -> Any:
        """Return what a command prints with `--json`, after checking how it ended."""
        ended, out, err = await self.run(*args, "--json", **env)
        assert ended == code, err
        return json.loads(out)

    async def failed(self, code: FailureCode = FailureCode.INTERNAL) -> uuid.UUID:
        claim = await self.books.claimed()
        await self.books.jobs.fail(claim.job_id, claim_token=claim.claim_token, code=code)
        return claim.job_id

    async def states(self) -> dict[uuid.UUID, str]:
        return {row["id"]: row["state"] for row in await self.books.raw.fetch("SELECT id, state FROM spillway.jobs")}

    async def finish_one(self) -> None:
        """End one queued job, as a worker would, so that its place comes free."""
        row = await self.books.raw.fetchrow("SELECT id FROM spillway.jobs WHERE state = 'queued' LIMIT 1")
        assert row is not None
        await self.books.jobs.cancel(row["id"], owner="ann")

    async def wait_queued(self, count: int) -> None:
        async def queued() -> bool:
            return list((await self.states()).values()).count("queued") == count

        await until(queued, what=f"{count} jobs are queued")


@pytest.fixture
async def operator(fresh_env: dict[str, str], environment: Mapping[str, str]) -> AsyncIterator[Operator]:
    url = fresh_env["SPILLWAY_DATABASE_URL"]
    database = await open_database(
        PoolSettings(
            url=url, application_name="test", connections_max=4, acquire_timeout_s=5.0, statement_timeout_s=5.0
        )
    )
    raw = await asyncpg.connect(url)
    books = Books(
        database, JobStore(database), JobViews(database), Outbox(database), Backlog(database, rows_max=100), raw
    )
    yield Operator(books, {**environment, **fresh_env})
    await books.assert_balanced()
    await raw.close()
    await database.close()


async def test_failed_jobs_are_listed_for_people_and_for_machines(operator: Operator) -> None:
    first = await operator.failed(FailureCode.WORKER_LOST)
    second = await operator.failed(FailureCode.INVALID_IMAGE)
    found = await operator.object("failed")
    assert [job["job_id"] for job in found["jobs"]] == [str(second), str(first)]
    assert found["count"] == 2
    assert [job["error_code"] for job in (await operator.object("failed", "--code", "worker_lost"))["jobs"]] == [
        "worker_lost"
    ]
    ended, out, err = await operator.run("failed", "--owner", "ann", "--since", "2026-01-01", "--limit", "1")
    head, row, summary = err.splitlines()
    assert (ended, out) == (0, "")
    assert row.startswith(str(second))
    assert row.index("invalid_image") == head.index("code")
    assert summary == "1 of 2 failed jobs"


WRONG = (
    ["replay"],
    ["replay", "--all", "--owner", "ann"],
    ["replay", "--since", "soon"],
    ["replay", "x"],
    ["failed", "--code", "bad_luck"],
    ["failed", "--limit", "0"],
)


async def test_wrong_use_ends_with_2_and_changes_nothing(operator: Operator) -> None:
    job_id = await operator.failed()
    for args, (ended, _, err) in zip(WRONG, await asyncio.gather(*map(operator.run_all, WRONG)), strict=True):
        assert (ended, "Traceback" in err) == (2, False), args
    assert (await operator.states())[job_id] == "failed"


async def test_a_database_that_is_away_ends_with_3(operator: Operator) -> None:
    ended, out, err = await operator.run("failed", SPILLWAY_DATABASE_URL="postgresql://spillway@127.0.0.1:9/none")
    assert (ended, out, "Traceback" in err) == (3, "", False)


async def test_a_run_with_nothing_to_do_says_so(operator: Operator) -> None:
    for name in ("replay", "reprocess"):
        done = await operator.run(name, "--all", "--dry-run")
        assert (done[0], done[1], done[2].splitlines()[-1]) == (0, "", f"nothing to {name}")
        assert "" not in done[2].splitlines()


async def test_a_dry_run_says_what_would_be_and_changes_nothing(operator: Operator) -> None:
    here, gone, waiting = await operator.failed(), await operator.failed(), await operator.books.queued()
    await operator.books.raw.execute("UPDATE spillway.jobs SET source_gone_at = now() WHERE id = $1", gone)
    dry = await operator.object("replay", "--all", "--dry-run", code=1)
    assert dry["outcomes"] == [
        {"job_id": str(here), "outcome": "queued"},
        {"job_id": str(gone), "outcome": "source_missing"},
    ]
    named = await operator.object("replay", str(waiting), str(uuid.UUID(int=7)), "--dry-run", code=1)
    assert named["outcomes"] == [{"job_id": str(waiting), "outcome": "not_failed"}]
    assert named["unknown"] == [str(uuid.UUID(int=7))]
    assert await operator.states() == {here: "failed", gone: "failed", waiting: "queued"}


async def test_a_replayed_job_tells_who_and_what_it_was(operator: Operator) -> None:
    job_id = await operator.failed()
    assert (await operator.object("replay", str(job_id)))["counts"] == {"queued": 1}
    shown = await operator.object("show", str(job_id))
    assert shown["job"]["status"] == "queued"
    (entry,) = shown["audit"]
    assert (entry["who"], entry["action"], entry["error_code_before"]) == ("command line", "replay", "internal")
    ended, _, err = await operator.run("show", str(job_id))
    assert ended == 0
    assert "command line" in err
    assert "attempts spent" in err
    assert (await operator.object("show", str(uuid.UUID(int=7)), code=1)) == {"job": None, "audit": []}


async def test_a_bulk_replay_waits_for_places_and_never_takes_more_than_there_are(operator: Operator) -> None:
    job_ids = [await operator.failed() for _ in range(3)]
    replaying = operator.start("replay", "--all", "--json", SPILLWAY_ADMISSION_JOBS_MAX="1")
    for _ in job_ids:
        await operator.wait_queued(1)
        await operator.finish_one()
    ended, out, _ = await operator.end_of(replaying)
    assert ended == 0
    assert [done["job_id"] for done in json.loads(out)["outcomes"]] == [str(job_id) for job_id in job_ids]
    # A place is held from admitted_at to released_at: no two of them overlap, though the database had to say so.
    spans = await operator.books.raw.fetch("SELECT admitted_at, released_at FROM spillway.jobs ORDER BY admitted_at")
    assert all(earlier["released_at"] <= later["admitted_at"] for earlier, later in pairwise(spans))


async def test_it_gives_up_when_no_place_comes_free_in_time_and_says_how_to_go_on(operator: Operator) -> None:
    for _ in range(2):
        await operator.failed()
    full = {"SPILLWAY_ADMISSION_JOBS_MAX": "1"}
    ended, _, err = await operator.run("replay", "--all", "--wait-s", "0.5", **full)
    assert ended == 1
    assert "no place came free in time; the rest: --until " in err
    await operator.wait_queued(1)
    stopped_at = err.split("--until ")[1].split()[0]
    rest = await operator.object("replay", "--until", stopped_at)
    assert rest["counts"] == {"queued": 1}


async def test_ctrl_c_stops_between_two_jobs_and_a_repeat_does_the_rest_alone(operator: Operator) -> None:
    job_ids = [await operator.failed() for _ in range(3)]
    replaying = operator.start("replay", "--owner", "ann", "--json", SPILLWAY_ADMISSION_JOBS_MAX="1")
    await operator.wait_queued(1)
    replaying.send_signal(signal.SIGINT)
    ended, out, err = await operator.end_of(replaying)
    run = json.loads(out)
    assert (ended, run["ending"], run["counts"], "Traceback" in err) == (1, "stopped", {"queued": 1}, False)
    # The one that was done fails again: a repeat that is told when the first run began leaves it alone.
    claim = await operator.books.claimed(job_ids[0])
    await operator.books.jobs.fail(job_ids[0], claim_token=claim.claim_token, code=FailureCode.INTERNAL)
    rest = await operator.object("replay", "--owner", "ann", "--until", run["until"])
    assert [done["job_id"] for done in rest["outcomes"]] == [str(job_id) for job_id in job_ids[1:]]
    assert (await operator.states())[job_ids[0]] == "failed"


async def test_jobs_are_cancelled_by_hand(operator: Operator) -> None:
    waiting, over = await operator.books.queued(), await operator.failed()
    assert await operator.object("cancel", str(waiting)) == [{"job_id": str(waiting), "status": "cancelled"}]
    assert await operator.object("cancel", str(over), code=1) == [{"job_id": str(over), "status": None}]
    assert (await operator.object("show", str(waiting)))["audit"][0]["action"] == "cancel"


async def test_dead_letters_are_listed(operator: Operator) -> None:
    assert await operator.object("dead-letters") == []
    await operator.books.backlog.note_dead_letter(
        body_sha256="ab" * 32, body_bytes=7, reason=DeadReason.UNREADABLE, job_id=None
    )
    (letter,) = await operator.object("dead-letters")
    assert (letter["reason"], letter["bytes"], letter["seen"]) == ("unreadable", 7, 1)
    ended, _, err = await operator.run("dead-letters")
    assert ended == 0
    assert "unreadable" in err
