"""The body of a request as it arrives, at the client's pace and no slower than allowed.

Invariant: every wait for the client ends; no byte is asked for before the last one was taken.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from app.api.wire import Wire
from app.core.clock import Monotonic
from contracts.errors import ErrorCode, ServiceError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a client is held to."""

    body_bytes_max: int
    idle_s_max: float  #: longest silence; also how long a client may take before its rate counts
    rate_bytes_per_s_min: int  #: over the time spent waiting for the client


async def read_body(receive: Receive, *, wire: Wire, pace: Pace, monotonic: Monotonic) -> AsyncGenerator[bytes]:
    """Yield the body's chunks until it ends.

    Raises:
        ServiceError: `truncated_body`, `malformed_request`, `too_many_bytes` or `upload_too_slow`.
    """
    waited_s, body_bytes = 0.0, 0
    more = True
    while more:
        since_s = monotonic()
        message = await _next(receive, idle_s_max=pace.idle_s_max)
        waited_s += monotonic() - since_s
        chunk = message.get("body", b"")
        body_bytes += len(chunk)
        more = message.get("more_body", False)
        _check(message, wire)
        if body_bytes > pace.body_bytes_max:
            raise ServiceError(ErrorCode.TOO_MANY_BYTES, "The body is larger than allowed.")
        if more and waited_s > pace.idle_s_max and body_bytes < pace.rate_bytes_per_s_min * waited_s:
            raise ServiceError(ErrorCode.UPLOAD_TOO_SLOW, f"At least {pace.rate_bytes_per_s_min} bytes a second.")
        if chunk:
            yield chunk


def _check(message: Message, wire: Wire) -> None:
    if message["type"] == "http.disconnect":
        raise ServiceError(ErrorCode.TRUNCATED_BODY, "The connection ended before the body did.")
    if message.get("more_body", False) and wire.broken is not None:
        raise ServiceError(wire.broken, "The body ended before its announced end, or is not well-formed.")


async def _next(receive: Receive, *, idle_s_max: float) -> Message:
    try:
        async with asyncio.timeout(idle_s_max):
            return await receive()
    except TimeoutError as error:
        raise ServiceError(ErrorCode.UPLOAD_TOO_SLOW, f"No byte came for {idle_s_max:g} seconds.") from error
