"""The proxy of the chaos runs in front of a small server: open, slow, held, refused and cut."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import SystemRandom

import pytest

from stack.ports import LOOPBACK, free_port
from stack.proxy import LineMode, Proxy

PAUSE_S = 0.3
#: Long enough for bytes that are going to come.
SILENCE_S = 0.5
ANSWER_S_MAX = 10.0


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each line in capitals; say goodbye at the end of input."""
    try:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.write(b"BYE\n")
        writer.close()
    except ConnectionError:
        writer.close()


@asynccontextmanager
async def proxied() -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(shout, LOOPBACK, free_port((), SystemRandom()), limit=1024 * 1024)
    async with server:
        proxy = Proxy(server.sockets[0].getsockname()[1])
        await proxy.open(free_port((), SystemRandom()))
        try:
            yield proxy
        finally:
            await proxy.close()


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer_to(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    async with asyncio.timeout(ANSWER_S_MAX):
        return await reader.readline()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends without another byte."""
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            return await reader.read() == b""
    except ConnectionError:
        return True


async def test_an_open_line_passes_everything_on_in_order() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        assert await answer_to(reader, writer, b"one\n") == b"ONE\n"
        long = b"x" * 300_000 + b"\n"
        writer.write(long)
        async with asyncio.timeout(ANSWER_S_MAX):
            assert await reader.readexactly(len(long)) == long.upper()
        writer.write_eof()
        assert proxy.connections_count == 1


async def test_a_slow_line_passes_everything_on_late() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        proxy.set_mode(LineMode.SLOW, pause_s=PAUSE_S)
        begun_s = time.monotonic()
        assert await answer_to(reader, writer, b"slow\n") == b"SLOW\n"
        assert time.monotonic() - begun_s >= 2 * PAUSE_S  # there and back


async def test_a_held_line_takes_connections_and_passes_nothing_until_it_is_open_again() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        assert await answer_to(reader, writer, b"before\n") == b"BEFORE\n"
        proxy.set_mode(LineMode.HELD)
        async with connected(proxy) as (later_reader, later_writer):
            writer.write(b"held\n")
            later_writer.write(b"new\n")
            for waiting in (reader, later_reader):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(SILENCE_S):
                        await waiting.readline()
            proxy.set_mode(LineMode.OPEN)
            async with asyncio.timeout(ANSWER_S_MAX):
                assert await reader.readline() == b"HELD\n"
                assert await later_reader.readline() == b"NEW\n"


async def test_a_refused_line_breaks_what_stands_and_what_comes() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        assert await answer_to(reader, writer, b"before\n") == b"BEFORE\n"
        proxy.set_mode(LineMode.REFUSED)
        assert await ended(reader)
        async with connected(proxy) as (later, _):
            assert await ended(later)
        proxy.set_mode(LineMode.OPEN)
        async with connected(proxy) as (again_reader, again_writer):
            assert await answer_to(again_reader, again_writer, b"again\n") == b"AGAIN\n"


async def test_a_cut_breaks_every_standing_connection_and_no_later_one() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        assert await answer_to(reader, writer, b"before\n") == b"BEFORE\n"
        assert proxy.cut() == 1
        assert await ended(reader)
        async with connected(proxy) as (later_reader, later_writer):
            assert await answer_to(later_reader, later_writer, b"after\n") == b"AFTER\n"


async def test_a_server_that_is_not_there_ends_the_connection() -> None:
    proxy = Proxy(free_port((), SystemRandom()))
    await proxy.open(free_port((), SystemRandom()))
    async with connected(proxy) as (reader, _):
        assert await ended(reader)
    await proxy.close()
