"""What the wire shows of deliveries and acks, however its bytes are cut into reads."""

import json
import struct
import uuid
from collections.abc import Iterator

import pytest

from stack.chaos_tap import AmqpTap, DeliveryLog

JOB, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
GREETING = b"AMQP\x00\x00\x09\x01"


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def deliver(tag: int, body: bytes) -> bytes:
    """A delivery as the broker sends it, its body in two frames."""
    method = struct.pack(">HH", 60, 60) + short("consumer") + struct.pack(">QB", tag, 0) + short("") + short("jobs")
    head = struct.pack(">HHQH", 60, 0, len(body), 0)
    half = len(body) // 2
    return frame(1, method) + frame(2, head) + frame(3, body[:half]) + frame(3, body[half:])


def ack(tag: int, *, and_earlier: bool = False) -> bytes:
    return frame(1, struct.pack(">HHQB", 60, 80, tag, int(and_earlier)))


def message(job_id: uuid.UUID) -> bytes:
    return json.dumps({"version": 1, "job_id": str(job_id)}).encode()


def pieces(data: bytes, read_bytes: int) -> Iterator[bytes]:
    yield from (data[start : start + read_bytes] for start in range(0, len(data), read_bytes))


def listening() -> tuple[DeliveryLog, AmqpTap]:
    ticks = iter(range(1, 1000))
    log = DeliveryLog(lambda: float(next(ticks)))
    return log, log.tap("worker-1")


@pytest.mark.parametrize("read_bytes", [1, 7, 4096])
def test_deliveries_and_acks_are_seen_however_the_bytes_arrive(read_bytes: int) -> None:
    log, tap = listening()
    heartbeat = frame(8, b"")
    for piece in pieces(heartbeat + deliver(1, message(JOB)) + deliver(2, message(OTHER)), read_bytes):
        tap.received(piece)
    for piece in pieces(GREETING + heartbeat + ack(2), read_bytes):
        tap.sent(piece)
    tap.ended()
    first, second = log.rows()
    assert (first.job_id, first.tag, first.acked_s, first.process) == (JOB, 1, None, "worker-1")
    assert second.job_id == OTHER
    assert second.acked_s is not None
    assert first.delivered_s < second.delivered_s < second.acked_s
    assert first.ended_s == second.ended_s is not None


def test_one_ack_may_stand_for_all_earlier_deliveries() -> None:
    log, tap = listening()
    tap.received(b"".join(deliver(tag, message(JOB)) for tag in (1, 2, 3)))
    tap.sent(GREETING + ack(2, and_earlier=True))
    assert [row.acked_s is not None for row in log.rows()] == [True, True, False]


def test_connections_are_told_apart_though_their_tags_are_equal() -> None:
    log, first = listening()
    second = log.tap("worker-1")
    first.received(deliver(1, message(JOB)))
    second.received(deliver(1, message(JOB)))
    second.sent(GREETING + ack(1))
    assert [(row.session, row.acked_s is not None) for row in log.rows()] == [(1, False), (2, True)]


def test_what_nobody_can_read_is_a_delivery_without_a_job() -> None:
    log, tap = listening()
    for tag, body in enumerate((b"\x00nothing", b"[]", b'{"job_id": 3}'), 1):
        tap.received(deliver(tag, body))
    assert [row.job_id for row in log.rows()] == [None, None, None]


def test_bytes_that_are_no_frames_are_let_pass() -> None:
    log, tap = listening()
    tap.received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    tap.sent(b"GET / HTTP/1.1\r\n\r\n")
    assert log.rows() == ()
