"""Alembic's entry point: one transaction under an advisory lock, so any number of processes may migrate at once."""

import asyncio

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

#: Any constant of our own: all our migrators take the same lock.
MIGRATION_LOCK_ID = 7_235_501_811
#: Migrations wait longer for locks than any role may: they run before the roles do.
LOCK_TIMEOUT_S = 60
STATEMENT_TIMEOUT_S = 300


def _migrate(connection: Connection) -> None:
    context.configure(connection=connection, version_table="schema_version", transaction_per_migration=False)
    with context.begin_transaction():
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"))
        connection.execute(text(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT_S}s'"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": MIGRATION_LOCK_ID})
        context.run_migrations()


async def _run(url: str) -> None:
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_migrate)
            await connection.commit()
    finally:
        await engine.dispose()


asyncio.run(_run(context.config.attributes["database_url"]))
