"""The line under disturbance: real servers, real roles, and a proxy of ours between each process and each server.

Invariant: a process reaches a server through its own proxy only, so that one line can be disturbed and no other; what
is started here is known here, and whoever ends without a fault on it is noted.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import SystemRandom
from typing import get_args
from urllib.parse import urlsplit, urlunsplit

from app.core.clock import utc_now
from app.core.crashpoints import CrashPoint
from app.core.settings import PREFIX
from stack.chaos_history import Exit
from stack.chaos_tap import DeliveryLog
from stack.errors import EnvironmentUnfitError
from stack.ports import LOOPBACK, free_port, is_free
from stack.proxy import LineMode, Proxy, Silent
from stack.roles import Role, RoleProcess, Roles
from stack.servers import BROKER_VARIABLE, DATABASE_VARIABLE, S3_VARIABLE, Servers

#: Variable that leads to a server → the server's name.
LEADS = {DATABASE_VARIABLE: "postgres", BROKER_VARIABLE: "rabbit", S3_VARIABLE: "s3"}
#: How long a killed process's port may stay taken.
FREED_S_MAX = 10.0
_POLL_S = 0.02
_ROLES: tuple[Role, ...] = get_args(Role)


def wall_s() -> float:
    """Return the wall clock in seconds: what database, proxies and clients of one host share."""
    return utc_now().timestamp()


def role_of(name: str) -> Role:
    """Return the role of a process by its name: `worker-2` is a worker."""
    return next(role for role in _ROLES if role == name.partition("-")[0])


class Rig:
    """Processes by name, their lines, and who is being disturbed. Close it; the servers are somebody else's."""

    def __init__(
        self, servers: Servers, roles: Roles, *, env: Mapping[str, str], settings: Mapping[str, str] | None = None
    ) -> None:
        """`env` leads to the servers; `settings` are variables of every process started here."""
        self.servers = servers
        self.env = dict(env)
        self.exits: list[Exit] = []
        self.deliveries = DeliveryLog(wall_s)
        self._roles = roles
        self._settings = dict(settings or {})
        self._own: dict[str, dict[str, str]] = {}
        self._members: dict[str, RoleProcess] = {}
        self._lines: dict[tuple[str, str], Proxy] = {}
        self._disturbed: list[str] = []

    async def start(
        self, name: str, *, crash_point: CrashPoint | None = None, wait: bool = True, **env: str
    ) -> RoleProcess:
        """Start the process of this name, anew if there was one, and return when it answers (with `wait`).

        `env` is kept for later starts of the same name; a crash point is not.
        """
        role = role_of(name)
        own = self._own.setdefault(name, {})
        own |= env
        armed = {} if crash_point is None else {f"{PREFIX}CRASH_POINT": crash_point}
        variables = {**self._settings, **await self._led_through_lines(name), **own, **armed}
        earlier = self._members.get(name)
        port = None if earlier is None else await asyncio.to_thread(_freed, earlier.port)
        process = await asyncio.to_thread(self._roles.spawn, role, name=name, port=port, env=variables)
        self._members[name] = process
        if wait:
            await asyncio.to_thread(process.wait_live)
        return process

    async def bring_back(self, name: str) -> None:
        """Start the process of this name anew; one that does not come up is noted, like one that ended by itself."""
        try:
            await self.start(name)
        except EnvironmentUnfitError:
            self.exits.append(Exit(process=name, at_s=wall_s(), code=self._members[name].child.returncode))

    async def kill(self, name: str) -> None:
        """End a process as a crash would."""
        process = self._members[name]
        await asyncio.to_thread(process.kill)

    async def stop(self, name: str) -> int:
        """Stop a process in order and forget it; returns its exit code."""
        process = self._members.pop(name)
        code = await asyncio.to_thread(process.stop)
        await asyncio.to_thread(self._roles.forget, process)
        return code

    def process(self, name: str) -> RoleProcess:
        """Return the running process of this name."""
        return self._members[name]

    def names(self, role: Role) -> list[str]:
        """Return the names of a role's processes."""
        return [name for name, process in self._members.items() if process.role == role]

    def line(self, name: str, server: str) -> Proxy:
        """Return the proxy between a process and a server."""
        return self._lines[name, server]

    def lines_to(self, server: str) -> list[Proxy]:
        """Return the proxies of all processes in front of one server."""
        return [proxy for (_, behind), proxy in self._lines.items() if behind == server]

    @contextmanager
    def disturbing(self, *names: str) -> Iterator[None]:
        """Say that these processes may end for the length of the block."""
        self._disturbed += names
        try:
            yield
        finally:
            for name in names:
                self._disturbed.remove(name)

    async def revive_dead(self) -> None:
        """Note processes that ended though nobody disturbed them, and start them again."""
        for name, process in list(self._members.items()):
            if not process.alive and name not in self._disturbed:
                self.exits.append(Exit(process=name, at_s=wall_s(), code=process.child.returncode))
                await asyncio.to_thread(process.kill)  # what is left of its group
                await self.bring_back(name)

    async def heal(self) -> None:
        """Open every line, thaw everything, start servers that are away."""
        for proxy in self._lines.values():
            proxy.set_mode(LineMode.OPEN)
        for server in self.servers.local:
            server.thaw()
            await asyncio.to_thread(server.start)
        for process in self._members.values():
            process.thaw()

    async def close(self) -> None:
        """End every process and every line."""
        await asyncio.to_thread(self._roles.kill)
        for proxy in self._lines.values():
            await proxy.close()

    async def _led_through_lines(self, name: str) -> dict[str, str]:
        led = {f"{PREFIX}S3_PUBLIC_URL": self.env[S3_VARIABLE]}
        for variable, server in LEADS.items():
            if (name, server) not in self._lines:
                self._lines[name, server] = await self._open_line(name, server)
            led[variable] = _with_port(self.env[variable], self._lines[name, server].port)
        return led

    async def _open_line(self, name: str, server: str) -> Proxy:
        watched = (role_of(name), server) == ("worker", "rabbit")
        proxy = Proxy(
            self.servers.server(server).port(), tap=(lambda: self.deliveries.tap(name)) if watched else Silent
        )
        taken = {line.port for line in self._lines.values()}
        await proxy.open(await asyncio.to_thread(free_port, taken, SystemRandom()))
        return proxy


def _freed(port: int) -> int:
    """Wait until a killed process has let go of its port, so that clients find the next one where it was."""
    until_s = time.monotonic() + FREED_S_MAX
    while not is_free(port) and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    return port


def _with_port(url: str, port: int) -> str:
    """Return the URL with another port of this host."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{at}{LOOPBACK}:{port}"))
