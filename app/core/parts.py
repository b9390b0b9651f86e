"""A piece of an upload in memory that the store's client sends block by block, letting go of each block as it goes.

Invariant: every byte is copied once, into its block, however small the pieces come; what was sent is held no longer,
so a part is sent anew only as long as nothing of it was taken, or when it was kept for that.
"""

import asyncio
import io
from collections import deque
from collections.abc import AsyncIterator

from app.core.clock import monotonic_s

#: Pieces are gathered to blocks of this size; a write to the store is one block.
BLOCK_BYTES = 128 * 1024


class Part:
    """Blocks of bytes: filled first, then given to the store's client as its body."""

    def __init__(self) -> None:
        self._blocks: deque[bytearray] = deque()
        self._room = memoryview(b"")  #: what is left of the last block
        self._size_bytes = 0
        self._let_go = asyncio.Event()
        self._kept = False
        #: Bytes that are still in memory.
        self.held_bytes = 0
        #: When the store last took bytes; 0 when it has not yet.
        self.read_at_s = 0.0

    def __len__(self) -> int:
        """Return the size of the whole part, bytes, sent or not."""
        return self._size_bytes

    def write(self, view: memoryview) -> None:
        """Take bytes in."""
        while len(view):
            if not len(self._room):
                # Whole at once: one that grows takes an eighth more than it holds.
                self._blocks.append(bytearray(BLOCK_BYTES))
                self._room = memoryview(self._blocks[-1])
            taken = view[: len(self._room)]
            self._room[: len(taken)] = taken
            self._room = self._room[len(taken) :]
            self._size_bytes += len(taken)
            self.held_bytes += len(taken)
            view = view[len(taken) :]

    def keep(self) -> None:
        """Hold every block until the end, so that the client may send all of it again."""
        self._kept = True

    def drop(self) -> None:
        """Let go of every block: nothing of it is wanted any more."""
        self._blocks.clear()
        self._room = memoryview(b"")
        self.held_bytes = 0

    async def less_held(self) -> None:
        """Wait until the store has taken more of this part."""
        self._let_go.clear()
        await self._let_go.wait()

    async def __aiter__(self) -> AsyncIterator[bytearray]:
        """Yield the blocks, each once; the part is complete."""
        self._end_last_block()
        for block in list(self._blocks) if self._kept else ():
            self.read_at_s = monotonic_s()
            yield block
        while self._blocks and not self._kept:
            yield self._take()

    def read(self, _size_bytes: int = -1, /) -> bytes:
        """Return what is left. The store's client takes only what can be read for a body, but iterates over it."""
        self._end_last_block()
        return b"".join(self._take() for _ in range(len(self._blocks)))

    def seek(self, offset_bytes: int, /) -> int:
        """Begin anew, for the client's second try; possible when nothing was let go of.

        Raises:
            io.UnsupportedOperation: part of it is gone.
        """
        if offset_bytes or (self.read_at_s and not self._kept):
            raise io.UnsupportedOperation("bytes that were sent are not held any more")
        return 0

    def _end_last_block(self) -> None:
        room_bytes = len(self._room)
        self._room = memoryview(b"")
        if room_bytes:
            del self._blocks[-1][-room_bytes:]

    def _take(self) -> bytearray:
        self.read_at_s = monotonic_s()
        block = self._blocks.popleft()
        self.held_bytes -= len(block)
        self._let_go.set()
        return block
