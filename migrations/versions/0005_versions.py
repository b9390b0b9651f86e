"""Versions of an image: parked jobs, new results from the published original, and the end of those they replace."""

from migrations.script import run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what a second version of an image needs and replace the functions that know of it."""
    run_sql("0005_versions.sql")
