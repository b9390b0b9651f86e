"""What the sandbox's parent and its children say to each other: length-prefixed frames over one stream socket.

Invariant: pure and strict. A child that decoded a hostile image is not trusted: every length is bounded and
every field is checked before it is used.
"""

import json
import struct
from dataclasses import asdict, dataclass
from enum import IntEnum

from contracts.errors import FailureCode
from contracts.images import ImageFormat, ImageLimits, TransformParams, VariantName
from worker.variants import Transformed, Variant

#: No frame to a child is longer; sources have a lower limit of their own.
JOB_BYTES_MAX = 1024 * 1024 * 1024

#: No frame from a child is longer: four times the pixels of the largest WebP that may be asked for.
ANSWER_BYTES_MAX = 64 * 1024 * 1024

#: A crash report longer than this is cut.
CRASH_TEXT_BYTES_MAX = 4096

#: Peers read this many bytes to know the kind and the length of what follows.
FRAME_HEAD_BYTES = 5

_FRAME_HEAD = struct.Struct(">BI")
_VARIANT_HEAD = struct.Struct(">B32sII")
_VARIANTS = tuple(VariantName)


class FrameKind(IntEnum):
    """Every kind of frame. A child answers a job with variants and then one of the last three."""

    HELLO = 1  #: child: ready, with the version of libvips
    PARAMS = 2  #: parent: the parameters of the job whose source follows
    SOURCE = 3  #: parent: the bytes of one image
    VARIANT = 4  #: child: one finished variant
    DONE = 5  #: child: all variants are sent; the facts about the source
    REJECTED = 6  #: child: the image is refused, with its code
    CRASHED = 7  #: child: a fault of our own, with its traceback; the child exits


class ProtocolError(Exception):
    """The peer said something that does not belong to the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildConfig:
    """What a child is told at its start, as its one argument."""

    limits: ImageLimits
    nice: int  #: added to the parent's niceness
    parent_pid: int  #: the child exits when its parent is another one

    def to_json(self) -> str:
        """Return the argument for the child's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ChildConfig":
        """Return what `to_json` was called on."""
        fields = json.loads(text)
        limits = ImageLimits(**fields["limits"])
        return cls(limits=limits, nice=fields["nice"], parent_pid=fields["parent_pid"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The last frame of a good job: the facts for the caller and the child's own size."""

    transformed: Transformed
    rss_bytes: int  #: resident memory after the job; decides whether the child is replaced


def frame_head(kind: FrameKind, body_bytes: int) -> bytes:
    """Return the head of a frame whose body has this length."""
    return _FRAME_HEAD.pack(kind, body_bytes)


def parse_frame_head(head: bytes | bytearray, *, body_bytes_max: int) -> tuple[FrameKind, int]:
    """Return kind and body length.

    Raises:
        ProtocolError: the kind is unknown or the body too long.
    """
    number, body_bytes = _FRAME_HEAD.unpack(head)
    if body_bytes > body_bytes_max:
        raise ProtocolError(f"a frame of {body_bytes} bytes")
    try:
        return FrameKind(number), body_bytes
    except ValueError as exc:
        raise ProtocolError(f"frame kind {number}") from exc


def job_head(params: TransformParams, source_bytes: int) -> bytes:
    """Return all that goes before the source's bytes: a `PARAMS` frame and the head of a `SOURCE` frame."""
    body = json.dumps(asdict(params)).encode()
    return frame_head(FrameKind.PARAMS, len(body)) + body + frame_head(FrameKind.SOURCE, source_bytes)


def parse_params(body: bytes) -> TransformParams:
    """Return the content of a `PARAMS` frame."""
    return TransformParams(**json.loads(body))


def variant_body(variant: Variant) -> bytes:
    """Return the body of a `VARIANT` frame."""
    head = _VARIANT_HEAD.pack(
        _VARIANTS.index(variant.name), bytes.fromhex(variant.sha256), variant.width_px, variant.height_px
    )
    return head + variant.data


def parse_variant(body: bytearray) -> Variant:
    """Return the variant of a `VARIANT` frame.

    Raises:
        ProtocolError: the body is not one.
    """
    try:
        index, digest, width_px, height_px = _VARIANT_HEAD.unpack_from(body)
        name = _VARIANTS[index]
    except (struct.error, IndexError) as exc:
        raise ProtocolError("a malformed variant") from exc
    data = bytes(memoryview(body)[_VARIANT_HEAD.size :])
    return Variant(name=name, data=data, sha256=digest.hex(), width_px=width_px, height_px=height_px)


def done_body(done: Done) -> bytes:
    """Return the body of a `DONE` frame."""
    return json.dumps({**asdict(done.transformed), "rss_bytes": done.rss_bytes}).encode()


def parse_done(body: bytearray) -> Done:
    """Return the content of a `DONE` frame.

    Raises:
        ProtocolError: the body is not one.
    """
    try:
        fields = json.loads(body)
        transformed = Transformed(
            image_format=ImageFormat(fields["image_format"]),
            width_px=int(fields["width_px"]),
            height_px=int(fields["height_px"]),
            cpu_s=float(fields["cpu_s"]),
            rss_bytes_peak=int(fields["rss_bytes_peak"]),
        )
        return Done(transformed=transformed, rss_bytes=int(fields["rss_bytes"]))
    except (ValueError, KeyError, TypeError) as exc:
        raise ProtocolError("a malformed last frame") from exc


def parse_rejection(body: bytearray) -> FailureCode:
    """Return the code of a `REJECTED` frame.

    Raises:
        ProtocolError: the code is not of the closed set.
    """
    try:
        return FailureCode(body.decode("ascii"))
    except ValueError as exc:
        raise ProtocolError("an unknown rejection") from exc
