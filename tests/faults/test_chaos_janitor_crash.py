"""The janitor is killed between deleting objects and giving their bytes back; the next one repeats both."""

from contracts.keys import staging_key
from tests.line import QUICK, Line, until


async def test_a_janitor_killed_before_the_books_leaves_bytes_that_the_next_one_gives_back(line: Line) -> None:
    await line.start("api", "relay", "worker")
    (job_id,) = await line.accepted([1])
    await line.wait_ready([job_id])
    # Not waited for: there is something to sweep, so it may be dead before it could answer.
    janitor = line.roles.spawn("janitor", env={**QUICK, "SPILLWAY_CRASH_POINT": "janitor.deleted"})

    async def dead() -> bool:
        return not janitor.alive

    await until(dead, what="the janitor has killed itself")
    assert not await line.objects.exists(staging_key(job_id))
    held_bytes = (await line.row(job_id))["held_bytes"]
    assert held_bytes == len(line.sources[job_id])
    assert await line.raw.fetchval("SELECT staging_bytes FROM spillway.gate") == held_bytes
    await line.start("janitor")
    await line.assert_nothing_left_behind()
