"""The child of the sandbox: `python -m worker.child CONFIG`, one image at a time, over the socket on fd 0.

Invariant: it may die at any moment and loses nothing but the image in hand. It is confined before the first
image: memory, CPU time per image, files, the loaders of libvips. It holds no credentials (an empty
environment) and ends with its parent. Linux only, like /proc and the death signal it rests on.
"""

import ctypes
import math
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyvips

from contracts.errors import FailureCode
from contracts.images import ImageLimits, TransformParams
from worker.child_protocol import (
    CRASH_TEXT_BYTES_MAX,
    FRAME_HEAD_BYTES,
    JOB_BYTES_MAX,
    ChildConfig,
    Done,
    FrameKind,
    done_body,
    frame_head,
    parse_frame_head,
    parse_params,
    variant_body,
)
from worker.transform import decode_master, make_variants
from worker.variants import ImageRejected, Transformed

_CHANNEL_FD = 0
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# Header of capset(2), version 3, this process; then effective, permitted, inheritable of both halves: none.
_CAPSET_HEADER, _CAPSET_NOTHING = (0x20080522, 0), (0,) * 6
_OPEN_FILES_MAX = 64
#: A heap that large after an image is freed memory for the most part, which the C library would keep for the next one.
#: Giving it back costs some per cent of an ordinary image, so it is done after large ones only.
KEPT_RSS_BYTES_MAX = 96 * 1024 * 1024
_OOM_SCORE_ADJ = "500"  # the kernel's first choice, before the parent and its neighbours

# Only buffers: no loader that could open a file exists for an image to reach. UltraHDR is left out too: its
# pictures are JPEGs whose gain map is dropped here anyway.
_LOADERS = tuple(f"VipsForeignLoad{name}Buffer" for name in ("Jpeg", "Png", "Webp", "Nsgif", "Tiff", "Heif"))
_SAVERS = ("VipsForeignSaveJpegBuffer", "VipsForeignSaveWebpBuffer")


def main() -> None:
    """Serve images until the parent is gone."""
    config = ChildConfig.from_json(sys.argv[1])
    _follow_parent(config.parent_pid)
    confine_libvips()
    _confine_process(config)
    _drop_privileges()
    channel = socket.socket(fileno=_CHANNEL_FD)
    version = ".".join(str(pyvips.version(part)) for part in range(3))
    _send(channel, FrameKind.HELLO, version.encode())
    while (job := _receive_job(channel)) is not None:
        _serve(channel, *job, limits=config.limits)
        del job
        _give_back_memory()


def confine_libvips() -> None:
    """Leave of libvips only the loaders and savers that are needed, from and to memory, without its cache."""
    pyvips.block_untrusted_set(True)
    for kind, wanted in (("VipsForeignLoad", _LOADERS), ("VipsForeignSave", _SAVERS)):
        pyvips.operation_block_set(kind, True)
        for name in wanted:
            pyvips.operation_block_set(name, False)
    pyvips.cache_set_max(0)


def _serve(channel: socket.socket, params: TransformParams, source: bytes, *, limits: ImageLimits) -> None:
    started_s = time.process_time()
    _limit_cpu(started_s + limits.cpu_s_max)
    _reset_peak()
    try:
        master = decode_master(source, params=params, limits=limits)
        for variant in make_variants(master, params=params):
            _send(channel, FrameKind.VARIANT, variant_body(variant))
    except ImageRejected as rejection:
        _send(channel, FrameKind.REJECTED, rejection.code.value.encode())
        return
    except MemoryError:
        _send(channel, FrameKind.REJECTED, FailureCode.IMAGE_MEMORY_LIMIT.value.encode())
        return
    rss_bytes, rss_bytes_peak = _rss_and_peak()
    transformed = Transformed(
        image_format=master.image_format,
        width_px=master.width_px,
        height_px=master.height_px,
        cpu_s=time.process_time() - started_s,
        rss_bytes_peak=rss_bytes_peak,
    )
    _send(channel, FrameKind.DONE, done_body(Done(transformed=transformed, rss_bytes=rss_bytes)))


def _follow_parent(parent_pid: int) -> None:
    # Asked to stop, the parent lets images in hand finish: signals sent to the whole group must not reach here.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(0)


def _confine_process(config: ChildConfig) -> None:
    os.nice(config.nice)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJ, encoding="ascii")
    _lower_limit(resource.RLIMIT_AS, config.limits.memory_bytes_max)
    _lower_limit(resource.RLIMIT_NOFILE, _OPEN_FILES_MAX)
    _lower_limit(resource.RLIMIT_CORE, 0)
    _lower_limit(resource.RLIMIT_FSIZE, 0)  # no file can be written, so none can be left behind


def _drop_privileges() -> None:
    """Give up every capability, for good: what decodes hostile bytes needs none, whoever started it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * len(_CAPSET_HEADER))(*_CAPSET_HEADER)
    nothing = (ctypes.c_uint32 * len(_CAPSET_NOTHING))(*_CAPSET_NOTHING)
    if libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "the child could not give up its capabilities")


def _lower_limit(kind: int, wanted: int) -> None:
    _, hard = resource.getrlimit(kind)
    bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (bound, bound))


def _limit_cpu(until_s: float) -> None:
    """Let SIGXCPU end this process once it has used `until_s` of CPU time in all (whole seconds, rounded up)."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(until_s)
    bound = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (bound, hard))


def _reset_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _rss_and_peak() -> tuple[int, int]:
    sizes_kib = {"VmRSS": 0, "VmHWM": 0}
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in sizes_kib:
            sizes_kib[name] = int(value.split()[0])
    return sizes_kib["VmRSS"] * 1024, sizes_kib["VmHWM"] * 1024


def _give_back_memory() -> None:
    if _rss_and_peak()[0] > KEPT_RSS_BYTES_MAX:
        with suppress(AttributeError):  # of the GNU library alone
            ctypes.CDLL(None).malloc_trim(0)


def _receive_job(channel: socket.socket) -> tuple[TransformParams, bytes] | None:
    """Return the parameters and source of the next job, or None when the parent is gone."""
    params = _receive_frame(channel)
    source = _receive_frame(channel) if params is not None else None
    return None if params is None or source is None else (parse_params(params), source)


def _receive_frame(channel: socket.socket) -> bytes | None:
    head = _receive(channel, FRAME_HEAD_BYTES)
    if head is None:
        return None
    _, body_bytes = parse_frame_head(head, body_bytes_max=JOB_BYTES_MAX)
    return _receive(channel, body_bytes)


def _receive(channel: socket.socket, length_bytes: int) -> bytes | None:
    """Return exactly so many bytes, or None when the parent is gone."""
    parts: list[bytes] = []
    missing_bytes = length_bytes
    while missing_bytes:  # one round, but for a stop and continue of this process in the middle
        part = channel.recv(missing_bytes, socket.MSG_WAITALL)
        if not part:
            return None
        parts.append(part)
        missing_bytes -= len(part)
    return b"".join(parts)


def _send(channel: socket.socket, kind: FrameKind, body: bytes) -> None:
    channel.sendall(frame_head(kind, len(body)) + body)


def _run(entry: Callable[[], None]) -> int:
    try:
        entry()
    except (BrokenPipeError, ConnectionResetError):
        return os.EX_OK  # the parent is gone
    except Exception:  # noqa: BLE001 - the outermost frame of the process: the parent logs what it was
        text = traceback.format_exc().encode("utf-8", "replace")[-CRASH_TEXT_BYTES_MAX:]
        with suppress(OSError), socket.socket(fileno=_CHANNEL_FD) as channel:
            _send(channel, FrameKind.CRASHED, text)
        return os.EX_SOFTWARE
    return os.EX_OK


if __name__ == "__main__":
    # No clean-up: threads of libvips may still hold what the interpreter would tear down.
    os._exit(_run(main))
