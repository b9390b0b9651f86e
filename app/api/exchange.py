"""The outermost layer of one request: counts it, answers what nobody anticipated, and lets early answers arrive.

Invariant: an answer that goes out before the body was read closes the connection, and only after the rest was read
and thrown away for a bounded time: closing with unread bytes makes the kernel send a reset, and the client would see
that instead of the answer. A client that waits for "100 Continue" has sent nothing, and nothing is asked of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from app.api.body import Message, Receive, Send
from app.api.errors import Answer, problem_answer
from app.api.metrics import Metrics
from app.api.wire import UPLOADS, Scope, header_values, problem_of, set_problem, wire_of
from app.core.telemetry import logger
from contracts.errors import ErrorCode, ServiceError

#: How much of an unread body is read and thrown away, and for how long, so that the answer arrives.
DRAIN_BYTES_MAX = 1024 * 1024
DRAIN_S_MAX = 2.0
#: A client that has sent more than is read is left alone this long: it can see the answer before the reset.
BLOCKED_S = 0.5

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a whole answer."""
    await send({"type": "http.response.start", "status": answer.status.value, "headers": list(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


async def send_problem(scope: Scope, send: Send, error: ServiceError) -> None:
    """Answer with a problem document."""
    set_problem(scope, error.code)
    await send_answer(send, problem_answer(error))


def unexpected() -> ServiceError:
    """Return the error of what nobody anticipated."""
    return ServiceError(ErrorCode.INTERNAL, "The cause was logged.")


class Exchange:
    """ASGI middleware around everything."""

    def __init__(self, app: App, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        one = _One(scope, receive, send)
        try:
            await self._app(scope, one.receive, one.send)
        except asyncio.CancelledError:
            # The process ends and its grace is over; the connection's own handler has nothing left to do.
            await _answer_if_none(scope, one, ServiceError(ErrorCode.SHUTTING_DOWN, "The upload was cut off."))
        except Exception:  # noqa: BLE001 - the outermost place of a request: what nobody anticipated is answered here
            logger().exception("http.unexpected", path=scope["path"], method=scope["method"])
            await _answer_if_none(scope, one, unexpected())
        finally:
            self._count(scope, one)

    def _count(self, scope: Scope, one: "_One") -> None:
        # Refused uploads never reach the router that would name their route.
        path = scope["path"]
        route = path if path in UPLOADS else getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(route=route, method=method, code=one.status or 0).inc()
        if (code := problem_of(scope)) is not None:
            self._metrics.refusals.labels(code=code.value).inc()


async def _answer_if_none(scope: Scope, one: "_One", error: ServiceError) -> None:
    if one.status is None:
        await send_problem(scope, one.send, error)


class _One:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        self._receive, self._send = receive, send
        self._wire = wire_of(scope)
        length = header_values(headers, b"content-length")
        self._unread = bool(header_values(headers, b"transfer-encoding")) or (bool(length) and length != [b"0"])
        self._waits = [value.lower() for value in header_values(headers, b"expect")] == [b"100-continue"]
        self._lingers = False
        self.status: int | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        self._waits = False
        self._unread = self._unread and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._lingers = self._unread
            if self._lingers:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        elif self._lingers and not self._waits and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._drain()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _drain(self) -> None:
        drained_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S_MAX):
                while self._unread and drained_bytes < DRAIN_BYTES_MAX and self._wire.broken is None:
                    drained_bytes += len((await self.receive()).get("body", b""))
        # After a truncation nothing more comes; after another break the connection throws away what does.
        breaks_off = self._wire.broken not in (None, ErrorCode.TRUNCATED_BODY)
        if self._unread and (breaks_off or drained_bytes >= DRAIN_BYTES_MAX):
            await asyncio.sleep(BLOCKED_S)
