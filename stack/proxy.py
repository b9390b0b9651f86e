"""A TCP proxy between one process and one server, whose line can be cut, slowed, held without a word, or refused.

Invariant: loopback only. Bytes are passed on unchanged and in order, or not at all; what it holds of a connection is
one read, and it never holds more connections than a named number.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Protocol

from stack.ports import LOOPBACK

#: One read; also all that is held of a connection in one direction.
READ_BYTES = 64 * 1024
#: Connections at once; more are refused, as a server out of them would.
CONNECTIONS_MAX = 512
#: How long the server behind may take to accept a connection.
CONNECT_S_MAX = 5.0


class LineMode(StrEnum):
    """What the proxy does with bytes and with new connections."""

    OPEN = "open"
    SLOW = "slow"  #: every read is passed on late
    HELD = "held"  #: half open: connections are taken and stay, nothing passes until the line is open again
    REFUSED = "refused"  #: what stands is cut, what comes is cut at once


class Listening(Protocol):
    """Sees the bytes of one connection as they pass."""

    def sent(self, data: bytes) -> None:
        """Take what the client has sent."""

    def received(self, data: bytes) -> None:
        """Take what the server has sent."""

    def ended(self) -> None:
        """Note the end of the connection."""


#: Called for each new connection.
Tap = Callable[[], Listening]


class Silent:
    """Sees nothing."""

    def sent(self, data: bytes) -> None:
        """Let it pass."""

    def received(self, data: bytes) -> None:
        """Let it pass."""

    def ended(self) -> None:
        """Let it go."""


class Proxy:
    """One listening port in front of one server's port."""

    def __init__(self, target_port: int, *, tap: Tap = Silent) -> None:
        self.port = 0  #: where it listens, once it is open
        self._target_port = target_port
        self._tap = tap
        self._mode = LineMode.OPEN
        self._pause_s = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections_count(self) -> int:
        """Connections that stand now."""
        return len(self._serving)

    async def open(self, port: int) -> None:
        """Listen on this loopback port."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, port)
        self.port = port

    async def close(self) -> None:
        """Stop listening and cut everything."""
        if self._server is not None:
            self._server.close()
        self.cut()
        if self._serving:
            await asyncio.wait(set(self._serving))
        if self._server is not None:
            await self._server.wait_closed()

    def set_mode(self, mode: LineMode, *, pause_s: float = 0.0) -> None:
        """Change what happens to bytes and connections; `pause_s` is how late a slow line passes each read on."""
        self._mode, self._pause_s = mode, pause_s
        if mode is LineMode.HELD:
            self._flowing.clear()
        else:
            self._flowing.set()
        if mode is LineMode.REFUSED:
            self.cut()

    def cut(self) -> int:
        """Break every standing connection, in mid-sentence; returns how many."""
        cut = list(self._serving)
        for serving in cut:
            serving.cancel()
        return len(cut)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode is LineMode.REFUSED or len(self._serving) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        serving = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        listening = self._tap()
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                back_reader, back_writer = await asyncio.open_connection(LOOPBACK, self._target_port)
            ends.append(back_writer)
            await self._join((reader, back_writer, listening.sent), (back_reader, writer, listening.received))
            for end in ends:
                end.close()  # what is still buffered is sent first
        except (OSError, TimeoutError):
            return
        finally:
            listening.ended()
            for end in ends:
                if not end.is_closing():
                    end.transport.abort()

    async def _join(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter, Callable[[bytes], None]]) -> None:
        pumps = [asyncio.ensure_future(self._pump(*way)) for way in ways]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, see: Callable[[bytes], None]
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if self._mode is LineMode.SLOW:
                    await asyncio.sleep(self._pause_s)
                await self._flowing.wait()
                see(data)
                writer.write(data)
                await writer.drain()
