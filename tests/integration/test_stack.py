"""The local stack as a person uses it: up, down, data that stay, crashes that block nothing, two side by side."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

import aio_pika
import asyncpg
import psutil

from stack.identity import Identity, marked_processes, wait_gone
from stack.ports import LOOPBACK, free_port
from stack.server import LocalServer
from stack.servers import Servers
from stack.state import STACK_VARIABLE, FolderLock, StackState, StateFile
from tests.line import store_client

PROJECT = Path(__file__).parents[2]
#: The promise is 25 s; a test machine that is busy with something else gets this much.
UP_S_MAX = 60.0
DOWN_S_MAX = 45.0
WAIT_S = 30.0


class Stack:
    """One data folder, driven through the command line only."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.port = free_port((), SystemRandom())

    def spillway(self, *args: str, timeout_s: float = DOWN_S_MAX) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "stack.cli", *args, "--data", str(self.folder)],
            env=dict(self.environment),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def up(self, *args: str) -> None:
        ended = self.spillway("up", "--detach", f"--port={self.port}", *args, timeout_s=UP_S_MAX)
        assert ended.returncode == 0, ended.stderr

    def down(self) -> None:
        ended = self.spillway("down")
        assert ended.returncode == 0, ended.stderr
        assert self.left() == []

    def status(self) -> tuple[int, dict[str, Any]]:
        ended = self.spillway("status", "--json")
        return ended.returncode, json.loads(ended.stdout)

    def state(self) -> StackState:
        state = StateFile(self.folder).read()
        assert state is not None
        return state

    def left(self) -> list[Identity]:
        return marked_processes(STACK_VARIABLE, self.state().stack_id)

    def process(self, name: str) -> Identity:
        return next(record.identity for record in self.state().processes if record.name == name)

    def make_token(self) -> dict[str, str]:
        return dict(self._json("token", "create", "--owner=test", "--json"))

    def tokens(self) -> list[dict[str, str]]:
        return list(self._json("token", "list", "--json"))

    def _json(self, *args: str) -> Any:
        ended = self.spillway(*args)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)


@contextmanager
def stack_in(folder: Path, environment: Mapping[str, str]) -> Iterator[Stack]:
    """Yield a stack that is brought down at the end, whatever happened."""
    stack = Stack(folder, environment)
    try:
        yield stack
    finally:
        if folder.exists():  # also when its state is lost
            stack.spillway("down")


def queue_is_registered(folder: Path) -> bool:
    """Tell whether the node's list of quorum queues is on the disk.

    RabbitMQ writes it half a second after a queue is declared; a kill before that leaves a queue without a leader.
    """
    lists = list(folder.glob("rabbit/data/*/quorum/*/names.dets"))
    return any(b"%2F_kept" in path.read_bytes() for path in lists)


def until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


async def put_everywhere(env: Mapping[str, str], text: str) -> None:
    """Leave one thing in each server."""
    connection = await asyncpg.connect(env["SPILLWAY_DATABASE_URL"])
    await connection.execute("CREATE TABLE IF NOT EXISTS kept (text text)")
    await connection.execute("INSERT INTO kept VALUES ($1)", text)
    await connection.close()
    async with store_client(env) as client:
        await client.put_object(Bucket=env["SPILLWAY_S3_BUCKET"], Key="kept", Body=text.encode())
    async with await aio_pika.connect(env["SPILLWAY_BROKER_URL"]) as broker:
        channel = await broker.channel(publisher_confirms=True)
        await channel.declare_queue("kept", durable=True, arguments={"x-queue-type": "quorum"})
        message = aio_pika.Message(text.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, "kept")


async def read_everywhere(env: Mapping[str, str]) -> tuple[str, str, str]:
    """Return what each server still has of it."""
    connection = await asyncpg.connect(env["SPILLWAY_DATABASE_URL"])
    row = await connection.fetchval("SELECT text FROM kept")
    await connection.close()
    async with store_client(env) as client:
        answer = await client.get_object(Bucket=env["SPILLWAY_S3_BUCKET"], Key="kept")
        stored = (await answer["Body"].read()).decode()
    async with await aio_pika.connect(env["SPILLWAY_BROKER_URL"]) as broker:
        channel = await broker.channel()
        queue = await channel.get_queue("kept")
        message = await queue.get(timeout=WAIT_S)
        assert message is not None
        return row, stored, message.body.decode()  # not acked: it stays


def test_what_the_servers_keep_survives_a_kill_of_all_of_them(servers: Servers, fresh_env: Mapping[str, str]) -> None:
    asyncio.run(put_everywhere(fresh_env, "one"))
    until(lambda: queue_is_registered(servers.folder))
    for server in servers.local:
        server.kill()
        assert not server.alive
    with ThreadPoolExecutor() as threads:
        list(threads.map(LocalServer.start, servers.local))
    assert asyncio.run(read_everywhere(fresh_env)) == ("one", "one", "one")


def test_every_server_listens_on_loopback_only_and_is_not_run_by_root(servers: Servers) -> None:
    listening, users = set(), set()
    for record in servers.site.state.load().processes:
        process = psutil.Process(record.identity.pid)
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # the broker looks at its disk with a passing process
                users.add(member.username())
                sockets = member.net_connections(kind="inet")
                listening |= {one.laddr for one in sockets if one.status == psutil.CONN_LISTEN}
    # One for the database, eight for the object store, three for the broker, the name server's twice.
    assert len(listening) == 13
    assert {address.ip for address in listening} <= {"127.0.0.1", "::1"}
    assert max(address.port for address in listening) < 32_768
    if os.geteuid() == 0:
        assert "root" not in users


def test_up_survives_crashes_and_down_leaves_nothing(
    servers: Servers, environment: Mapping[str, str], tmp_path: Path
) -> None:
    """One life of a stack, beside the session's servers: a worker dies, then the launcher; then all is back."""
    with stack_in(tmp_path / "data", environment) as stack:
        stack.up("--workers=2")
        code, status = stack.status()
        assert (code, status["running"]) == (0, True)
        assert status["url"] == f"http://127.0.0.1:{stack.port}"
        names = {process["name"] for process in status["processes"]}
        assert names >= {"launcher", "postgres", "s3", "rabbit", "api", "relay", "janitor", "worker-1", "worker-2"}
        assert all(process["rss_bytes"] > 0 for process in status["processes"])
        owned = {server.port() for server in servers.local}
        assert owned.isdisjoint(process["port"] for process in status["processes"])
        token = stack.make_token()
        asyncio.run(put_everywhere(stack.state().env, "two"))
        until(lambda: queue_is_registered(stack.folder))

        worker = stack.process("worker-1")
        worker.signal(signal.SIGKILL)
        until(lambda: stack.process("worker-1") != worker and stack.process("worker-1").alive)

        before = stack.left()
        launcher = stack.state().launcher
        assert launcher is not None
        assert len(before) > len(status["processes"])  # the API's own child is there too
        launcher.signal(signal.SIGKILL)
        assert wait_gone(before, timeout_s=WAIT_S), "children of a killed launcher must not stay"
        assert stack.status()[0] == 1

        stack.up()
        assert token["id"] in [entry["id"] for entry in stack.tokens()]
        assert asyncio.run(read_everywhere(stack.state().env)) == ("two", "two", "two")
        stack.down()
        assert stack.status()[0] == 1
        stack.down()


def test_existing_servers_are_used_by_their_addresses(
    fresh_env: Mapping[str, str], environment: Mapping[str, str], tmp_path: Path
) -> None:
    with stack_in(tmp_path / "data", {**environment, **fresh_env}) as stack:
        stack.up()
        names = {process["name"] for process in stack.status()[1]["processes"]}
        assert names == {"launcher", "api", "relay", "janitor", "worker-1"}
        stack.down()


def test_a_taken_port_and_a_taken_folder_are_said_so(tmp_path: Path, environment: Mapping[str, str]) -> None:
    stack = Stack(tmp_path / "data", environment)
    with socket.create_server((LOOPBACK, stack.port)):
        ended = stack.spillway("up", f"--port={stack.port}")
    assert ended.returncode == 3
    assert f"Port {stack.port} is taken" in ended.stderr
    lock = FolderLock(stack.folder)
    assert lock.acquire()
    ended = stack.spillway("up", f"--port={stack.port}")
    lock.release()
    assert ended.returncode == 3
    assert "in use" in ended.stderr


def test_a_wrong_setting_ends_a_role_with_the_name_of_the_variable(environment: Mapping[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "stack.cli", "worker"],
        env={**environment, "SPILLWAY_WORKER_CONCURRENCY": "0"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 2
    assert "worker_concurrency" in ended.stderr.lower()
    assert ended.stdout == ""
