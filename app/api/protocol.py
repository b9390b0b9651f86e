"""uvicorn's HTTP protocol with what it lacks.

That is: bounds on unfinished headers and on all that is neither header nor body, our own words for what the parser
refuses, and answers for clients that close only their own side.

Invariant: nothing that a client sends, or does not send, can hold a connection or memory without a bound before its
headers are complete, between two requests, behind its body, or behind a request that is still being answered. Headers
that come behind the body are thrown away: nothing was decided on them.
"""

import asyncio
import re
from typing import Any, cast

from uvicorn._types import HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.errors import problem_answer, raw_answer
from app.api.open_files import Room
from app.api.wire import Scope, Wire, set_wire, wire_of
from contracts.errors import ErrorCode, ServiceError

#: A refused connection stays open this long, its bytes thrown away, so that its client sees the answer, not a reset.
LINGER_S = 0.5
#: Requests that wait behind the one that is being answered; the connection of whoever sends more ends after them.
PIPELINED_REQUESTS_MAX = 64
#: Whoever offers to go on in another protocol is answered in this one. The parser would take the offer for accepted
#: and the body for that protocol's bytes, so it does not see the header.
_UPGRADE = re.compile(rb"(?<=\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
_UPGRADE_UNSEEN = b"ignored"
_HEAD_END = b"\r\n\r\n"


class _TooManyWaitError(Exception):
    """The parser is to stop; it answers as for what it refuses itself."""


class EdgeProtocol(HttpToolsProtocol):
    """One connection. A server uses a subclass that has the limits set."""

    header_bytes_max = 16 * 1024
    #: Headers must be complete this long after the connection was made or the request began.
    headers_s_max = 10.0
    #: How many connections are kept open; the next one is answered and closed.
    room = Room()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._idle_bytes = 0  #: since the last that were of a whole head or of a body
        self._moved = False  #: some of the bytes being parsed were so
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._deaf = False  #: nothing more is parsed: it could only fill memory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, or turn it away when there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._start_timer()
        over = len(self.connections) - self.room.connections_max
        if over > 0:
            # In a rush of them some may miss their answer, but none is turned away without one for want of a file.
            linger_s = LINGER_S if over <= self.room.refusals_max / 2 else 0.0
            error = ServiceError(ErrorCode.BACKLOG_FULL, "Too many connections.", retry_after_s=2)
            self._refuse(error, linger_s=linger_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; what brings neither a whole head nor a body is refused before it is over."""
        if self._refused or self._deaf:
            return
        self._moved = False
        super().data_received(self._without_upgrade(data))
        if self._moved or self._deaf:
            self._idle_bytes = 0
            return
        self._idle_bytes += len(data)
        if self._idle_bytes > self.header_bytes_max:
            self._end_with(ErrorCode.HEADERS_TOO_LARGE, f"At most {self.header_bytes_max} bytes of headers.")
        elif self._timer is None and not self._is_answering():
            # Line ends between two requests: the parser passes over them, and nobody else would wait for an end.
            self._in_headers = True
            self._start_timer()

    def _without_upgrade(self, data: bytes) -> bytes:
        cycle: RequestResponseCycle | None = self.cycle
        if not self._in_headers and cycle is not None and cycle.more_body:
            return data  # of a body, which is nobody's to change
        end = data.find(_HEAD_END)
        head_bytes = len(data) if end < 0 else end
        if _UPGRADE.search(data, 0, head_bytes) is None:
            return data
        return _UPGRADE.sub(_UPGRADE_UNSEEN, data[:head_bytes]) + data[head_bytes:]

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        set_wire(_plain(self.scope), Wire(abort=self.transport.abort))
        self._in_headers = self._moved = True
        if self._timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """Hand the request over."""
        self._in_headers, self._moved = False, True
        self._stop_timer()
        if len(self.pipeline) >= PIPELINED_REQUESTS_MAX:
            raise _TooManyWaitError
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, but for those behind the body."""
        if self._in_headers:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take some of the body."""
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        self._moved = True
        super().on_message_complete()

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
        self._deaf = True
        if not self._break_body(code):
            self._refuse(ServiceError(code, message))

    def _break_body(self, code: ErrorCode) -> bool:
        """Return whether a request is being answered; its connection ends after it, its body ends now."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not self._is_answering():
            return False
        cycle.keep_alive = False
        if cycle.more_body:
            wire_of(_plain(cycle.scope)).broken = code
            cycle.message_event.set()
        return True

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _refuse(self, error: ServiceError, *, linger_s: float = LINGER_S) -> None:
        if not self.transport.is_closing():
            self._refused = True
            self._stop_timer()
            self._unset_keepalive_if_required()
            self.transport.write(raw_answer(problem_answer(error)))
            self._timer = self.loop.call_later(linger_s, self.transport.close)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.headers_s_max, self._on_slow_headers)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_slow_headers(self) -> None:
        self._timer = None
        if self._is_answering():
            self._start_timer()  # these are the headers of the next request; they have time until the answer is out
        elif self._in_headers:
            self._refuse(ServiceError(ErrorCode.UPLOAD_TOO_SLOW, "The headers did not come in time."))


def _plain(scope: HTTPScope) -> Scope:
    return cast("Scope", scope)


def edge_protocol(*, header_bytes_max: int, headers_s_max: float, room: Room) -> type[EdgeProtocol]:
    """Return the protocol with its bounds: bytes and seconds of unfinished headers, and connections."""
    limits = {"header_bytes_max": header_bytes_max, "headers_s_max": headers_s_max, "room": room}
    return type("EdgeProtocol", (EdgeProtocol,), limits)
