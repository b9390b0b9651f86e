"""Runs one migration's SQL file; the version modules only name it, so SQL stays in `.sql` files."""

from pathlib import Path

from alembic import op
from sqlalchemy.util import await_only

SQL_DIR = Path(__file__).parent / "sql"


def run_sql(file_name: str) -> None:
    """Run a file of several statements inside the migration's open transaction."""
    # asyncpg's simple-query protocol takes several statements at once; SQLAlchemy's cursor takes only one.
    driver_connection = op.get_bind().connection.driver_connection
    if driver_connection is None:
        raise RuntimeError("migrations need an online connection")
    await_only(driver_connection.execute((SQL_DIR / file_name).read_text(encoding="utf-8")))
