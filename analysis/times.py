"""Stamps of two clocks → seconds after the cell's time zero, one row an arrival or job. Pure.

Invariant: every derived time is a difference of stamps of one clock, or of two clocks whose offset was recorded.
"""

import pandas as pd

from analysis.load import Cell

_STAMPS = {
    "admitted_at": "admitted_s",
    "accepted_at": "accepted_s",
    "published_at": "published_s",
    "first_claimed_at": "claimed_s",
    "finished_at": "finished_s",
    "released_at": "released_s",
}


def jobs_in_seconds(cell: Cell) -> pd.DataFrame:
    """Return the cell's jobs with every stamp as seconds after time zero on the host's clock."""
    zero_s = cell.record.zero_wall_s + cell.record.database_minus_host_s
    times = {name: _epoch_s(cell.jobs[stamp]) - zero_s for stamp, name in _STAMPS.items()}
    kept = cell.jobs[["job_id", "state", "source_bytes", "source_width", "source_height", "claim_token"]]
    return kept.assign(**times)


def arrivals_with_jobs(cell: Cell) -> pd.DataFrame:
    """Return one row an arrival, joined to its job where it was accepted, with the parts of its time.

    `ttr_s` = ready minus due; it is null for what was refused, failed or is not finished. The parts add up to it:
    `accept_s` (due to accepted), `wait_s` (accepted to claimed), `service_s` (claimed to ready).
    """
    jobs = jobs_in_seconds(cell).drop_duplicates("job_id")  # a check fails the cell that has some
    merged = cell.requests.merge(jobs, on="job_id", how="left", validate="many_to_one")
    ready = merged["state"] == "ready"
    return merged.assign(
        lag_s=merged["started_s"] - merged["due_s"],
        answer_s=merged["ended_s"] - merged["due_s"],
        answer_from_send_s=merged["ended_s"] - merged["started_s"],
        ttr_s=(merged["finished_s"] - merged["due_s"]).where(ready),
        accept_s=merged["accepted_s"] - merged["due_s"],
        wait_s=merged["claimed_s"] - merged["accepted_s"],
        service_s=(merged["finished_s"] - merged["claimed_s"]).where(ready),
    )


def samples_in_seconds(cell: Cell) -> pd.DataFrame:
    """Return the samples with `at_s` after the cell's time zero."""
    return cell.samples.assign(at_s=cell.samples["at_s"] - cell.record.zero_monotonic_s)


def _epoch_s(stamps: pd.Series) -> pd.Series:
    instants = pd.to_datetime(stamps, utc=True)
    return (instants - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
