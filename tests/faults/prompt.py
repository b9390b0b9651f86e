"""Uploads while something is wrong: each gets `202` or `503` promptly, never another answer and never a hang."""

import asyncio
import time
from collections import Counter

import httpx

from tests.line import Line, photo, until

#: An answer that takes longer is a hang. What bounds it are the time-outs of one or two calls, 2 to 5 s together.
PROMPT_S_MAX = 12.0


async def codes_of_uploads(line: Line, count: int, *, first_seed: int = 100) -> Counter[str]:
    """Upload so many photos at once; return how many were `accepted`, or refused with which code."""

    async def one(seed: int) -> str:
        began_s = time.monotonic()
        response = await line.upload(photo(seed))
        assert time.monotonic() - began_s < PROMPT_S_MAX
        if response.status_code == httpx.codes.ACCEPTED:
            return "accepted"
        assert response.status_code == httpx.codes.SERVICE_UNAVAILABLE, response.text
        assert int(response.headers["retry-after"]) > 0
        return str(response.json()["code"])

    return Counter(await asyncio.gather(*(one(first_seed + number) for number in range(count))))


async def wait_accepting(line: Line) -> None:
    """Return when an upload is accepted again; until then every one is refused promptly."""

    async def accepted() -> bool:
        return "accepted" in await codes_of_uploads(line, 1, first_seed=90)

    await until(accepted, what="uploads are accepted again")


async def components(line: Line) -> dict[str, str]:
    """Return what readiness says of each part."""
    answer = await line.http.get(f"{line.base_url}/health/ready")
    said: dict[str, str] = answer.json()["components"]
    return said


async def wait_component(line: Line, name: str, said: str) -> None:
    """Return when readiness says this of a part."""

    async def so() -> bool:
        return (await components(line))[name] == said

    await until(so, what=f"readiness says {name}: {said}")


async def assert_no_attempt_spent(line: Line) -> None:
    """No outage was anybody's attempt or death."""
    spent = {(row["attempts_spent"], row["deaths"]) for row in await line.rows() if row["state"] != "dropped"}
    assert spent == {(0, 0)}


async def metric(process_url: str, line: Line, name: str) -> float:
    """Return the sum of a metric over its labels, 0 when it is not there."""
    text = (await line.http.get(f"{process_url}/metrics")).text
    lines = [entry for entry in text.splitlines() if entry.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(entry.rsplit(" ", 1)[1]) for entry in lines)
