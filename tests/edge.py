"""Raw sockets against the HTTP edge, and an API with a line of its own for a whole test module."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psutil

from stack.roles import Role, RoleProcess, Roles
from stack.servers import Servers
from tests.conftest import TEMPLATE_DATABASE
from tests.line import Line, open_line

UPLOAD_PATH = "/api/v1/images"
BOUNDARY = "edge"
ANSWER_S_MAX = 15.0
PROBLEM = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One final HTTP answer, and what came before it."""

    status: int
    headers: dict[str, str]
    body: bytes
    continued: bool  #: "100 Continue" came first
    took_s: float

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The problem's code, after checking that this is a whole problem document."""
        document = self.json()
        assert self.headers["content-type"] == PROBLEM
        assert document["status"] == self.status
        assert document["type"].endswith(document["code"])
        assert document["title"]
        if self.status in (429, 503):
            assert 1 <= int(self.headers["retry-after"]) <= 75
        return str(document["code"])


@dataclass(slots=True)
class Connection:
    """A connection whose every byte is ours."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    opened_s: float = field(default_factory=time.monotonic)

    async def send(self, data: bytes) -> None:
        """Send all of it; a server that has had enough is no error."""
        with contextlib.suppress(OSError):
            for start in range(0, len(data), 65536):
                self.writer.write(data[start : start + 65536])
                await self.writer.drain()

    def finish_sending(self) -> None:
        """Close our side; answers can still come."""
        self.writer.write_eof()

    async def answer(self) -> Answer:
        """Return the next final answer."""
        continued = False
        async with asyncio.timeout(ANSWER_S_MAX):
            while True:
                head = await self.reader.readuntil(b"\r\n\r\n")
                status_line, *lines = head.decode("latin-1").strip().split("\r\n")
                status = int(status_line.split(" ")[1])
                if status != 100:
                    break
                continued = True
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        took_s = time.monotonic() - self.opened_s
        return Answer(status=status, headers=headers, body=body, continued=continued, took_s=took_s)

    def abort(self) -> None:
        """Be gone, as a killed client is."""
        transport = self.writer.transport
        transport.abort()


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Connection]:
    """Open a connection; it is gone afterwards."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Connection(reader, writer)
    try:
        yield connection
    finally:
        connection.abort()


async def exchange(port: int, data: bytes, *, finish: bool = False) -> Answer:
    """Send bytes and return the answer, which may come before all is sent."""
    async with connect(port) as connection:

        async def send() -> None:
            await connection.send(data)
            if finish:
                connection.finish_sending()

        sending = asyncio.create_task(send())
        try:
            return await connection.answer()
        finally:
            sending.cancel()
            await asyncio.wait({sending})


def head(
    token: str | None,
    *lines: str,
    length_bytes: int | None = None,
    content_type: str | None = f"multipart/form-data; boundary={BOUNDARY}",
    method: str = "POST",
    path: str = UPLOAD_PATH,
) -> bytes:
    """Return the head of a request."""
    all_lines = [f"{method} {path} HTTP/1.1", "Host: edge"]
    if token is not None:
        all_lines.append(f"Authorization: Bearer {token}")
    if content_type is not None:
        all_lines.append(f"Content-Type: {content_type}")
    if length_bytes is not None:
        all_lines.append(f"Content-Length: {length_bytes}")
    return "\r\n".join([*all_lines, *lines, "", ""]).encode("latin-1")


def part(name: str, content: bytes, *, filename: bytes | None = b"a.jpg") -> bytes:
    """Return one part of a multipart body, with the delimiter before it."""
    suffix = b"" if filename is None else b'; filename="' + filename + b'"'
    lines = (
        b"--" + BOUNDARY.encode(),
        b'Content-Disposition: form-data; name="' + name.encode() + b'"' + suffix,
        b"",
        content,
        b"",
    )
    return b"\r\n".join(lines)


END = f"--{BOUNDARY}--\r\n".encode()


def body(file: bytes, *, filename: bytes | None = b"a.jpg") -> bytes:
    """Return a whole body with one file."""
    return part("file", file, filename=filename) + END


def request(token: str | None, data: bytes) -> bytes:
    """Return a whole upload request."""
    return head(token, length_bytes=len(data)) + data


def chunked(pieces: Iterable[bytes], *, end: bool = True) -> bytes:
    """Return the chunked coding of the pieces."""
    coded = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return coded + (b"0\r\n\r\n" if end else b"")


async def post(line: Line, data: bytes) -> Answer:
    """Send a body as an upload and return the answer."""
    return await exchange(api_of(line).port, request(line.token, data))


def api_of(line: Line) -> RoleProcess:
    """Return the running API's master."""
    return next(process for process in line.roles.processes if process.role == "api" and process.alive)


def children_of(process: RoleProcess) -> list[psutil.Process]:
    """Return the API's own processes under its master."""
    return [child for child in psutil.Process(process.pid).children() if _is_slot(child)]


def _is_slot(process: psutil.Process) -> bool:
    try:
        return any(argument.startswith("--slot=") for argument in process.cmdline())
    except psutil.NoSuchProcess:  # also when it is dead and waits to be reaped
        return False


@asynccontextmanager
async def open_edge(
    servers: Servers, environment: Mapping[str, str], *, env: Mapping[str, str] | None = None, janitor: bool = True
) -> AsyncIterator[Line]:
    """Give a line of its own with its API (and a janitor, which sweeps quickly) running."""
    assert servers.postgres is not None
    name = f"t{uuid4().hex[:12]}"
    url = await asyncio.to_thread(servers.postgres.create_database, name, template=TEMPLATE_DATABASE)
    fresh = {**servers.env(), "SPILLWAY_DATABASE_URL": url, "SPILLWAY_BROKER_PREFIX": name}
    roles = Roles(servers, environment, env=fresh)
    try:
        async with open_line(roles, fresh) as line:
            wanted: list[Role] = ["api", "janitor"] if janitor else ["api"]
            try:
                await line.start(*wanted, **(env or {}))
                yield line
            except BaseException:  # whatever a test ran into, its connection is closed
                line.raw.terminate()
                raise
    finally:
        await asyncio.to_thread(roles.kill)
