"""uvicorn's HTTP protocol with what it lacks.

That is: bounds on unfinished headers, our own words for what the parser refuses, and answers for clients that close
only their own side.

Invariant: nothing that a client sends, or does not send, before its headers are complete can hold a connection or
memory without a bound.
"""

import asyncio
from typing import Any, cast

from uvicorn._types import HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.errors import problem_answer, raw_answer
from app.api.wire import Scope, Wire, set_wire, wire_of
from contracts.errors import ErrorCode, ServiceError

#: Connections that one process keeps open; the next one is answered and closed.
CONNECTIONS_MAX = 4_000
#: A refused connection stays open this long, its bytes thrown away, so that its client sees the answer, not a reset.
LINGER_S = 0.5


class EdgeProtocol(HttpToolsProtocol):
    """One connection. A server uses a subclass that has the limits set."""

    header_bytes_max = 16 * 1024
    #: Headers must be complete this long after the connection was made or the request began.
    headers_s_max = 10.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._header_bytes = 0
        self._begun = False  #: a request began in the bytes being parsed: they are not all of its headers
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, or turn it away when there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._start_timer()
        if len(self.connections) > CONNECTIONS_MAX:
            self._refuse(ServiceError(ErrorCode.BACKLOG_FULL, "Too many connections.", retry_after_s=2))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; headers that do not end are refused before they are complete."""
        if self._refused:
            return
        self._begun = False
        super().data_received(data)
        if self._in_headers and not self._begun and not self._refused:
            self._header_bytes += len(data)
            if self._header_bytes > self.header_bytes_max:
                self._end_with(ErrorCode.HEADERS_TOO_LARGE, f"At most {self.header_bytes_max} bytes of headers.")

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        set_wire(_plain(self.scope), Wire(abort=self.transport.abort))
        self._in_headers, self._header_bytes, self._begun = True, 0, True
        if self._timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """Hand the request over."""
        self._in_headers = False
        self._stop_timer()
        super().on_headers_complete()

    def eof_received(self) -> bool:  # type: ignore[override] # uvicorn always closes; True keeps our side open
        """Keep our side open until the answer is out, and say to its reader that the body will not go on."""
        if self._refused or not self._break_body(ErrorCode.TRUNCATED_BODY):
            return False
        # Whoever waits for more than the body is told as well: this client may be gone.
        wire_of(_plain(self.cycle.scope)).ended = True
        self.cycle.message_event.set()
        return True

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the library's text stays here
        """Answer what the parser refused, unless a request is still being answered: then that answer comes first."""
        self._end_with(ErrorCode.MALFORMED_REQUEST, "This is not well-formed HTTP.")

    def _end_with(self, code: ErrorCode, message: str) -> None:
        if not self._break_body(code):
            self._refuse(ServiceError(code, message))

    def _break_body(self, code: ErrorCode) -> bool:
        """Return whether a request is being answered; its connection ends after it, its body ends now."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        cycle.keep_alive = False
        if cycle.more_body:
            wire_of(_plain(cycle.scope)).broken = code
            cycle.message_event.set()
        return True

    def _refuse(self, error: ServiceError) -> None:
        if not self.transport.is_closing():
            self._refused = True
            self._stop_timer()
            self._unset_keepalive_if_required()
            self.transport.write(raw_answer(problem_answer(error)))
            self._timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.headers_s_max, self._on_slow_headers)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_slow_headers(self) -> None:
        self._timer = None
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._start_timer()  # these are the headers of the next request; they have time until the answer is out
        elif self._in_headers:
            self._refuse(ServiceError(ErrorCode.UPLOAD_TOO_SLOW, "The headers did not come in time."))


def _plain(scope: HTTPScope) -> Scope:
    return cast("Scope", scope)


def edge_protocol(*, header_bytes_max: int, headers_s_max: float) -> type[EdgeProtocol]:
    """Return the protocol with its bounds on unfinished headers: bytes and seconds."""
    limits = {"header_bytes_max": header_bytes_max, "headers_s_max": headers_s_max}
    return type("EdgeProtocol", (EdgeProtocol,), limits)
