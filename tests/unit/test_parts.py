"""A part of an upload in memory: gathered to blocks, given to the store's client once, let go of as it goes."""

import asyncio
import io

import pytest

from app.core.parts import BLOCK_BYTES, Part


def filled(*pieces: bytes) -> Part:
    part = Part()
    for piece in pieces:
        part.write(memoryview(piece))
    return part


async def blocks_of(part: Part) -> list[bytes]:
    return [bytes(block) async for block in part]


async def test_single_bytes_are_gathered_to_whole_blocks() -> None:
    data = bytes(range(256)) * (2 * BLOCK_BYTES // 256) + b"end"
    part = filled(*(data[at : at + 1] for at in range(len(data))))
    blocks = await blocks_of(part)
    assert [len(block) for block in blocks] == [BLOCK_BYTES, BLOCK_BYTES, 3]
    assert b"".join(blocks) == data


async def test_what_the_store_has_taken_is_held_no_longer_and_the_size_stays() -> None:
    part = filled(b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES)
    held = [part.held_bytes async for _ in part]
    assert held == [BLOCK_BYTES, 0]
    assert len(part) == 2 * BLOCK_BYTES


async def test_whoever_waits_for_room_goes_on_when_the_store_takes_a_block() -> None:
    part = filled(b"a" * BLOCK_BYTES)
    waiting = asyncio.ensure_future(part.less_held())
    await asyncio.sleep(0)
    assert not waiting.done()
    await blocks_of(part)
    await asyncio.wait_for(waiting, 1.0)


async def test_a_part_is_sent_anew_only_while_nothing_of_it_was_taken() -> None:
    part = filled(b"abc")
    assert part.seek(0) == 0
    assert part.read() == b"abc"
    with pytest.raises(io.UnsupportedOperation):
        part.seek(0)


async def test_a_part_that_is_kept_can_be_sent_again_whole() -> None:
    part = filled(b"a" * BLOCK_BYTES, b"b")
    part.keep()
    first = await blocks_of(part)
    assert part.seek(0) == 0
    assert await blocks_of(part) == first == [b"a" * BLOCK_BYTES, b"b"]


def test_an_empty_part_is_no_body() -> None:
    assert not Part()


def test_a_part_that_is_dropped_holds_nothing() -> None:
    part = filled(b"a" * BLOCK_BYTES, b"b")
    part.drop()
    assert (part.held_bytes, part.read()) == (0, b"")
