"""A TCP proxy in front of PostgreSQL that loses one answer: the statement is carried out, nobody hears of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_READ_BYTES = 65536


class CuttingProxy:
    """Passes everything on, but cuts the connection in place of the answer to a statement that names `needle`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.needle: bytes | None = None
        self.cuts = 0
        self._running: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        serving = asyncio.ensure_future(self._serve(reader, writer))
        self._running.add(serving)
        serving.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cut all connections."""
        for serving in list(self._running):
            serving.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server_reader, to_server = await asyncio.open_connection(*self._target)
        state = _State()
        pumps = [
            asyncio.ensure_future(self._pump_up(reader, to_server, state)),
            asyncio.ensure_future(self._pump_down(to_server_reader, writer, state)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            for end in (writer, to_server):
                end.transport.abort()

    async def _pump_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: "_State") -> None:
        with suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if self.needle is not None and self.needle in data:
                    state.named = True  # it is being prepared on this connection; what follows carries it out
                elif state.named:
                    state.cut = True
                writer.write(data)
                await writer.drain()

    async def _pump_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: "_State") -> None:
        with suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if state.cut:
                    self.cuts += 1
                    self.needle = None
                    return
                writer.write(data)
                await writer.drain()


class _State:
    """What is known of one connection."""

    named = False
    cut = False


@asynccontextmanager
async def cutting_proxy(port: int) -> AsyncIterator[tuple[CuttingProxy, int]]:
    """Give a proxy in front of a local port, and its own port."""
    proxy = CuttingProxy("127.0.0.1", port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    async with server:
        yield proxy, server.sockets[0].getsockname()[1]
        await proxy.close()
