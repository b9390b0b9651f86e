"""How the examples' line is set up, and how one of them is played until its answer is the one that it waits for."""

import asyncio
import time
from typing import Any

from app.core.postgres import PoolSettings, open_database
from app.core.tokens import Scope, TokenStore
from tests.contract.replaying import Replay, value_at
from tests.line import Line, token_store

#: The owner of the examples has so many unfinished jobs when the share is used up; one place is left then.
OWNER_JOBS_MAX = 6
ENVIRONMENT = {
    "SPILLWAY_ADMISSION_OWNER_JOBS_MAX": str(OWNER_JOBS_MAX),
    "SPILLWAY_ADMISSION_JOBS_MAX": str(OWNER_JOBS_MAX + 1),
}
UNTIL_S_MAX = 45.0
POLL_S = 0.1


async def foreign_token(line: Line) -> str:
    """Return a token of somebody else."""
    database = await open_database(
        PoolSettings(
            url=line.env["SPILLWAY_DATABASE_URL"],
            application_name="test",
            connections_max=1,
            acquire_timeout_s=5,
            statement_timeout_s=5,
        )
    )
    try:
        _, token = await TokenStore(database).create(owner="ben")
    finally:
        await database.close()
    return token


async def admin_token(line: Line) -> str:
    """Return a token of somebody who looks after the service."""
    async with token_store(line.env) as tokens:
        return (await tokens.create(owner="root", scopes=[Scope.ADMIN]))[1]


async def play_until(replay: Replay, example: dict[str, Any]) -> dict[str, Any]:
    """Play an example, again and again where it waits for a value."""
    deadline_s = time.monotonic() + UNTIL_S_MAX
    until = example.get("until")
    while True:
        said = await replay.play(example)
        if until is None or value_at(said.get("body", {}), until["pointer"]) == until["value"]:
            return said
        assert time.monotonic() < deadline_s, f"{example['name']}: {said}"
        await asyncio.sleep(POLL_S)
