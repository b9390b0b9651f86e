"""The raw files of a bench run: tables, columns, units and their version. Pure.

Invariant: a file that lacks a column of its table, or has one that is not listed, is not of this version.
"""

from collections.abc import Collection
from dataclasses import dataclass

#: Bumped with every change of a column's name, unit or meaning.
RUN_FORMAT_VERSION = 1

MANIFEST_FILE = "manifest.json"
ENVIRONMENT_FILE = "env.json"
CELLS_FOLDER = "cells"
CELL_FILE = "cell.json"
SUMMARY_FILE = "summary.csv"
PLOTS_FOLDER = "plots"
REPORT_FILE = "REPORT.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a raw table; `unit` is empty for labels and ids."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One Parquet file of a cell."""

    file: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the column names in file order."""
        return tuple(column.name for column in self.columns)


def _column(name: str, unit: str, meaning: str) -> Column:
    return Column(name=name, unit=unit, meaning=meaning)


SCHEDULE = Table(
    file="schedule.parquet",
    columns=(
        _column("arrival", "", "Number of the arrival in its cell, from 0; joins the schedule to the requests."),
        _column("due_us", "us", "When the upload is due, after the cell's time zero; whole microseconds."),
        _column("image", "", "Index into the corpus class of the cell."),
        _column("phase", "", "Name of the load phase the arrival belongs to."),
    ),
)

REQUESTS = Table(
    file="requests.parquet",
    columns=(
        _column("arrival", "", "Number of the arrival in its schedule."),
        _column("phase", "", "Name of the load phase the arrival belongs to."),
        _column("due_s", "s", "When the upload was due, after time zero on the generator's monotonic clock."),
        _column("started_s", "s", "When its sending really began, same clock; minus due_s is the generator's lag."),
        _column("ended_s", "s", "When the answer was complete or the try was given up, same clock."),
        _column("status", "", "HTTP status, 0 when no answer came."),
        _column("outcome", "", "One of the closed set `Outcome`."),
        _column("code", "", "Error code of the problem document, or the kind of transport error; null when accepted."),
        _column("job_id", "", "Id of the job; null when not accepted."),
        _column("retry_after_s", "s", "The answer's Retry-After; null when it had none."),
        _column("body_bytes", "bytes", "Size of the multipart body that was to be sent."),
    ),
)

JOBS = Table(
    file="jobs.parquet",
    columns=(
        _column("job_id", "", "Id of the job; joins the jobs to the requests."),
        _column("owner", "", "Owner of the token that uploaded it."),
        _column("state", "", "State when the cell was archived."),
        _column("error_code", "", "Failure code; null unless failed."),
        _column("admitted_at", "UTC", "When it got its place; database clock."),
        _column("accepted_at", "UTC", "When the accept was committed; null for a reservation that was dropped."),
        _column("published_at", "UTC", "When the broker confirmed its message; null when unknown."),
        _column("first_claimed_at", "UTC", "When a worker first claimed it; null when never."),
        _column("finished_at", "UTC", "When its final state was settled; null when not final."),
        _column("released_at", "UTC", "When it gave its place back; null while it holds one."),
        _column("attempts_spent", "", "Attempts that counted."),
        _column("deaths", "", "Attempts that ended in a lost worker."),
        _column("claim_token", "", "The fencing token: claims so far."),
        _column("source_bytes", "bytes", "Size of the upload."),
        _column("source_width", "px", "Width of the source."),
        _column("source_height", "px", "Height of the source."),
    ),
)

SAMPLES = Table(
    file="samples.parquet",
    columns=(
        _column("at_s", "s", "When, on the host's monotonic clock."),
        _column("metric", "", "One of the closed set `Metric`; the unit is the last word of its name."),
        _column("role", "", "Role, server, generator, sampler or MACHINE; empty for the queue gauges."),
        _column("value", "", "The value, in the metric's unit."),
    ),
)

BASELINE = Table(
    file="baseline.parquet",
    columns=(
        _column("process", "", "Number of the loop's process, from 0."),
        _column("item", "", "Number of the file in the shared list, from 0."),
        _column("started_s", "s", "When its work began, on the host's monotonic clock."),
        _column("ended_s", "s", "When its results were done (stored and recorded, for the direct loop), same clock."),
        _column("cpu_s", "s", "CPU time that its process used for it."),
        _column("source_bytes", "bytes", "Size of the file."),
    ),
)


class Outcome:
    """What became of one arrival, seen by the client."""

    ACCEPTED = "accepted"  #: 202
    REFUSED = "refused"  #: 429 or 503 with a code: the policy at work, not an error
    REJECTED = "rejected"  #: another 4xx
    ERROR = "error"  #: a 5xx that is no refusal, or a transport error
    TIMEOUT = "timeout"  #: no answer within the generator's limit


OUTCOMES = (Outcome.ACCEPTED, Outcome.REFUSED, Outcome.REJECTED, Outcome.ERROR, Outcome.TIMEOUT)


class Metric:
    """What the sampler records."""

    QUEUED_JOBS = "queued_jobs"  #: accepted, not yet claimed
    PROCESSING_JOBS = "processing_jobs"  #: claimed and not final
    UPLOADING_JOBS = "uploading_jobs"  #: admitted, body on its way
    PLACES_HELD_JOBS = "places_held_jobs"  #: the admission books: admitted and not finished
    OLDEST_UNSTARTED_S = "oldest_unstarted_s"  #: queue lag: age of the oldest accepted job that no worker has started
    RSS_BYTES = "rss_bytes"  #: sum over the role's process tree
    RSS_PEAK_BYTES = "rss_peak_bytes"  #: highest VmHWM of any one process of the tree
    PSS_BYTES = "pss_bytes"  #: sum over the role's process tree, shared pages counted once
    CPU_S = "cpu_s"  #: CPU time of the tree so far, reaped children included
    PROCESSES_COUNT = "processes_count"  #: size of the tree
    SCRAPE_S = "scrape_s"  #: how long one scrape of the queue gauges took; their instant is its middle


METRICS = tuple(value for name, value in vars(Metric).items() if not name.startswith("_") and isinstance(value, str))


#: The role under which the whole machine's CPU time is sampled (`Metric.CPU_S`), everything that runs on it included.
MACHINE = "machine"


class ColumnsDifferError(Exception):
    """A raw file is not of this format version."""


def require_columns(table: Table, names: Collection[str]) -> None:
    """Check that `names` are exactly the table's columns.

    Raises:
        ColumnsDifferError: a column is missing or unknown; the message names it.
    """
    missing = [name for name in table.names if name not in names]
    unknown = [name for name in names if name not in table.names]
    if missing or unknown:
        raise ColumnsDifferError(f"{table.file}: missing {missing}, unknown {unknown} (format {RUN_FORMAT_VERSION})")
