"""When what a job left is no longer kept. Pure; the janitor's statements in `retention.sql` decide by the same rule."""

from datetime import datetime, timedelta

from app.core.jobviews import JobView
from app.core.retention import Keep
from contracts.jobs import JobState


def expires_at(view: JobView, *, keep: Keep) -> datetime | None:
    """Return when a final job expires: by its age (a result: its image's), and never before its message; else None."""
    keep_s = {
        JobState.READY: keep.ready_s,
        JobState.FAILED: keep.failed_s,
        JobState.CANCELLED: keep.cancelled_s,
    }.get(view.state)
    if keep_s is None or view.kept_from is None:
        return None
    by_age = view.kept_from + timedelta(seconds=keep_s)
    if view.message_created_at is None:
        return by_age
    return max(by_age, view.message_created_at + timedelta(seconds=keep.message_s))
