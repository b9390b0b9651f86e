"""Fixtures of the tests that need the local stack."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from app.core.backlog import Backlog
from app.core.jobstore import JobStore
from app.core.jobviews import JobViews
from app.core.outbox import Outbox
from app.core.postgres import PoolSettings, open_database
from stack.servers import Servers
from tests.books import Books
from tests.conftest import TEMPLATE_DATABASE


@pytest.fixture(scope="session")
def migrated_url(servers: Servers) -> str:
    """A database that no role works on."""
    assert servers.postgres is not None
    return servers.postgres.create_database("state_tests", template=TEMPLATE_DATABASE)


@pytest.fixture
async def books(migrated_url: str) -> AsyncIterator[Books]:
    """Empty books before, balanced books after every test."""
    database = await open_database(
        PoolSettings(
            url=migrated_url,
            application_name="test",
            connections_max=32,
            acquire_timeout_s=5.0,
            statement_timeout_s=5.0,
        )
    )
    raw = await asyncpg.connect(migrated_url)
    found = Books(
        database, JobStore(database), JobViews(database), Outbox(database), Backlog(database, rows_max=100), raw
    )
    await found.empty()
    yield found
    await found.assert_balanced()
    await raw.close()
    await database.close()
