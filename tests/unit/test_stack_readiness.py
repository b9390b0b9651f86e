from typing import Any

import pytest

from app.api.health import readiness
from stack.roles import lacking_in

PROBLEM = {"status": 503, "code": "dependency_unavailable", "detail": "A server is away."}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status": "degraded", "components": {"database": "up", "broker": "away"}}, "broker is away"),
        (
            {**PROBLEM, "components": {"store": "away", "database": "away", "relay": "up"}},
            "store is away, database is away",
        ),
        (PROBLEM, "A server is away."),
        ({"status": 503, "code": "shutting_down"}, "shutting_down"),
        ({}, "no answer"),
    ],
)
def test_what_is_not_up_is_named_and_never_by_a_number(answer: dict[str, Any], text: str) -> None:
    assert text in lacking_in(answer)
    assert "503" not in lacking_in(answer)


def test_the_names_are_those_that_the_api_gives() -> None:
    state = readiness(None, store_up=False)
    assert lacking_in({"status": 503, "components": state.components}).startswith("database is away, store is away")
