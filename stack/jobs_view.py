"""What a person reads of jobs, their audit and dead letters: plain tables that align, with nothing interpreted in them.

Invariant: texts that come from outside (owners) are shown as they are, never as markup.
"""

from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.core.registry import AuditEntry, DeadLetter, RegisteredJob

#: Width in characters where nothing tells one, such as in a log: wide enough that no id is broken.
PLAIN_WIDTH = 160


def console_of_errors() -> Console:
    """Return the console on standard error."""
    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=PLAIN_WIDTH)


def jobs_table(jobs: list[RegisteredJob]) -> Table:
    """Return failed jobs, one a line."""
    table = _table("job", "failed at", "code", "owner", right=("attempts", "deaths", "version", "bytes"), last="source")
    for job in jobs:
        table.add_row(
            str(job.job_id),
            moment(job.finished_at),
            job.error_code or "",
            Text(job.owner),
            str(job.attempts_spent),
            str(job.deaths),
            str(job.pipeline_version),
            str(job.source_bytes),
            "yes" if job.has_source else "gone",
        )
    return table


def job_table(job: RegisteredJob) -> Table:
    """Return all that is known of one job, one fact a line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    facts: dict[str, str] = {
        "job": str(job.job_id),
        "image": str(job.image_id),
        "owner": job.owner,
        "state": job.state.value,
        "code": job.error_code or "",
        "accepted at": moment(job.accepted_at),
        "finished at": moment(job.finished_at),
        "attempts spent": str(job.attempts_spent),
        "deaths": str(job.deaths),
        "claims": str(job.claim_token),
        "pipeline version": str(job.pipeline_version),
        "source": f"{job.source_format}, {job.source_bytes} bytes, {'there' if job.has_source else 'gone'}",
    }
    for name, value in facts.items():
        table.add_row(name, Text(value))
    return table


def audit_table(entries: list[AuditEntry]) -> Table:
    """Return what was done to a job by hand, newest first."""
    table = _table("at", "who", "what", "was", "with", right=("attempts", "deaths"), last="since")
    for entry in entries:
        table.add_row(
            moment(entry.at),
            Text(entry.who),
            entry.action,
            entry.state_before.value,
            entry.error_code_before or "",
            str(entry.attempts_before),
            str(entry.deaths_before),
            moment(entry.finished_before),
        )
    return table


def letters_table(letters: list[DeadLetter]) -> Table:
    """Return dead letters, last seen first."""
    table = _table("last seen", "first seen", "reason", right=("seen", "bytes"), last="sha-256")
    table.add_column("job", no_wrap=True)
    for letter in letters:
        table.add_row(
            moment(letter.last_seen_at),
            moment(letter.first_seen_at),
            letter.reason.value,
            str(letter.seen_count),
            str(letter.body_bytes),
            letter.body_sha256[:16],
            str(letter.job_id or ""),
        )
    return table


def moment(at: datetime | None) -> str:
    """Return a moment in UTC to the second, nothing for none."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _table(*left: str, right: tuple[str, ...], last: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(last, no_wrap=True)
    return table
