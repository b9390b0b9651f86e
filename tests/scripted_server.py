"""A real HTTP server on loopback that answers by a script: what no healthy instance can be made to say."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

#: More requests than any script has are not read.
BODY_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer; without a status the connection is closed instead."""

    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request, and when it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float


@dataclass(slots=True)
class Script:
    """Replies by method and path, each used once and the last one for ever; and what was asked."""

    replies: dict[str, list[Reply]]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    def of(self, method: str) -> list[Asked]:
        """Return what was asked with one method."""
        return [asked for asked in self.asked if asked.method == method]

    def next_reply(self, asked: Asked) -> Reply:
        """Note a request and return its reply."""
        self.asked.append(asked)
        left = self.replies.get(f"{asked.method} {asked.path}", [Reply(status=404)])
        return left.pop(0) if len(left) > 1 else left[0]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's only request."""
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (item.partition(":") for item in lines)}
        body = await reader.readexactly(min(int(headers.get("content-length", "0")), BODY_BYTES_MAX))
        method, path, _ = line.split(" ")
        asked = Asked(method=method, path=path, headers=headers, body=body, at_s=time.monotonic())
        reply = self.next_reply(asked)
        if reply.status is None:
            return
        sent = {"Content-Length": str(len(reply.body)), "Connection": "close", **reply.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        writer.write(f"HTTP/1.1 {reply.status} Said\r\n{head}\r\n".encode() + reply.body)
        await writer.drain()


@asynccontextmanager
async def scripted(replies: dict[str, list[Reply]]) -> AsyncIterator[Script]:
    """Serve a script."""
    script = Script(replies)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    script.url = f"http://127.0.0.1:{port}"
    try:
        yield script
    finally:
        server.close()
        await server.wait_closed()
