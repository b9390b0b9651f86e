"""What the chaos runs found on bad lines: each is an answer that callers know, and never the end of a process."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import SystemRandom

import pytest
import uvloop

from app.core.postgres import DatabaseUnavailableError, PoolSettings, load_queries, open_database
from app.core.rabbit import BrokerSession, BrokerSettings, BrokerUnavailableError
from stack.ports import LOOPBACK, free_port
from stack.proxy import LineMode, Proxy
from stack.servers import Servers

ANSWER_S = 1.0
ANSWER_S_MAX = 60.0
HANG_UPS = 50


@contextmanager
def door_that_shuts() -> Iterator[int]:
    """A port where everybody is hung up on at once, as a proxy does while the broker behind it starts."""
    with socket.create_server((LOOPBACK, free_port((), SystemRandom())), backlog=HANG_UPS) as door:
        door.settimeout(ANSWER_S)  # nobody knocks any more: a try before has failed

        def hang_up() -> None:
            for _ in range(HANG_UPS):
                door.accept()[0].close()

        with ThreadPoolExecutor(max_workers=1) as thread:
            hanging_up = thread.submit(hang_up)
            yield door.getsockname()[1]
            hanging_up.result(ANSWER_S_MAX)


async def knock(port: int) -> None:
    """Open a session as often as the door is opened; the library says one of several things, by how far it had come."""
    settings = BrokerSettings(
        url=f"amqp://guest:guest@{LOOPBACK}:{port}/", prefix="t", timeout_s=ANSWER_S, heartbeat_s=5
    )
    for _ in range(HANG_UPS):
        with pytest.raises(BrokerUnavailableError):
            async with BrokerSession.open(settings):
                pass


def test_a_broker_that_hangs_up_in_the_handshake_is_an_unavailable_broker() -> None:
    """On the event loop of the roles, which notices such an end earlier, and in a thread of its own, as that loop."""
    with door_that_shuts() as port, ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(uvloop.run, knock(port)).result(ANSWER_S_MAX)


async def test_a_database_behind_a_half_open_line_is_an_unavailable_database_until_the_line_is_back(
    servers: Servers, fresh_env: dict[str, str]
) -> None:
    assert servers.postgres is not None
    behind_port = servers.postgres.port()
    proxy = Proxy(behind_port)
    await proxy.open(free_port((), SystemRandom()))
    url = fresh_env["SPILLWAY_DATABASE_URL"].replace(f":{behind_port}/", f":{proxy.port}/")
    database = await open_database(
        PoolSettings(
            url=url,
            application_name="test",
            connections_max=2,
            acquire_timeout_s=ANSWER_S,
            statement_timeout_s=ANSWER_S,
        )
    )
    queries = load_queries("janitor.sql")
    try:
        assert await database.one(queries.gauges) is not None
        proxy.set_mode(LineMode.HELD)
        for _ in range(3):
            with pytest.raises(DatabaseUnavailableError):
                await database.one(queries.gauges)
        proxy.set_mode(LineMode.OPEN)
        assert await database.one(queries.gauges) is not None
    finally:
        await database.close()
        await proxy.close()
