"""Brings the database to the newest schema. Safe to call from several processes at the same moment."""

from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations


def migrate(database_url: str) -> None:
    """Run all pending migrations; returns when the schema is the newest.

    Raises:
        sqlalchemy.exc.DBAPIError: the database refused a statement or a lock was not had in time.
        OSError: the database cannot be reached.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    # The asyncpg dialect wants its own scheme; users write the usual one.
    config.attributes["database_url"] = database_url.replace("postgresql://", "postgresql+asyncpg://", 1)
    command.upgrade(config, "head")
