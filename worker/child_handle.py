"""The parent's hold on one sandbox child: start it, give it one image at a time, know why it died.

Invariant: after anything but a good answer or a plain rejection the child is killed and never used again, and
every wait here ends: with the frame, with the wall limit, or with the child's death. Never imports pyvips.
"""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from contracts.errors import FailureCode
from contracts.images import TransformParams
from worker.child_protocol import (
    ANSWER_BYTES_MAX,
    FRAME_HEAD_BYTES,
    ChildConfig,
    FrameKind,
    ProtocolError,
    job_head,
    parse_done,
    parse_frame_head,
    parse_rejection,
    parse_variant,
)
from worker.variants import ImageRejected, Transformed, Variant

#: A child that has not said hello by then is given up.
HELLO_TIMEOUT_S = 30.0

#: What either side may have on its way; the kernel gives less where its own limit is lower. Fewer turns for an image.
CHANNEL_BUFFER_BYTES = 2 * 1024 * 1024

#: The wall limit is counted in so many slices, so that a frozen parent (or host) spends one slice, not the limit.
WALL_SLICES = 20

#: The exit status of a process that closed its socket is asked for after these waits, and at last after a kill.
REAP_DELAYS_S = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)

#: All that a child inherits. No credentials, and libvips reads these before its first line of ours runs.
#: The disc threshold keeps it from spilling pixels into temporary files: the memory limit decides instead.
CHILD_ENVIRONMENT = {
    "VIPS_BLOCK_UNTRUSTED": "1",
    "VIPS_CONCURRENCY": "1",
    "VIPS_DISC_THRESHOLD": "64g",
    "MALLOC_ARENA_MAX": "2",
    "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
}

#: A killed child whose start was cancelled is waited for no longer than this.
ABANDON_WAIT_S = 1.0

#: More than there are variants: the count only keeps a child gone wild from talking for ever.
FRAMES_PER_JOB_MAX = 16

# The allocators of GLib and C++ end the process in these ways when the address space is used up.
_MEMORY_SIGNALS = frozenset({signal.SIGABRT, signal.SIGTRAP})


class ChildDied(Exception):  # noqa: N818 - an anticipated outcome of an attempt, not a fault
    """The child ended for no reason of the image's that is known; another attempt may do."""


class ChildProcess:
    """One running child. Not for concurrent use: one `run` at a time."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, *, wall_s_max: float) -> None:
        self._process = process
        self._channel = channel
        self._wall_s_max = wall_s_max
        self._wall_passed = False
        self._broken = False
        self.libvips_version = ""
        self.jobs = 0  #: images answered for
        self.rss_bytes = 0  #: resident memory after the last good image

    @classmethod
    async def spawn(cls, config: ChildConfig) -> "ChildProcess":
        """Return a child that is ready for its first image.

        Raises:
            ChildDied: it could not be started, or died or kept silent before its hello.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHANNEL_BUFFER_BYTES)
        try:
            process = _start(config, theirs)
        except OSError as exc:
            ours.close()
            raise ChildDied(f"a child could not be started: {exc}") from exc
        finally:
            theirs.close()
        child = cls(process, ours, wall_s_max=config.limits.wall_s_max)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await child._greet()
        except (TimeoutError, ProtocolError, OSError, EOFError) as exc:
            await child.reap()
            raise ChildDied(f"a child gave no hello: {exc!r}") from exc
        except BaseException:
            child._abandon()
            raise
        return child

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether another image may be given to it."""
        return not self._broken and self._process.poll() is None

    async def run(
        self, source: bytes, *, params: TransformParams, on_variant: Callable[[Variant], None]
    ) -> Transformed:
        """Return the facts about `source` after each of its variants was handed to `on_variant`.

        Raises:
            ImageRejected: the image is refused, or the child died by a limit.
            ChildDied: the child ended otherwise.
        """
        watch = _WallWatch(wall_s=self._wall_s_max, on_passed=self._kill_at_wall)
        try:
            return await self._converse(source, params, on_variant)
        except (OSError, EOFError) as exc:
            raise await self._cause_of_death() from exc
        except ProtocolError as exc:
            self.kill()
            raise ChildDied(f"child {self.pid} broke the protocol: {exc}") from exc
        except ImageRejected:
            raise
        except BaseException:
            self.kill()
            raise
        finally:
            watch.stop()

    def kill(self) -> None:
        """End the child at once. It is not usable afterwards; `reap` must follow."""
        self._broken = True
        if self._process.poll() is None:
            self._process.kill()

    async def reap(self) -> int | None:
        """Return the exit status, after a kill if need be, and free what the child held here.

        None when even a killed process does not end (it hangs in the kernel).
        """
        self._broken = True
        status = await self._wait_for_exit()
        if status is None:
            self.kill()
            status = await self._wait_for_exit()
        self._channel.close()
        return status

    def _abandon(self) -> None:
        """Kill and free at once, for where nothing may be awaited any more."""
        self.kill()
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ABANDON_WAIT_S)

    async def _greet(self) -> None:
        kind, body = await self._receive()
        if kind is not FrameKind.HELLO:
            raise ProtocolError(f"{kind.name} in place of a hello: {body.decode('utf-8', 'replace')}")
        self.libvips_version = body.decode("ascii", "replace")

    async def _converse(
        self, source: bytes, params: TransformParams, on_variant: Callable[[Variant], None]
    ) -> Transformed:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._channel, job_head(params, len(source)))
        await loop.sock_sendall(self._channel, source)
        for _ in range(FRAMES_PER_JOB_MAX):
            kind, body = await self._receive()
            if kind is FrameKind.VARIANT:
                on_variant(parse_variant(body))
            else:
                return self._conclude(kind, body)
        raise ProtocolError("too many variants")

    def _conclude(self, kind: FrameKind, body: bytearray) -> Transformed:
        self.jobs += 1
        if kind is FrameKind.DONE:
            done = parse_done(body)
            self.rss_bytes = done.rss_bytes
            return done.transformed
        if kind is FrameKind.REJECTED:
            code = parse_rejection(body)
            if code is FailureCode.IMAGE_MEMORY_LIMIT:
                self.kill()  # its heap is full of holes now
            raise ImageRejected(code)
        if kind is FrameKind.CRASHED:
            self.kill()
            raise ChildDied(f"child {self.pid} crashed:\n{body.decode('utf-8', 'replace')}")
        raise ProtocolError(f"{kind.name} in place of an answer")

    async def _receive(self) -> tuple[FrameKind, bytearray]:
        head = await self._receive_exactly(FRAME_HEAD_BYTES)
        kind, body_bytes = parse_frame_head(head, body_bytes_max=ANSWER_BYTES_MAX)
        return kind, await self._receive_exactly(body_bytes)

    async def _receive_exactly(self, length_bytes: int) -> bytearray:
        loop = asyncio.get_running_loop()
        received = bytearray(length_bytes)
        rest = memoryview(received)
        while rest:
            count = await loop.sock_recv_into(self._channel, rest)
            if not count:
                raise EOFError
            rest = rest[count:]
        return received

    async def _cause_of_death(self) -> Exception:
        self._broken = True
        status = await self._wait_for_exit()
        if self._wall_passed:
            return ImageRejected(FailureCode.IMAGE_TIME_LIMIT, retryable=True)
        if status is None:
            self.kill()
        elif -status == signal.SIGXCPU:
            return ImageRejected(FailureCode.IMAGE_TIME_LIMIT)
        elif -status in _MEMORY_SIGNALS:
            return ImageRejected(FailureCode.IMAGE_MEMORY_LIMIT)
        return ChildDied(f"child {self.pid} ended with status {status}")

    async def _wait_for_exit(self) -> int | None:
        for delay_s in REAP_DELAYS_S:
            status = self._process.poll()
            if status is not None:
                return status
            await asyncio.sleep(delay_s)
        return self._process.poll()

    def _kill_at_wall(self) -> None:
        self._wall_passed = True
        self.kill()


class _WallWatch:
    """Calls `on_passed` once `wall_s` of wall-clock time in which this process ran have passed."""

    def __init__(self, *, wall_s: float, on_passed: Callable[[], None]) -> None:
        self._slice_s = wall_s / WALL_SLICES
        self._slices_left = WALL_SLICES
        self._on_passed = on_passed
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._slice_s, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        self._slices_left -= 1
        if self._slices_left:
            self._timer = self._loop.call_later(self._slice_s, self._tick)
        else:
            self._on_passed()


def _start(config: ChildConfig, channel: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "worker.child", config.to_json()],
        stdin=channel.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=CHILD_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
