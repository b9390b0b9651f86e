"""The running API answers every example as `contracts/examples.json` has it, in one pass from the first to the last."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from stack.servers import Servers
from tests.contract.book import ENVIRONMENT, admin_token, foreign_token, play_until
from tests.contract.replaying import Replay, load, masked
from tests.edge import open_edge
from tests.line import Line

EXAMPLES = load()
WORKERS_AT_WORK = "workers at work"


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment, env=ENVIRONMENT) as opened:
        yield opened


@pytest.fixture(scope="module")
async def replay(line: Line) -> Replay:
    found = {
        "token": line.token,
        "foreign_token": await foreign_token(line),
        "admin_token": await admin_token(line),
    }
    return Replay(line.http, line.base_url, found)


@pytest.fixture(scope="module")
async def answers(line: Line, replay: Replay) -> list[dict[str, Any]]:
    """Every example's answer, in their order; the workers start where the examples say so."""
    said, at_work = [], False
    for example in EXAMPLES:
        if example["stage"] == WORKERS_AT_WORK and not at_work:
            await line.start("relay", "worker")
            at_work = True
        said.append(await play_until(replay, example))
    return said


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[example["name"] for example in EXAMPLES])
async def test_the_api_answers_as_the_example_says(number: int, answers: list[dict[str, Any]]) -> None:
    assert masked(answers[number]) == masked(EXAMPLES[number]["answer"])


def test_a_different_answer_is_seen() -> None:
    answer = {"status": 200, "headers": {"Retry-After": "3"}, "body": {"status": "ready", "job_id": "x"}}
    assert masked(answer) == masked({**answer, "headers": {"Retry-After": "9"}})
    assert masked(answer) != masked({**answer, "status": 202})
    assert masked(answer) != masked({**answer, "headers": {}})
    assert masked(answer) != masked({**answer, "body": {"status": "failed", "job_id": "x"}})
