"""The API's processes: one that dies is replaced, none outlives its master, and all stop in order."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from random import SystemRandom

import psutil
import pytest

from app.api.open_files import room_of
from app.core.settings import Settings
from stack.ports import free_port
from stack.roles import RoleProcess
from stack.servers import Servers
from tests.edge import Connection, api_of, body, children_of, exchange, head, open_edge, post, request
from tests.line import Line, photo, until
from tests.repo.tidy.sources import ROOT

PHOTO = photo(1)
PROCESSES = 2
#: More clients than a process may have files.
FILES_MAX, CLIENTS = 256, 400
ASK_LIVE = head(None, method="GET", path="/health/live")
GRACE_S = 6.0


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment, env={"SPILLWAY_API_PROCESSES": str(PROCESSES)}) as opened:
        yield opened


@pytest.fixture
async def api(line: Line) -> AsyncIterator[RoleProcess]:
    """An API of the test's own, which it may end."""
    (line_api,) = [process for process in line.roles.processes if process.name == "api"]
    if line_api.alive:
        await asyncio.to_thread(line_api.stop)
    (started,) = await line.start("api", SPILLWAY_API_PROCESSES="2", SPILLWAY_STOP_GRACE_S=str(GRACE_S))
    await until_children(started)
    yield started
    await asyncio.to_thread(started.kill)


async def until_children(process: RoleProcess, *, but: frozenset[int] = frozenset()) -> list[psutil.Process]:
    async def whole() -> list[psutil.Process]:
        children = [child for child in children_of(process) if child.pid not in but]
        return children if len(children) == PROCESSES else []

    children: list[psutil.Process] = await until(whole, timeout_s=15, what="all processes run")
    return children


async def begin_slow(line: Line, data: bytes) -> Connection:
    connection = Connection(*await asyncio.open_connection("127.0.0.1", api_of(line).port))
    await connection.send(head(line.token, length_bytes=len(data)) + data[:500])

    async def begun() -> bool:
        return bool(await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE state = 'uploading'"))

    await until(begun, timeout_s=5, what="a reservation")
    return connection


async def test_a_killed_process_is_replaced_and_the_others_go_on(line: Line, api: RoleProcess) -> None:
    first, second = await until_children(api)
    first.kill()
    answers = [(await post(line, body(PHOTO))).status for _ in range(5)]
    after = await until_children(api, but=frozenset({first.pid}))
    assert set(answers) == {202}
    assert second.pid in {child.pid for child in after}
    assert api.alive


async def test_a_process_that_dies_again_and_again_is_replaced_ever_later_and_never_given_up(
    line: Line, api: RoleProcess
) -> None:
    gone: set[int] = set()
    for _ in range(2):
        for child in await until_children(api, but=frozenset(gone)):
            gone.add(child.pid)
            child.kill()
    await until_children(api, but=frozenset(gone))
    await asyncio.to_thread(api.wait_live)
    assert (await post(line, body(PHOTO))).status == 202


@asynccontextmanager
async def api_with_few_files(line: Line) -> AsyncIterator[int]:
    """Lend the port of an API of one process that may open no more than FILES_MAX files."""
    port = free_port((), SystemRandom())
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", f'ulimit -n {FILES_MAX} && exec "$@"', "sh", sys.executable, "-m", "stack.cli", "api"),
        env={**line.env, "SPILLWAY_API_PORT": str(port), "SPILLWAY_API_PROCESSES": "1"},
        cwd=ROOT,
    )

    async def lives() -> bool:
        with suppress(OSError, asyncio.IncompleteReadError):
            return (await exchange(port, ASK_LIVE)).status == 200
        return False

    try:
        await until(lives, timeout_s=30, what="it answers")
        yield port
        await until(lives, timeout_s=15, what="it answers again")
        assert (await exchange(port, request(line.token, body(PHOTO)))).status == 202
    finally:
        process.terminate()
        await process.wait()


async def test_clients_for_whom_a_process_has_no_files_are_told_so(line: Line) -> None:
    """None of them is reset: a connection that is not even accepted could not be answered."""
    served_max = room_of(Settings(), files_max=FILES_MAX).connections_max
    async with api_with_few_files(line) as port:
        clients = [Connection(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(CLIENTS)]
        said = [asyncio.ensure_future(client.reader.readline()) for client in clients]

        async def answered() -> bool:
            return sum(line.done() for line in said) >= CLIENTS - served_max

        try:
            await until(answered, timeout_s=8, what="whoever finds no room has an answer")
            assert {line.result()[:13] for line in said if line.done()} == {b"HTTP/1.1 503 "}
            assert (await exchange(port, ASK_LIVE)).code == "backlog_full"
        finally:
            for client in clients:
                client.abort()
            await asyncio.wait(said)


async def test_on_sigterm_the_upload_in_hand_ends_and_nothing_more_is_admitted(line: Line, api: RoleProcess) -> None:
    data = body(PHOTO)
    connection = await begin_slow(line, data)
    kept = Connection(*await asyncio.open_connection("127.0.0.1", api.port))
    await kept.send(b"GET /health/live HTTP/1.1\r\nHost: edge\r\n\r\n")
    assert (await kept.answer()).status == 200
    children = await until_children(api)
    psutil.Process(api.pid).terminate()
    await until_closed(api.port)
    await connection.send(data[500:])
    answer = await connection.answer()
    assert answer.status == 202
    assert answer.headers["connection"] == "close"
    assert await asyncio.to_thread(api.child.wait, GRACE_S) == 0
    assert not any(child.is_running() for child in children)
    for opened in (connection, kept):
        opened.abort()


async def until_closed(port: int) -> None:
    async def closed() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return True
        writer.transport.abort()
        return False

    await until(closed, timeout_s=5, what="no new connections are taken")


async def test_an_upload_longer_than_the_grace_is_cut_off_with_an_answer_and_leaves_nothing(
    line: Line, api: RoleProcess
) -> None:
    connection = await begin_slow(line, body(PHOTO))
    since_s = time.monotonic()
    psutil.Process(api.pid).terminate()
    trickling = asyncio.create_task(_trickle(connection))
    answer = await connection.answer()
    assert (answer.status, answer.code) == (503, "shutting_down")
    assert await asyncio.to_thread(api.child.wait, GRACE_S) == 0
    assert time.monotonic() - since_s < GRACE_S + 1.5
    trickling.cancel()
    connection.abort()
    assert not await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE state = 'uploading'")


async def _trickle(connection: Connection) -> None:
    while True:
        await connection.send(b"\0" * 20)
        await asyncio.sleep(0.05)


async def test_no_process_outlives_a_killed_master(line: Line, api: RoleProcess) -> None:
    children = await until_children(api)
    psutil.Process(api.pid).kill()

    async def gone() -> bool:
        return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)

    await until(gone, timeout_s=5, what="the processes gone")
    await asyncio.to_thread(api.child.wait, 5.0)
    (again,) = await line.start("api")
    assert (await exchange(again.port, b"GET /health/live HTTP/1.1\r\nHost: edge\r\n\r\n")).status == 200


async def test_a_taken_port_is_told_at_once(line: Line) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = line.roles.spawn("api", name="api-taken", port=taken.getsockname()[1])
        assert await asyncio.to_thread(process.child.wait, 10.0) == 3
        assert "cannot listen" in process.child.log_tail()
