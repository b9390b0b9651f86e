"""Sweeps that read only what is due, and take their locks in the one order."""

from migrations.script import run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the sweeps' functions; names and arguments stay."""
    run_sql("0003_sweeps.sql")
