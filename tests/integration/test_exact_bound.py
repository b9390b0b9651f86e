"""The bound on unfinished jobs is exact over all API processes, through the death of one of them.

Judged by the rows: how many of the intervals from `admitted_at` to `released_at` overlap at most, never by a counter.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress

import asyncpg

from stack.servers import Servers
from tests.edge import api_of, body, children_of, exchange, open_edge, request
from tests.line import Line, photo, until

PROCESSES, CLIENTS_PER_PROCESS = 4, 16
JOBS_MAX = 12
STORM_S_MAX = 40.0
ACCEPTED = "accepted"
ACCEPTED_MIN = 6 * JOBS_MAX  #: the storm goes on until so many were accepted
PAUSE_S = 0.05  #: of a client that was refused
PHOTO = photo(1, width=120, height=90)


async def test_exact_bound_holds_over_four_processes_and_the_death_of_one(
    servers: Servers, environment: Mapping[str, str]
) -> None:
    limits = {"SPILLWAY_API_PROCESSES": str(PROCESSES), "SPILLWAY_ADMISSION_JOBS_MAX": str(JOBS_MAX)}
    async with open_edge(servers, environment, env=limits, janitor=False) as line:
        await until_running(line)
        answers = await storm(line, kill_one=True)
        rows = await line.rows()
        assert most_at_once(rows) == JOBS_MAX
        assert "backlog_full" in answers
        assert len([row for row in rows if row["accepted_at"]]) >= answers.count(ACCEPTED) >= ACCEPTED_MIN
        await assert_books_come_out_even(line)


async def test_exact_bound_is_the_work_of_the_policy_since_without_one_it_is_passed(
    servers: Servers, environment: Mapping[str, str]
) -> None:
    limits = {"SPILLWAY_API_PROCESSES": str(PROCESSES), "SPILLWAY_ADMISSION_POLICY": "none"}
    async with open_edge(servers, environment, env=limits, janitor=False) as line:
        await until_running(line)
        answers = await storm(line, kill_one=False)
        assert "backlog_full" not in answers
        assert most_at_once(await line.rows()) > 2 * JOBS_MAX


async def until_running(line: Line) -> None:
    async def all_run() -> bool:
        register = await line.raw.fetchval("SELECT count(*) FROM spillway.processes WHERE role = 'api'")
        return bool(len(children_of(api_of(line))) == PROCESSES == register)

    await until(all_run, timeout_s=20, what="all processes run")


async def storm(line: Line, *, kill_one: bool) -> list[str]:
    """Let all clients start at one barrier while jobs end, and kill a process meanwhile; return what was answered."""
    barrier = asyncio.Barrier(PROCESSES * CLIENTS_PER_PROCESS)
    answers: list[str] = []

    async def client() -> None:
        await barrier.wait()
        until_s = time.monotonic() + STORM_S_MAX
        while answers.count(ACCEPTED) < ACCEPTED_MIN and time.monotonic() < until_s:
            try:
                answer = await exchange(api_of(line).port, request(line.token, body(PHOTO)))
            except (OSError, asyncio.IncompleteReadError):
                continue  # its process was killed
            answers.append(ACCEPTED if answer.status == 202 else answer.code)
            if answer.status != 202:
                await asyncio.sleep(PAUSE_S)

    releasing = asyncio.create_task(release_at_random(line.env["SPILLWAY_DATABASE_URL"]))
    clients = asyncio.gather(*(client() for _ in range(PROCESSES * CLIENTS_PER_PROCESS)))
    if kill_one:
        await until(lambda: _full(answers), timeout_s=20, what="as many accepted as there are places")
        children_of(api_of(line))[0].kill()
    await clients
    releasing.cancel()
    with suppress(asyncio.CancelledError):
        await releasing
    return answers


async def _full(answers: list[str]) -> bool:
    return answers.count(ACCEPTED) >= JOBS_MAX


async def release_at_random(url: str) -> None:
    """End queued jobs all the time, as workers would."""
    raw = await asyncpg.connect(url)
    rng = random.SystemRandom()
    try:
        while True:
            await raw.execute(
                """SELECT spillway.cancel(id, owner) FROM
                (SELECT id, owner FROM spillway.jobs WHERE state = 'queued' ORDER BY random() LIMIT $1) AS chosen""",
                rng.randint(1, 4),
            )
            await asyncio.sleep(rng.uniform(0.005, 0.05))
    finally:
        raw.terminate()


def most_at_once(rows: list[asyncpg.Record]) -> int:
    """Return the largest number of jobs that held a place at one moment; intervals are half open."""
    changes = [(row["admitted_at"], 1) for row in rows]
    changes += [(row["released_at"], -1) for row in rows if row["released_at"] is not None]
    held = most = 0
    for _, change in sorted(changes):  # at equal times a release sorts before an admission
        held += change
        most = max(most, held)
    return most


async def assert_books_come_out_even(line: Line) -> None:
    """What the killed process held is given back, and the gate row equals the sum of the flags."""
    await line.start("janitor")

    async def none_uploading() -> bool:
        return not await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE state = 'uploading'")

    await until(none_uploading, timeout_s=10, what="the dead process's places given back")
    assert await line.raw.fetchval(
        "SELECT jobs_held = (SELECT count(*) FROM spillway.jobs WHERE holds_place) FROM spillway.gate"
    )
