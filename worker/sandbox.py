"""A fixed number of killable child processes that turn images into variants, for an asyncio parent.

Invariant: at most `children` images are decoded at once, at most one of them a heavy one; a slot always comes
back, with a child in it or without; a child is replaced, never repaired. Never imports pyvips.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext

from app.core.sniff import check_header
from contracts.errors import FailureCode
from contracts.images import ImageLimits, TransformParams
from worker.child_handle import ChildDied, ChildProcess
from worker.child_protocol import ChildConfig
from worker.variants import Transformed, Variant

__all__ = ["ChildDied", "Sandbox"]

#: Children are replaced after so many images, before small leaks of the codecs add up.
JOBS_PER_CHILD_MAX = 200

#: ... or when they stay larger than this after an image.
CHILD_RSS_BYTES_MAX = 512 * 1024 * 1024

#: Pictures from this size on are heavy when their decoder needs the whole frame (6 to 15 B a pixel).
HEAVY_PIXELS_MIN = 12_000_000

#: That is looked for in so many first bytes, so that no hostile file can hold up the event loop.
HEAVY_HEAD_BYTES = 1024 * 1024

#: `close` gives up waiting for images in hand after this long; they were killed before.
CLOSE_TIMEOUT_S = 10.0


class Sandbox:
    """The pool of children. `start` first, `close` at last; `transform` may be called concurrently."""

    def __init__(
        self,
        *,
        children: int,
        limits: ImageLimits,
        params: TransformParams,
        nice: int = 5,
        jobs_per_child_max: int = JOBS_PER_CHILD_MAX,
        child_rss_bytes_max: int = CHILD_RSS_BYTES_MAX,
    ) -> None:
        self._children = children
        self._params = params
        self._config = ChildConfig(limits=limits, nice=nice, parent_pid=os.getpid())
        self._jobs_per_child_max = jobs_per_child_max
        self._child_rss_bytes_max = child_rss_bytes_max
        self._slots: asyncio.LifoQueue[ChildProcess | None] = asyncio.LifoQueue()
        self._heavy = asyncio.Semaphore(1)
        self._alive: set[ChildProcess] = set()
        self._busy = 0
        self._spare: ChildProcess | None = None
        self._spare_coming = False
        self._background: set[asyncio.Task[None]] = set()
        self._libvips_version = ""
        self._closed = False

    @property
    def libvips_version(self) -> str:
        """The version of libvips that the children run, for the pipeline's digest. Empty before `start`."""
        return self._libvips_version

    @property
    def busy(self) -> int:
        """How many images are in work now."""
        return self._busy

    @property
    def child_pids(self) -> tuple[int, ...]:
        """The process ids of the children that are alive, a spare one included."""
        return tuple(child.pid for child in self._alive)

    async def start(self) -> None:
        """Start all children.

        Raises:
            ChildDied: one of them cannot be started.
        """
        results = await asyncio.gather(*(self._spawn() for _ in range(self._children)), return_exceptions=True)
        for result in results:
            self._slots.put_nowait(result if isinstance(result, ChildProcess) else None)
        for result in results:
            if isinstance(result, BaseException):
                await self.close()
                raise result

    async def close(self) -> None:
        """Stop all children; images in hand end with `ChildDied`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for child in self._alive:
            child.kill()
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            for _ in range(self._children):
                self._retire(await self._slots.get())
            self._slots.put_nowait(None)  # wakes whoever waits for a slot, one after the other
            self._retire_spare()
            while self._background:
                await asyncio.wait(self._background)
                self._retire_spare()

    async def transform(
        self,
        source: bytes,
        *,
        on_variant: Callable[[Variant], None],
        params: TransformParams | None = None,
    ) -> Transformed:
        """Return the facts about `source` after each of its variants was handed to `on_variant`.

        Waits for a free child. Cancelling kills the child that works on the image. `params` are those of the
        sandbox unless the job has its own.

        Raises:
            ImageRejected: the image is refused, with its code.
            ChildDied: the child ended for an unknown reason, or none can be had; another attempt may do.
        """
        async with self._turn(source):
            child = await self._take()
            self._busy += 1
            try:
                return await child.run(source, params=params or self._params, on_variant=on_variant)
            finally:
                self._busy -= 1
                self._give_back(child)

    def _turn(self, source: bytes) -> AbstractAsyncContextManager[object]:
        """Return what lets one heavy image through at a time, and all others at once."""
        header = check_header(source[:HEAVY_HEAD_BYTES], self._config.limits)
        if isinstance(header, FailureCode) or not header.whole_frame:
            return nullcontext()
        heavy = (header.width_px or 0) * (header.height_px or 0) >= HEAVY_PIXELS_MIN
        return self._heavy if heavy else nullcontext()

    async def _take(self) -> ChildProcess:
        child = await self._slots.get()
        if not self._closed and (child is None or not child.usable):
            self._retire(child)
            child = await self._spawn_for_slot()
        if child is None or self._closed:
            self._slots.put_nowait(child)
            raise ChildDied("the sandbox is closed")
        return child

    async def _spawn_for_slot(self) -> ChildProcess:
        try:
            return await self._spawn()
        except BaseException:
            self._slots.put_nowait(None)
            raise

    def _give_back(self, child: ChildProcess) -> None:
        if self._closed:
            self._slots.put_nowait(child)  # for `close` to collect
        elif not child.usable:
            self._run_in_background(self._refill(child))
        elif self._is_worn(child) and self._spare is not None:
            self._slots.put_nowait(self._spare)
            self._spare = None
            self._retire(child)
        else:
            if self._is_worn(child) and not self._spare_coming:
                self._spare_coming = True
                self._run_in_background(self._bring_spare())
            self._slots.put_nowait(child)

    def _is_worn(self, child: ChildProcess) -> bool:
        return child.jobs >= self._jobs_per_child_max or child.rss_bytes > self._child_rss_bytes_max

    async def _refill(self, dead: ChildProcess) -> None:
        """Put a new child in the place of a dead one, or nothing: then the next image tries again."""
        fresh: ChildProcess | None = None
        try:
            await self._reap(dead)
            fresh = await self._spawn()
        except ChildDied:
            fresh = None
        finally:
            self._slots.put_nowait(fresh)

    async def _bring_spare(self) -> None:
        try:
            self._spare = await self._spawn()
        except ChildDied:
            self._spare = None  # the worn one goes on, and asks again after its next image
        finally:
            self._spare_coming = False

    def _retire_spare(self) -> None:
        self._retire(self._spare)
        self._spare = None

    def _retire(self, child: ChildProcess | None) -> None:
        if child is not None:
            child.kill()
            self._run_in_background(self._reap(child))

    async def _reap(self, child: ChildProcess) -> None:
        await child.reap()
        self._alive.discard(child)

    async def _spawn(self) -> ChildProcess:
        child = await ChildProcess.spawn(self._config)
        self._alive.add(child)
        self._libvips_version = self._libvips_version or child.libvips_version
        return child

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        running = asyncio.get_running_loop().create_task(work)
        self._background.add(running)
        running.add_done_callback(self._background.discard)
