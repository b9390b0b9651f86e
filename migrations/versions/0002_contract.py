"""The HTTP contract: keys, owners' shares, messages, retention, places, scopes."""

from migrations.script import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add to the first schema; its functions keep working for the last release."""
    run_sql("0002_contract.sql")
