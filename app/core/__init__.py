"""Machinery that all roles share: how we reach PostgreSQL, S3 and RabbitMQ, and the statements on job state."""
