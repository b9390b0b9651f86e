"""Loopback ports for the stack's servers.

Invariant: every port is below the range of outgoing connections (32768 up), where a client that polls a port
before its server listens can connect to itself and keep the server from ever binding.
"""

import contextlib
import os
import random
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

LOOPBACK = "127.0.0.1"
PORTS = range(10_240, 32_768)

#: Ports looked at before giving up; a machine with this many taken ones is not fit for a stack.
PROBES_MAX = 2_000

#: SeaweedFS puts a socket of this name for each grpc port in the system's temporary folder.
_WEED_SOCKETS = "seaweedfs-{role}-grpc-{port}.sock"
_WEED_ROLES = ("master", "volume", "filer", "s3")


def weed_sockets(port: int) -> list[Path]:
    """Return the socket files that a SeaweedFS node with this grpc port may leave behind."""
    return [Path(os.sep, "tmp", _WEED_SOCKETS.format(role=role, port=port)) for role in _WEED_ROLES]


def remove_weed_sockets(ports: Mapping[str, int], names: Iterable[str]) -> None:
    """Remove the socket files of a SeaweedFS node on the ports of these names; those of a port in use stay."""
    for port in (ports[name] for name in names if name in ports):
        # Somebody listens there by now: what bears its number may be that server's.
        if not is_free(port):
            continue
        for path in weed_sockets(port):
            with contextlib.suppress(OSError):
                path.unlink()


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without it the closed connections of a server that has just stopped would look like a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(taken: Collection[int], rng: random.Random) -> int:
    """Return a free loopback port that is not in `taken`.

    Raises:
        OSError: no free port among PROBES_MAX tried.
    """
    for _ in range(PROBES_MAX):
        port = rng.choice(PORTS)
        if port not in taken and is_free(port) and not any(path.exists() for path in weed_sockets(port)):
            return port
    raise OSError(f"no free loopback port from {PORTS.start} to {PORTS.stop - 1} in {PROBES_MAX} tries")


def settle_ports(kept: Mapping[str, int], names: Iterable[str], *, rng: random.Random) -> dict[str, int]:
    """Return a port for each name: the kept one where it is still free, else a new one.

    Names in `kept` that are not asked for keep their ports unprobed: their servers may be running. So a port that was
    promised to one of them since is nobody else's.
    """
    wanted = list(names)
    others = {port for name, port in kept.items() if name not in wanted}
    ports = {name: port for name, port in kept.items() if name not in wanted or (port not in others and is_free(port))}
    for name in wanted:
        if name not in ports:
            ports[name] = free_port(ports.values(), rng)
    return ports
