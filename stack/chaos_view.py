"""A history with its rows found by what they belong to, so that each promise reads as one sentence. Pure."""

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from uuid import UUID

from stack.chaos_history import FaultSpan, History, JobRow, Picture, Step

UPLOAD = "upload"
ACCEPTED = 202


class View:
    """One history, indexed."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.jobs: Mapping[UUID, JobRow] = {job.job_id: job for job in history.jobs}
        self.pictures: Mapping[str, Picture] = {picture.sha256: picture for picture in history.pictures}
        self.steps_of: defaultdict[UUID, list[Step]] = defaultdict(list)
        for step in history.steps:
            self.steps_of[step.job_id].append(step)
        self._settled_s = sorted(step.at_s for step in history.steps if step.settles)
        #: What clients were promised.
        self.promised_ids = {
            UUID(call.job_id) for call in history.calls if call.what == UPLOAD and call.status == ACCEPTED
        }
        #: And what the rows say was accepted, heard of or not.
        self.accepted_ids = self.promised_ids | {job.job_id for job in history.jobs if job.source_sha256 is not None}
        self.accepted_jobs = [self.jobs[job_id] for job_id in sorted(self.accepted_ids) if job_id in self.jobs]
        self.cancel_asked = {call.job_id for call in history.calls if call.what == "cancel"}
        self.overlap_peak = overlap_peak(history.steps)

    def picture_of(self, job: JobRow) -> Picture | None:
        """Return the picture that a job was made for."""
        return self.pictures.get(job.source_sha256 or "")

    def recovery_s(self, fault: FaultSpan) -> float:
        """Return the seconds from the end of a fault to the next settled job; infinite when there was none."""
        index = bisect.bisect_left(self._settled_s, fault.ended_s)
        return self._settled_s[index] - fault.ended_s if index < len(self._settled_s) else math.inf

    def faults_at(self, from_s: float, until_s: float, *, targets: Iterable[str]) -> list[FaultSpan]:
        """Return the faults on one of the targets that overlap a time."""
        wanted = set(targets)
        return [
            fault
            for fault in self.history.faults
            if fault.target in wanted and fault.begun_s <= until_s and fault.ended_s >= from_s
        ]


def overlap_peak(steps: Iterable[Step]) -> int:
    """Return the most places that were held at once, by the stamps that were taken while the gate was locked."""
    changes: list[tuple[float, int]] = []
    for step in steps:
        if step.held_after and not step.held_before:
            changes.append((step.admitted_s, 1))
        elif step.held_before and not step.held_after:
            changes.append((step.at_s if step.released_s is None else step.released_s, -1))
    held_count = peak = 0
    for _, change in sorted(changes):  # of equal stamps the release comes first
        held_count += change
        peak = max(peak, held_count)
    return peak
