"""Alembic migrations: forward only."""
