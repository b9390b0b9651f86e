"""The metrics of several API processes: sums over all, through kills, without files piling up."""

import asyncio
import itertools
from collections.abc import Mapping

import httpx

from stack.servers import Servers
from tests.edge import api_of, body, children_of, exchange, head, open_edge, post, request
from tests.line import Line, photo, until

PROCESSES = 4
KILL_ROUNDS = 2
PHOTO = photo(1, width=120, height=90)


async def test_metrics_are_sums_that_never_fall(servers: Servers, environment: Mapping[str, str]) -> None:
    settings = {"SPILLWAY_API_PROCESSES": str(PROCESSES), "SPILLWAY_ADMISSION_POLICY": "none"}
    async with open_edge(servers, environment, env=settings) as line:
        scrapes = [await scrape(line)]
        await until_running(line)
        files = await until_files_settle(line)
        answered = 0
        for _ in range(KILL_ROUNDS):
            answered += await load(line, scrapes)
            for child in children_of(api_of(line))[1:]:
                child.kill()
            await asyncio.sleep(0)
            await until_running(line)
        scrapes.append(await scrape(line))
        assert_never_falls(scrapes)
        accepted = await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE accepted_at IS NOT NULL")
        newest = scrapes[-1]
        assert newest["spillway_uploads_accepted_total"] == accepted == answered
        assert newest["spillway_uploads_admitted_total"] >= accepted + KILL_ROUNDS
        assert newest["spillway_upload_seconds_count"] == accepted
        assert newest["spillway_places_held"] == accepted
        assert newest["spillway_upload_bytes_total"] == accepted * len(PHOTO)
        assert newest['spillway_http_refusals_total{code="unauthenticated"}'] == KILL_ROUNDS
        assert newest['spillway_http_requests_total{code="202",method="POST",route="/api/v1/images"}'] == accepted
        assert newest["spillway_places_bound"] == float("inf")
        assert file_names(line) == files


async def scrape(line: Line) -> dict[str, float]:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:  # another connection, another process
        answer = await client.get(f"{line.base_url}/metrics")
    assert answer.status_code == 200
    rows = (row.rsplit(" ", 1) for row in answer.text.splitlines() if not row.startswith("#"))
    return {name: float(value) for name, value in rows}


async def load(line: Line, scrapes: list[dict[str, float]]) -> int:
    """Upload while scraping all the while; return how many were accepted."""
    posting = asyncio.gather(*(post_several(line, 5) for _ in range(8)))
    while not posting.done():
        scrapes.append(await scrape(line))
    assert (await exchange(api_of(line).port, head(None, length_bytes=9))).status == 401
    wrong = await exchange(api_of(line).port, request(line.token, body(b"no image")))
    assert wrong.status == 415
    return sum(await posting)


async def post_several(line: Line, count: int) -> int:
    """Upload one after the other; return how many were accepted (a machine out of breath may refuse some)."""
    statuses = [(await post(line, body(PHOTO))).status for _ in range(count)]
    assert set(statuses) <= {202, 503}
    return statuses.count(202)


def assert_never_falls(scrapes: list[dict[str, float]]) -> None:
    counted = ("_total", "_count", "_bucket", "_sum")
    for before, after in itertools.pairwise(scrapes):
        fell = {
            name
            for name, value in before.items()
            if name.split("{")[0].endswith(counted) and after.get(name, 0.0) < value
        }
        assert not fell


async def until_running(line: Line) -> None:
    async def all_run() -> bool:
        alive = await line.raw.fetchval(
            """SELECT count(*) FROM spillway.processes
            WHERE role = 'api' AND seen_at > clock_timestamp() - interval '1 s'"""
        )
        return bool(len(children_of(api_of(line))) == PROCESSES == alive)

    await until(all_run, timeout_s=20, what="all processes run")


async def until_files_settle(line: Line) -> set[str]:
    """Every kind of file is there for every slot once each has counted something."""

    async def whole() -> bool:
        return len(file_names(line)) == 3 * PROCESSES

    await until(whole, timeout_s=5, what="a file of each kind for each slot")
    return file_names(line)


def file_names(line: Line) -> set[str]:
    return {path.name for path in (line.roles.home / "api-metrics").glob("*.db")}
