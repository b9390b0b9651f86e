"""The line that fault tests work on."""

from collections.abc import AsyncIterator

import pytest

from stack.roles import Roles
from tests.line import Line, open_line


@pytest.fixture
async def line(roles: Roles, fresh_env: dict[str, str]) -> AsyncIterator[Line]:
    async with open_line(roles, fresh_env) as opened:
        yield opened
