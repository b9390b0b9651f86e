"""Starts the generator as a process of its own and waits for it.

Invariant: the generator's libraries never enter the caller's process (importing locust patches sockets and time).
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.cells import GeneratorFacts
from contracts.runs import SCHEDULE
from loadtest.arrivals import Schedule
from loadtest.corpus import Corpus
from loadtest.plan import GeneratorPlan

_SCENARIOS = Path(__file__).with_name("scenarios.py")
#: Beyond lead, load and the longest answer: start of the interpreter, encoding, writing.
_MARGIN_S = 60.0
_POLL_S = 0.2

UPLOAD_PATH = "/api/v1/images"


class GeneratorFailedError(Exception):
    """The generator did not finish its schedule; the message holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Where the load goes."""

    url: str
    token: str


def write_schedule(schedule: Schedule, file: Path) -> None:
    """Write the schedule in the format of contracts.runs.SCHEDULE."""
    names = [phase.name for phase in schedule.phases]
    columns = {
        "arrival": pa.array(range(len(schedule)), pa.int64()),
        "due_us": pa.array(schedule.due_us),
        "image": pa.array(schedule.image),
        "phase": pa.array([names[index] for index in schedule.phase_index], pa.string()),
    }
    pq.write_table(pa.table(columns).select(SCHEDULE.names), file)


def drive(
    schedule: Schedule,
    *,
    aim: Aim,
    corpus: Corpus,
    folder: Path,
    on_start: Callable[[int], None] | None = None,
    on_tick: Callable[[], None] | None = None,
) -> GeneratorFacts:
    """Drive `schedule` at `aim` and return the generator's facts; rows are in `folder`.

    `on_start` gets the generator's pid; `on_tick` is called a few times a second while it runs.

    Raises:
        GeneratorFailedError: it ended without its results, or not in time.
    """
    plan = GeneratorPlan(
        url=aim.url,
        path=UPLOAD_PATH,
        token=aim.token,
        files=tuple(str(file) for file in corpus.files),
        schedule_file=str(folder / "schedule.parquet"),
        requests_file=str(folder / "requests.parquet"),
        facts_file=str(folder / "generator.json"),
    )
    write_schedule(schedule, Path(plan.schedule_file))
    plan_file = folder / "generator-plan.json"
    plan_file.write_text(plan.to_json(), encoding="utf-8")
    plan_file.chmod(0o600)  # it holds the token while the generator runs
    try:
        _run(plan_file, folder / "generator.log", schedule=schedule, plan=plan, on_start=on_start, on_tick=on_tick)
    finally:
        plan_file.unlink(missing_ok=True)
    return GeneratorFacts.from_json(Path(plan.facts_file).read_text(encoding="utf-8"))


def _run(
    plan_file: Path,
    log_file: Path,
    *,
    schedule: Schedule,
    plan: GeneratorPlan,
    on_start: Callable[[int], None] | None,
    on_tick: Callable[[], None] | None,
) -> None:
    limit_s = plan.lead_s + schedule.duration_s + plan.answer_timeout_s + _MARGIN_S
    command = [sys.executable, "-m", "locust", "-f", str(_SCENARIOS), "--headless", "-u", "1", "-r", "1"]
    command += ["--host", plan.url, "--only-summary", "--loglevel", "WARNING", "--plan", str(plan_file)]
    with (
        log_file.open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as child,
    ):
        try:
            if on_start is not None:
                on_start(child.pid)
            _wait(child, limit_s=limit_s, on_tick=on_tick)
        finally:
            child.kill()
    if child.returncode != 0 or not Path(plan.facts_file).exists():
        tail = log_file.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise GeneratorFailedError(f"generator ended with {child.returncode}:\n{tail}")


def _wait(child: "subprocess.Popen[bytes]", *, limit_s: float, on_tick: Callable[[], None] | None) -> None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            child.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            if on_tick is not None:
                on_tick()
        else:
            return
    raise GeneratorFailedError(f"generator did not finish within {limit_s:.0f} s")
