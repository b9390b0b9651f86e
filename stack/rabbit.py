"""RabbitMQ, run as a child of ours: the system's or one fetched from the distribution's packages.

Invariant: one node per data folder, found by its own epmd on its own port, everything on loopback. Works with 3.10
and 4.x: nothing below names a version. Confirmed messages of quorum queues survive a crash and a power cut (the
write-ahead log is fsynced before the confirm).
"""

import os
import secrets
import signal
import socket
from dataclasses import replace

from stack.children import Child, ChildSpec
from stack.ports import LOOPBACK
from stack.rabbit_fetch import RabbitHome, ensure_rabbit
from stack.server import LocalServer, Site

USER = "spillway"
VHOST = "%2F"

#: In the data folder's name, so it must not change with the ports.
_NODE = "spillway@localhost"

_PROBE_S_MAX = 1.0
_CONTROL_S_MAX = 60.0
_AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME = b"\x01"
_SCHEDULERS_MAX = 4

#: The write-ahead log is also held in memory; the default of 512 MB is more than a laptop's stack should take.
_WAL_BYTES_MAX = 64 * 1024 * 1024

_CONFIG = """\
listeners.tcp.default = {host}:{port}
default_user = {user}
default_pass = {password}
log.console.level = warning
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 200MB
raft.wal_max_size_bytes = {wal}
"""


class Rabbit(LocalServer):
    """The broker and its name server (epmd)."""

    name = "rabbit"
    port_names = ("rabbit", "rabbit_dist", "rabbit_epmd")
    ready_s_max = 90.0
    stop_s_max = 15.0

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._rabbit: RabbitHome | None = None
        self._epmd: Child | None = None

    def prepare(self) -> None:
        """Find or fetch the program, write the configuration, start the name server."""
        if self._rabbit is None:
            self._rabbit = ensure_rabbit(
                cache=self.site.cache,
                search_path=self.site.search_path,
                progress=lambda text: self.site.progress(self.name, text),
            )
        account = self.site.account
        for folder in ("data", "config"):
            account.make_folder(self.home / folder)
        config = _CONFIG.format(host=LOOPBACK, port=self.port(), user=USER, password=self._password, wal=_WAL_BYTES_MAX)
        account.write_secret(self.home / "rabbitmq.conf", config)
        account.write_secret(self.home / "enabled_plugins", "[].\n")
        cookie = self.secret("rabbit_cookie", secrets.token_hex(20))
        account.write_secret(self.home / ".erlang.cookie", cookie)
        self._start_epmd()

    def spec(self) -> ChildSpec:
        """Return how to run the broker."""
        rabbit = self._require_rabbit()
        spec = self._spec(self.name, [str(rabbit.sbin / "rabbitmq-server")], self._node_env(rabbit))
        return replace(spec, stop_signal=signal.SIGTERM)

    def answers(self) -> bool:
        """Tell whether the broker speaks AMQP."""
        try:
            with socket.create_connection((LOOPBACK, self.port()), _PROBE_S_MAX) as connection:
                connection.sendall(_AMQP_HEADER)
                return connection.recv(1) == _METHOD_FRAME
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the broker and its name server."""
        super().stop()
        self._stop_epmd()

    def kill(self) -> None:
        """End the broker and its name server as a crash would."""
        super().kill()
        self._stop_epmd()

    def control(self, *command: str) -> None:
        """Run one command of `rabbitmqctl` on the node; it takes seconds.

        Raises:
            EnvironmentUnfitError: it did not end well.
        """
        rabbit = self._require_rabbit()
        args = [str(rabbit.sbin / "rabbitmqctl"), *command]
        if self.run(args, env=self._node_env(rabbit), timeout_s=_CONTROL_S_MAX) != 0:
            raise self.fail(f"`rabbitmqctl {command[0]}` failed")

    def env(self) -> dict[str, str]:
        """Return the broker's URL."""
        url = f"amqp://{USER}:{self._password}@{LOOPBACK}:{self.port()}/{VHOST}"
        return {"SPILLWAY_BROKER_URL": url}

    @property
    def _password(self) -> str:
        return self.secret("rabbit_password", secrets.token_hex(20))

    def _require_rabbit(self) -> RabbitHome:
        if self._rabbit is None:
            raise self.fail("started before it was prepared")
        return self._rabbit

    def _node_env(self, rabbit: RabbitHome) -> dict[str, str]:
        schedulers = min(os.cpu_count() or 1, _SCHEDULERS_MAX)
        return {
            **self._erlang_env(rabbit),
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port()),
            "RABBITMQ_DIST_PORT": str(self.port("rabbit_dist")),
            "RABBITMQ_MNESIA_BASE": str(self.home / "data"),
            "RABBITMQ_LOG_BASE": str(self.home / "data"),
            "RABBITMQ_LOGS": "-",  # to our log file, whose size we bound
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(self.home / "no-such-file"),  # not the system's
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.home / "advanced"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.home / "config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "enabled_plugins"),
            # With "input allowed" the script becomes the virtual machine instead of waiting beside it, so that our
            # signals reach it; SIGTERM is then an orderly stop.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput -kernel inet_dist_use_interface {127,0,0,1} "
                f"+S {schedulers}:{schedulers} +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
        }

    def _erlang_env(self, rabbit: RabbitHome) -> dict[str, str]:
        return {
            **rabbit.env,
            "PATH": f"{rabbit.erlang_bin}:{self.site.search_path}",
            "ERL_EPMD_PORT": str(self.port("rabbit_epmd")),
            "ERL_EPMD_ADDRESS": LOOPBACK,
        }

    def _start_epmd(self) -> None:
        # Ours rather than the one that Erlang starts by itself: that one is a daemon which outlives the stack.
        if self._epmd is not None and self._epmd.alive:
            return
        rabbit = self._require_rabbit()
        spec = self._spec("rabbit-epmd", [str(rabbit.epmd)], self._erlang_env(rabbit))
        self._epmd = self.spawn_recorded(spec, port=self.port("rabbit_epmd"))

    def _stop_epmd(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()
            self.site.state.forget("rabbit-epmd")
            self._epmd = None
