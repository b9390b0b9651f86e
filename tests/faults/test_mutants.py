"""Mutants of the logic: the checker names what each of them breaks, and the right version passes the same story."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from contracts.jobs import JobState
from stack.chaos_rig import wall_s
from stack.checker import Invariant
from stack.proxy import LineMode
from stack.servers import Servers
from tests.faults.mutants import (
    JOBS_BOUND,
    MUTANT_REST_S_MAX,
    QUICK_SIZE,
    REST_S_MAX,
    RIGHT,
    SLOW,
    Mutant,
    Patch,
    Story,
    open_story,
    pictures_of,
)
from tests.line import until

Telling = Callable[[Story], Awaitable[None]]

#: Longer than any grace that the checker gives an attempt which had failed just before.
OUTAGE_S = 4.0
PRESSED_UPLOADS = 12
_BROKER_ROLES = ("relay", "janitor")


async def pressed(story: Story) -> None:
    """More uploads than there are places, one after the other, with one worker."""
    await asyncio.gather(*(story.rig.start(name) for name in (*_BROKER_ROLES, "worker-1")))
    uploads = await pictures_of(range(PRESSED_UPLOADS), width=640, height=480)
    story.pictures += [upload.picture for upload in uploads]
    lanes = asyncio.Semaphore(2 * JOBS_BOUND)

    async def press(number: int) -> None:
        async with lanes:
            await story.accepted(uploads[number])

    await asyncio.gather(*(press(number) for number in range(PRESSED_UPLOADS)))


async def relay_dies_with_announcements_in_hand(story: Story) -> None:
    """The relay has taken what is to be announced, and is killed before it says it to anybody."""
    with story.rig.disturbing("relay"):
        await asyncio.gather(*(story.rig.start(name) for name in ("janitor", "worker-1")))
        await story.uploaded(1, 2, 3, **QUICK_SIZE)
        relay = await story.rig.start("relay", crash_point="relay.leased", wait=False)

        async def dead() -> bool:
            return not relay.alive

        await until(dead, what="the relay has killed itself")
        await story.rig.start("relay")


async def store_goes_away_in_mid_job(story: Story) -> None:
    """The worker can no longer reach the store when it wants to write what it made."""
    await asyncio.gather(*(story.rig.start(name) for name in (*_BROKER_ROLES, "worker-1")))
    (job_id,) = await story.uploaded(1, **SLOW)
    await story.step(job_id, after=JobState.PROCESSING)
    async with story.line_down("worker-1", "s3", LineMode.REFUSED):
        gone_s = wall_s()
        await story.step(job_id, after=JobState.QUEUED, token=1)

        async def long_enough() -> bool:
            return wall_s() > gone_s + OUTAGE_S

        await until(long_enough, what="the outage is a long one")


async def _overtaken(story: Story, *, until_ready: bool) -> None:
    """Worker 1 loses the database in mid-job and finds it again when worker 2 has the job, or has finished it."""
    await asyncio.gather(*(story.rig.start(name) for name in (*_BROKER_ROLES, "worker-1")))
    (job_id,) = await story.uploaded(1, **SLOW)
    await story.step(job_id, after=JobState.PROCESSING, token=1)
    async with story.line_down("worker-1", "postgres", LineMode.HELD):
        second = await story.rig.start("worker-2")
        if until_ready:
            await story.step(job_id, after=JobState.READY, token=2)
            second.freeze()
            await story.uploaded(2, 3, **QUICK_SIZE)  # so that there are places to be given back once too often
        else:
            await story.step(job_id, after=JobState.PROCESSING, token=2)
            second.freeze()
    try:
        await story.said("worker-1", job_id)
    finally:
        second.thaw()


async def overtaken_in_work(story: Story) -> None:
    """A settle under an old token meets a job that somebody else is working on."""
    await _overtaken(story, until_ready=False)


async def overtaken_and_finished(story: Story) -> None:
    """A settle under an old token meets a job that is ready."""
    await _overtaken(story, until_ready=True)


GUARD = "WHERE id = p_job AND claim_token = p_token AND state IN ('processing', 'cancelling')"
ENDED, HELD = "spillway.end_locked(spillway.jobs,text,text,jsonb)", "AND j.claim_token = held.token"
COMPLETE, FAIL = "spillway.complete(uuid,bigint,jsonb)", "spillway.fail(uuid,bigint,text)"
RETRY = "spillway.retry(uuid,bigint,double precision,boolean,integer)"
ACK = "        await delivery.ack()\n        if isinstance(outcome, Done)"

MUTANTS: dict[str, tuple[Telling, Mutant, Invariant]] = {
    "ack before settle": (
        pressed,
        Mutant(
            sources=(
                Patch(place="worker/life.py", words=ACK, by="        if isinstance(outcome, Done)"),
                Patch(
                    place="worker/life.py",
                    words="        started_s = self._clock()\n",
                    by="        started_s = self._clock()\n        await delivery.ack()\n",
                ),
            )
        ),
        Invariant.ACKED_AFTER_SETTLE,
    ),
    "place released twice": (
        pressed,
        Mutant(
            functions=(
                Patch(place=ENDED, words="jobs_held = jobs_held - 1", by="jobs_held = greatest(jobs_held - 2, 0)"),
            )
        ),
        Invariant.BOUND_HELD,
    ),
    "no outbox": (
        relay_dies_with_announcements_in_hand,
        Mutant(
            sources=(
                Patch(
                    place="app/core/sql/outbox.sql",
                    words="""UPDATE spillway.outbox AS o
SET available_at = clock_timestamp() + make_interval(secs => :lease_s), lease_token = :lease_token, tries = o.tries + 1
FROM (""",
                    by="DELETE FROM spillway.outbox AS o USING (",
                ),
            )
        ),
        Invariant.ACCEPTED_IS_FINAL,
    ),
    "attempt spent on an outage": (
        store_goes_away_in_mid_job,
        Mutant(
            sources=(
                Patch(
                    place="worker/pipeline.py",
                    words='return HandBack("store_away", server_away=True)',
                    by='return Retry("store_away")',
                ),
            )
        ),
        Invariant.OUTAGE_IS_NO_ATTEMPT,
    ),
    "no fencing": (
        overtaken_in_work,
        Mutant(
            sources=(Patch(place="app/core/sql/jobs.sql", words=HELD, by=""),),
            functions=tuple(
                Patch(place=function, words=GUARD, by=GUARD.replace("claim_token = p_token AND ", ""))
                for function in (COMPLETE, FAIL, RETRY)
            ),
        ),
        Invariant.FENCED,
    ),
    "unguarded update": (
        overtaken_and_finished,
        Mutant(functions=(Patch(place=COMPLETE, words=GUARD, by="WHERE id = p_job"),)),
        Invariant.READY_NEVER_UNDONE,
    ),
}

STORIES: tuple[Telling, ...] = tuple(dict.fromkeys(telling for telling, _, _ in MUTANTS.values()))


@pytest.mark.parametrize("telling", STORIES, ids=lambda telling: telling.__name__)
async def test_the_right_version_keeps_every_promise(
    servers: Servers, environment: Mapping[str, str], fresh_env: dict[str, str], telling: Telling
) -> None:
    async with open_story(servers, environment, fresh_env, mutant=RIGHT) as story:
        await telling(story)
        verdict = await story.judged(rest_s_max=REST_S_MAX)
    assert verdict.violations == ()
    assert verdict.accepted == verdict.ready > 0


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mutant_is_caught_by_the_promise_that_it_breaks(
    servers: Servers, environment: Mapping[str, str], fresh_env: dict[str, str], name: str
) -> None:
    telling, mutant, invariant = MUTANTS[name]
    async with open_story(servers, environment, fresh_env, mutant=mutant) as story:
        await telling(story)
        verdict = await story.judged(rest_s_max=MUTANT_REST_S_MAX)
    assert invariant in verdict.broken
