"""What passes between a worker and the broker, as the wire shows it: deliveries and their acknowledgements.

Invariant: it reads along and changes nothing. Whatever the code claims of itself, this is when an ack really left.
"""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

_HEADER_BYTES = 8  #: "AMQP" and the version, once, from the client
_HEAD = struct.Struct(">BHI")
_METHOD, _CONTENT_HEAD, _CONTENT_BODY = 1, 2, 3
_DELIVER, _ACK = (60, 60), (60, 80)
#: More than any frame that broker and client agree on: what claims to be longer is no AMQP.
FRAME_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """One delivery to one process; times are seconds of the wall clock, None when it did not come to that."""

    process: str
    session: int
    tag: int
    job_id: UUID | None  #: None for a body that names no job
    delivered_s: float
    acked_s: float | None = None
    ended_s: float | None = None  #: of the connection


class DeliveryLog:
    """All deliveries that passed the taps of a run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions_count = 0
        self._rows: dict[tuple[int, int], DeliveryRow] = {}

    def tap(self, process: str) -> "AmqpTap":
        """Return the listener of one connection of a process."""
        self._sessions_count += 1
        return AmqpTap(self, process=process, session=self._sessions_count)

    def rows(self) -> tuple[DeliveryRow, ...]:
        """Return what was seen, in order."""
        return tuple(self._rows.values())

    def delivered(self, process: str, *, session: int, tag: int, job_id: UUID | None) -> None:
        """Note a delivery."""
        self._rows[session, tag] = DeliveryRow(
            process=process, session=session, tag=tag, job_id=job_id, delivered_s=self._clock()
        )

    def acked(self, session: int, *, tag: int, and_earlier: bool) -> None:
        """Note an acknowledgement."""
        now_s = self._clock()
        for key, row in self._rows.items():
            if key[0] == session and row.acked_s is None and (key[1] == tag or (and_earlier and key[1] < tag)):
                self._rows[key] = replace(row, acked_s=now_s)

    def ended(self, session: int) -> None:
        """Note the end of a connection."""
        now_s = self._clock()
        for key, row in self._rows.items():
            if key[0] == session:
                self._rows[key] = replace(row, ended_s=now_s)


class AmqpTap:
    """Reads the frames of one connection."""

    def __init__(self, log: DeliveryLog, *, process: str, session: int) -> None:
        self._log = log
        self._process = process
        self._session = session
        self._up, self._down = bytearray(), bytearray()
        self._greeted = False
        self._open: tuple[int, int] | None = None  #: delivery tag, bytes of its body to come
        self._body = bytearray()

    def sent(self, data: bytes) -> None:
        """Look for acknowledgements."""
        self._up += data
        if not self._greeted:
            if len(self._up) < _HEADER_BYTES:
                return
            del self._up[:_HEADER_BYTES]
            self._greeted = True
        for kind, payload in _frames(self._up):
            if kind == _METHOD and _method(payload) == _ACK:
                tag, flags = struct.unpack_from(">QB", payload, 4)
                self._log.acked(self._session, tag=tag, and_earlier=bool(flags & 1))

    def received(self, data: bytes) -> None:
        """Look for deliveries and their bodies."""
        self._down += data
        for kind, payload in _frames(self._down):
            if kind == _METHOD:
                self._open = (_delivery_tag(payload), 0) if _method(payload) == _DELIVER else None
                self._body.clear()
            elif kind == _CONTENT_HEAD and self._open is not None:
                self._open = (self._open[0], struct.unpack_from(">Q", payload, 4)[0])
            elif kind == _CONTENT_BODY and self._open is not None:
                self._body += payload
            self._finish_delivery(kind)

    def ended(self) -> None:
        """Note the end."""
        self._log.ended(self._session)

    def _finish_delivery(self, kind: int) -> None:
        if self._open is None or kind == _METHOD or len(self._body) < self._open[1]:
            return
        self._log.delivered(self._process, session=self._session, tag=self._open[0], job_id=_job_id(bytes(self._body)))
        self._open = None


def _frames(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Take the whole frames from the front of a buffer."""
    found = []
    while len(buffer) >= _HEAD.size:
        kind, _channel, length = _HEAD.unpack_from(buffer)
        if length > FRAME_BYTES_MAX:
            buffer.clear()
            break
        if len(buffer) < _HEAD.size + length + 1:
            break
        found.append((kind, bytes(buffer[_HEAD.size : _HEAD.size + length])))
        del buffer[: _HEAD.size + length + 1]
    return found


def _method(payload: bytes) -> tuple[int, int]:
    class_id, method_id = struct.unpack_from(">HH", payload)
    return class_id, method_id


def _delivery_tag(payload: bytes) -> int:
    consumer_tag_bytes = payload[4]
    return int(struct.unpack_from(">Q", payload, 5 + consumer_tag_bytes)[0])


def _job_id(body: bytes) -> UUID | None:
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return UUID(json.loads(body)["job_id"])
    return None
