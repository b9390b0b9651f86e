"""The only module that speaks to PostgreSQL: a bounded pool, one autocommitted statement per call.

No call opens a transaction, so none can stay open over a round trip to anything else.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosql
import asyncpg

from app.core.settings import Settings
from app.core.telemetry import ServerWatch

SQL_DIR = Path(__file__).parent / "sql"

#: A statement that the server does not answer is given up this long after the server should have ended it.
ANSWER_MARGIN_S = 1.0
#: Idle connections are closed after this long, so that a quiet role does not hold the server's slots.
IDLE_CONNECTION_S = 60.0

Query = Callable[..., Any]
Record = asyncpg.Record


class DatabaseUnavailableError(Exception):
    """The database did not answer in time, or refused to serve.

    `outcome_unknown` is true when the statement may have been carried out all the same: then the row must be asked
    again before anything is undone.
    """

    def __init__(self, message: str, *, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


_UNAVAILABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.LockNotAvailableError,
    asyncpg.DiskFullError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    OSError,
    TimeoutError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How one process reaches the database."""

    url: str
    application_name: str
    connections_max: int
    acquire_timeout_s: float
    statement_timeout_s: float


def pool_settings(settings: Settings, *, role: str, connections_max: int | None = None) -> PoolSettings:
    """Return the pool's part of the settings for a role; `connections_max` overrides the setting."""
    return PoolSettings(
        url=settings.database_url.get_secret_value(),
        application_name=f"spillway-{role}",
        connections_max=connections_max or settings.database_pool_connections_max,
        acquire_timeout_s=settings.database_acquire_timeout_s,
        statement_timeout_s=settings.database_statement_timeout_s,
    )


async def _keep_session(connection: object) -> None:
    """Skip the pool's reset round trip: no call of ours leaves session state behind."""


class Database:
    """A pool whose every call is bounded in time and is one autocommitted statement."""

    def __init__(self, pool: asyncpg.Pool, settings: PoolSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._watch = ServerWatch("database")
        self._answer_timeout_s = settings.statement_timeout_s + ANSWER_MARGIN_S

    async def one(self, query: Query, **params: object) -> Record | None:
        """Return the first row or None."""
        async with self._connection() as connection:
            row: Record | None = await query(connection, **params)
            return row

    async def value(self, query: Query, **params: object) -> Any:
        """Return the first column of the first row, or None."""
        async with self._connection() as connection:
            return await query(connection, **params)

    async def many(self, query: Query, **params: object) -> list[Record]:
        """Return all rows; every such query has a LIMIT or a natural bound."""
        async with self._connection() as connection:
            return [row async for row in query(connection, **params)]

    async def close(self) -> None:
        """Close the pool; connections that do not end in time are terminated."""
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        try:
            connection = await self._pool.acquire(timeout=self._settings.acquire_timeout_s)
        except (*_UNAVAILABLE, asyncpg.PostgresError) as error:
            # Whatever it says to a client that connects, a refused login included, is our outage and no job's fault.
            self._watch.failed(error)
            raise DatabaseUnavailableError("no connection to the database", outcome_unknown=False) from error
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                yield connection  # type: ignore[misc] # a pool proxy is used like the connection it stands for
            self._watch.answered()
        except asyncpg.LockNotAvailableError as error:
            raise DatabaseUnavailableError("a lock was not had in time", outcome_unknown=False) from error
        except asyncpg.TransactionRollbackError as error:
            # A ring of waiters, which the server breaks by undoing one of them.
            raise DatabaseUnavailableError("the database undid the statement", outcome_unknown=False) from error
        except _UNAVAILABLE as error:
            self._watch.failed(error)
            raise DatabaseUnavailableError("the database did not answer", outcome_unknown=True) from error
        finally:
            await self._release(connection)

    async def _release(self, connection: Any) -> None:
        try:
            await self._pool.release(connection, timeout=self._settings.acquire_timeout_s)
        except _UNAVAILABLE:
            # The pool has ended a connection that it could not take back, and says so to whoever does it again.
            with contextlib.suppress(asyncpg.InterfaceError):
                connection.terminate()


def _server_settings(settings: PoolSettings) -> dict[str, str]:
    timeout_ms = str(int(settings.statement_timeout_s * 1000))
    return {
        "application_name": settings.application_name,
        "statement_timeout": timeout_ms,
        "lock_timeout": timeout_ms,
        "idle_in_transaction_session_timeout": timeout_ms,
        "timezone": "UTC",
        # Our plans are single-row look-ups: JIT could only cost.
        "jit": "off",
    }


async def open_database(settings: PoolSettings) -> Database:
    """Return a database whose connections are opened when first needed: the server may still be away."""
    pool = await asyncpg.create_pool(
        settings.url,
        min_size=0,
        max_size=settings.connections_max,
        max_inactive_connection_lifetime=IDLE_CONNECTION_S,
        reset=_keep_session,
        timeout=settings.acquire_timeout_s,
        server_settings=_server_settings(settings),
    )
    return Database(pool, settings)


def load_queries(file_name: str) -> Any:
    """Return the named statements of one file under `app/core/sql/`."""
    return aiosql.from_path(SQL_DIR / file_name, "asyncpg", mandatory_parameters=False)


class Listener:
    """A connection of its own that waits for NOTIFY. Nothing depends on it: without it, callers poll."""

    def __init__(self, url: str, *, channel: str, timeout_s: float, application_name: str) -> None:
        self._url = url
        self._channel = channel
        self._timeout_s = timeout_s
        self._application_name = application_name
        self._connection: asyncpg.Connection | None = None
        self._woken = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """Return True when woken, False after `timeout_s`; (re)connects when there is no connection."""
        await self._ensure_connected()
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def wake(self) -> None:
        """Wake the waiter from inside this process."""
        self._woken.set()

    async def close(self) -> None:
        """Drop the connection at once: nothing is in flight on it."""
        if self._connection is not None:
            self._connection.terminate()

    async def _ensure_connected(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            return
        try:
            self._connection = await asyncpg.connect(
                self._url,
                timeout=self._timeout_s,
                command_timeout=self._timeout_s,
                server_settings={"application_name": self._application_name},
            )
            await self._connection.add_listener(self._channel, self._on_notify)
        except (*_UNAVAILABLE, asyncpg.PostgresError):
            await self.close()
            self._connection = None

    def _on_notify(self, *_: object) -> None:
        self._woken.set()
