"""The first schema: gate, jobs, outbox, images, tokens, processes, capacity."""

from migrations.script import run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything; forward only."""
    run_sql("0001_jobs.sql")
