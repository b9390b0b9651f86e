"""A TCP link between roles and one local server that a test can slow down, or rob of the server's answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import SystemRandom
from urllib.parse import urlsplit

from stack.ports import free_port

_READ_BYTES = 65536


class Link:
    """Passes bytes on in both directions."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.delay_s = 0.0  #: before each piece of bytes, either way
        self.mute = False  #: what the server says is thrown away; what it is told arrives
        self.cut_at = b""  #: a connection on which this is asked for is cut
        self._serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        serving = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """Cut all connections."""
        for serving in list(self._serving):
            serving.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
            ends.append(to_server)
            up = asyncio.ensure_future(self._pump(reader, to_server, answers=False))
            down = asyncio.ensure_future(self._pump(from_server, writer, answers=True))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for pump in (up, down):
                pump.cancel()
            await asyncio.wait({up, down})
        finally:
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                await asyncio.sleep(self.delay_s)
                if not answers and self.cut_at and self.cut_at in data:
                    return
                if not (answers and self.mute):
                    writer.write(data)
                    await writer.drain()


@asynccontextmanager
async def link_to(url: str) -> AsyncIterator[tuple[Link, str]]:
    """Give a link to a local server, and the server's URL through it."""
    parts = urlsplit(url)
    assert parts.port is not None
    link = Link(parts.port)
    async with await asyncio.start_server(link.accept, "127.0.0.1", free_port((), SystemRandom())) as server:
        own_port = server.sockets[0].getsockname()[1]
        yield link, parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{own_port}")).geturl()
        await link.close()
