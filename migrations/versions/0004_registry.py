"""The registry of failed jobs: replays that leave a trace, sources that go for good, dead letters that are shown."""

from migrations.script import run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the registry's tables and replace the functions that it needs; names and arguments stay."""
    run_sql("0004_registry.sql")
