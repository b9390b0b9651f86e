"""Failed authentications by client address: after so many a minute, further ones are told to wait.

Invariant: the table is bounded, and a token that is valid is never turned away by what others at its address did.
"""

import ipaddress
from dataclasses import dataclass

from app.api.authentication import Authenticator
from app.api.body import Receive, Send
from app.api.exchange import App, send_problem
from app.api.wire import Scope, problem_of
from app.core.clock import Monotonic
from app.core.postgres import DatabaseUnavailableError
from contracts.errors import ErrorCode, ServiceError

WINDOW_S = 60.0
ADDRESSES_MAX = 10_000
#: One client has a whole network of this size.
_IPV6_PREFIX_BITS = 64


@dataclass(slots=True)
class _Window:
    began_s: float
    failures: int = 0


class Guesses:
    """Counts failures in windows of a minute, oldest address out first."""

    def __init__(self, *, failures_max: int, monotonic_s: Monotonic) -> None:
        self._failures_max = failures_max
        self._now_s = monotonic_s
        self._windows: dict[str, _Window] = {}

    def note(self, address: str) -> None:
        """Count one failure."""
        window = self._windows.get(address)
        if window is None or self._now_s() - window.began_s >= WINDOW_S:
            self._windows.pop(address, None)
            while len(self._windows) >= ADDRESSES_MAX:
                del self._windows[next(iter(self._windows))]
            window = self._windows[address] = _Window(self._now_s())
        window.failures += 1

    def refusal(self, address: str) -> ServiceError | None:
        """Return what one more failure from this address is told instead of `unauthenticated`; None within bounds."""
        window = self._windows.get(address)
        if window is None or window.failures < self._failures_max:
            return None
        left_s = window.began_s + WINDOW_S - self._now_s()
        if left_s <= 0:
            return None
        message = "Too many requests without a valid token came from your address."
        return ServiceError(ErrorCode.RATE_LIMITED, message, retry_after_s=max(1.0, left_s))


def address_of(scope: Scope) -> str:
    """Return who a connection comes from: an IPv4 address, or the network of an IPv6 one."""
    host = str((scope.get("client") or ("",))[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(ipaddress.ip_network((int(address), _IPV6_PREFIX_BITS), strict=False))


class Guard:
    """ASGI middleware in front of everything that asks for a token."""

    def __init__(
        self, app: App, *, guesses: Guesses, authenticator: Authenticator, open_prefixes: tuple[str, ...]
    ) -> None:
        """Take what is guarded, but for the paths that ask for no token."""
        self._app = app
        self._open_prefixes = open_prefixes
        self._guesses = guesses
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or tell its sender to wait."""
        if scope["type"] != "http" or scope["path"].startswith(self._open_prefixes):
            await self._app(scope, receive, send)
            return
        address = address_of(scope)
        refusal = self._guesses.refusal(address)
        if refusal is not None and not await self._is_known(scope):
            await send_problem(scope, send, refusal)
            return
        await self._app(scope, receive, send)
        if problem_of(scope) is ErrorCode.UNAUTHENTICATED:
            self._guesses.note(address)

    async def _is_known(self, scope: Scope) -> bool:
        try:
            await self._authenticator.identity(scope["headers"])
        except ServiceError:
            return False
        except DatabaseUnavailableError:
            return True  # nobody can tell; who asks on is told that
        return True
