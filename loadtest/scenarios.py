"""A Locust file that drives a precomputed open-loop schedule: one greenlet per arrival, latency from the due time.

Invariant: no answer, however late, delays or drops a later arrival. Stock Locust pacing cannot promise that (it waits
for its users), so one user with one task starts every arrival itself. Run by `loadtest.generator`, or by hand:
`locust -f loadtest/scenarios.py --headless -u 1 --plan PLAN.json`.
"""

# locust patches sockets and time when it is imported: it comes first.
from locust import FastHttpUser, events, task

# isort: split
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pyarrow as pa
import pyarrow.parquet as pq
from gevent.pool import Group

from contracts.cells import GeneratorFacts
from contracts.runs import REQUESTS, Outcome
from loadtest.clocks import read_clocks
from loadtest.plan import BOUNDARY, GeneratorPlan, multipart_body

_FIFO_PRIORITY = 10
_NICE = -10
_PR_SET_PDEATHSIG = 1
_STATUS_ACCEPTED = 202
_STATUSES_REFUSED = frozenset({429, 503})
_STATUS_CLIENT_ERRORS = range(400, 500)
#: Lifts the hidden closed loop of the client (ten connections by default); far above any schedule's arrivals in flight.
_CONNECTIONS_MAX = 100_000


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]  # locust's own
def _add_arguments(parser: Any) -> None:
    parser.add_argument("--plan", required=True, help="the generator plan, a JSON file")


class Arrivals(FastHttpUser):
    """The one user: its task sends the whole schedule and then ends the run."""

    fixed_count = 1
    concurrency = _CONNECTIONS_MAX
    max_retries = 0
    connection_timeout = 60.0

    def __init__(self, environment: Any) -> None:
        self.plan = GeneratorPlan.read(Path(environment.parsed_options.plan))
        self.host = self.plan.url
        self.network_timeout = self.plan.answer_timeout_s
        super().__init__(environment)
        self.rows: list[dict[str, Any]] = []
        self.in_flight = 0
        self.in_flight_max = 0

    @task
    def send_all(self) -> None:
        """Send every arrival at its due time, wait for all answers, write rows and facts, end the run."""
        _die_with_parent()
        schedule = pq.read_table(self.plan.schedule_file, use_threads=False).to_pylist()
        bodies = [multipart_body(Path(file).read_bytes(), file_name=Path(file).name) for file in self.plan.files]
        priority = _raise_priority()
        clocks = read_clocks()
        zero_s = clocks.monotonic_s + self.plan.lead_s
        cpu_before_s = _cpu_s()
        group = Group()
        for arrival in _on_time(schedule, zero_s):
            group.spawn(self._send_one, arrival, bodies[arrival["image"]], zero_s)
        group.join()
        facts = GeneratorFacts(
            priority=priority,
            zero_monotonic_s=zero_s,
            zero_wall_s=zero_s + clocks.wall_minus_monotonic_s,
            planned_count=len(schedule),
            sent_count=len(self.rows),
            in_flight_max=self.in_flight_max,
            elapsed_s=time.monotonic() - zero_s,
            cpu_s=_cpu_s() - cpu_before_s,
        )
        _write(self.plan, self.rows, facts)
        self.environment.process_exit_code = 0
        self.environment.runner.quit()

    def _send_one(self, arrival: dict[str, Any], body: bytes, zero_s: float) -> None:
        started_s = time.monotonic() - zero_s
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        headers = {
            "Authorization": f"Bearer {self.plan.token}",
            "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
        }
        post: Any = self.client.post  # its annotation knows no bytes, its code does
        with post(self.plan.path, data=body, headers=headers, catch_response=True, name="upload") as answer:
            ended_s = time.monotonic() - zero_s
            verdict = _verdict(answer)
            if verdict["outcome"] in {Outcome.ACCEPTED, Outcome.REFUSED}:
                answer.success()  # a planned refusal is the policy at work, not a failure of the run
            else:
                answer.failure(verdict["code"])
        self.in_flight -= 1
        row = {
            "arrival": arrival["arrival"],
            "phase": arrival["phase"],
            "due_s": arrival["due_us"] / 1e6,
            "started_s": started_s,
            "ended_s": ended_s,
            "body_bytes": len(body),
            **verdict,
        }
        self.rows.append(row)


def _on_time(schedule: list[dict[str, Any]], zero_s: float) -> Iterator[dict[str, Any]]:
    """Yield each arrival when it is due by the absolute clock, so that lateness never adds up."""
    for arrival in schedule:
        wait_s = zero_s + arrival["due_us"] / 1e6 - time.monotonic()
        gevent.sleep(max(0.0, wait_s))  # also when late: answers must be read in between
        yield arrival


def _verdict(answer: Any) -> dict[str, Any]:
    """Return status, outcome, code, job id and retry-after of one answer."""
    status = int(answer.status_code or 0)
    if status == 0:
        error = answer.error
        timed_out = isinstance(error, TimeoutError) or "timed out" in str(error)
        outcome = Outcome.TIMEOUT if timed_out else Outcome.ERROR
        return _outcome(status, outcome, code=type(error).__name__)
    document = _document(answer)
    if status == _STATUS_ACCEPTED and "job_id" in document:
        return _outcome(status, Outcome.ACCEPTED, job_id=str(document["job_id"]), retry_after=_retry_after(answer))
    code = str(document.get("code", f"http_{status}"))
    if status in _STATUSES_REFUSED and "code" in document:
        return _outcome(status, Outcome.REFUSED, code=code, retry_after=_retry_after(answer))
    outcome = Outcome.REJECTED if status in _STATUS_CLIENT_ERRORS else Outcome.ERROR
    return _outcome(status, outcome, code=code)


def _outcome(
    status: int, outcome: str, *, code: str | None = None, job_id: str | None = None, retry_after: float | None = None
) -> dict[str, Any]:
    return {"status": status, "outcome": outcome, "code": code, "job_id": job_id, "retry_after_s": retry_after}


def _document(answer: Any) -> dict[str, Any]:
    try:
        document = json.loads(answer.content)
    except (TypeError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _retry_after(answer: Any) -> float | None:
    try:
        return float(answer.headers.get("Retry-After"))
    except (TypeError, ValueError):
        return None


def _raise_priority() -> str:
    """Take real-time priority, else a better nice value, else nothing; return which."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
    except (OSError, AttributeError):
        try:
            os.nice(_NICE)
        except OSError:
            return "none"
        return "nice"
    return "fifo"


def _die_with_parent() -> None:
    """Have the kernel end this process when its starter is gone; a load nobody waits for must not go on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


_REQUEST_TYPES = {
    "arrival": pa.int64(),
    "phase": pa.string(),
    "due_s": pa.float64(),
    "started_s": pa.float64(),
    "ended_s": pa.float64(),
    "status": pa.int16(),
    "outcome": pa.string(),
    "code": pa.string(),
    "job_id": pa.string(),
    "retry_after_s": pa.float64(),
    "body_bytes": pa.int64(),
}


def _write(plan: GeneratorPlan, rows: list[dict[str, Any]], facts: GeneratorFacts) -> None:
    rows.sort(key=lambda row: row["arrival"])
    schema = pa.schema([(name, _REQUEST_TYPES[name]) for name in REQUESTS.names])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), plan.requests_file)
    Path(plan.facts_file).write_text(facts.to_json(), encoding="utf-8")
