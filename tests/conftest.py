"""Real servers for the whole session, and a clean database, queue and set of processes for each test."""

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.core.migrate import migrate
from stack.children import log_tail
from stack.roles import Roles
from stack.servers import Servers
from stack.state import LOG_FOLDER

#: What tests take over from the outside: nothing that names a server, so that no real one is ever touched.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "TZ", "XDG_CACHE_HOME")

#: Migrated once; each test's database is a copy of it.
TEMPLATE_DATABASE = "template_migrated"


def outside_environment() -> dict[str, str]:
    """Return the part of the environment that tests run with."""
    environment = os.environ  # noqa: TID251 - the tests' composition root
    return {name: environment[name] for name in KEPT_VARIABLES if name in environment}


def migrate_apart(url: str) -> None:
    """Migrate in a thread of its own: it runs an event loop, which would end the one of the session."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(migrate, url).result()


def show_logs(folder: Path) -> None:
    """Print the end of every log before the folder goes: the only trace of a failure on a machine of somebody else."""
    for path in sorted(folder.glob(f"{LOG_FOLDER}/*.log")):
        sys.stderr.write(f"\n==> {path.name}\n{log_tail(path)}")


@pytest.fixture(scope="session")
def environment() -> Mapping[str, str]:
    """The environment for whatever a test starts."""
    return outside_environment()


@pytest.fixture(scope="session")
def servers(environment: Mapping[str, str], request: pytest.FixtureRequest) -> Iterator[Servers]:
    """PostgreSQL, S3 and RabbitMQ, with the schema in place."""
    with tempfile.TemporaryDirectory(prefix="spillway-test-") as folder:
        started = Servers(Path(folder), environment)
        try:
            started.start()
            assert started.postgres is not None
            migrate_apart(started.postgres.create_database(TEMPLATE_DATABASE))
            migrate_apart(started.postgres.url())
            yield started
        finally:
            started.stop()
            if request.session.testsfailed:
                show_logs(Path(folder))


@pytest.fixture
def fresh_env(servers: Servers) -> dict[str, str]:
    """All variables of a line of its own: an empty migrated database and queues under a new prefix."""
    assert servers.postgres is not None
    for server in servers.local:  # an earlier test may have left one frozen or dead
        server.thaw()
        server.start()
    name = f"t{uuid.uuid4().hex[:12]}"
    url = servers.postgres.create_database(name, template=TEMPLATE_DATABASE)
    return {**servers.env(), "SPILLWAY_DATABASE_URL": url, "SPILLWAY_BROKER_PREFIX": name}


@pytest.fixture
def roles(servers: Servers, environment: Mapping[str, str], fresh_env: dict[str, str]) -> Iterator[Roles]:
    """Spawns roles on the test's own line; whatever still runs at the end is killed."""
    spawned = Roles(servers, environment, env=fresh_env)
    try:
        yield spawned
    finally:
        spawned.kill()
