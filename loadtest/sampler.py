"""Samples the queue gauges and every role's memory and CPU, in a process of its own.

Invariant: it only looks. It scrapes the janitor's gauges and reads the kernel's process tables; nothing it does depends
on the system under test being healthy, and a failed scrape is a missing sample, never a made-up one.
Run as `python -m loadtest.sampler CONFIG.json`; standard input names further processes, one JSON object a line, and its
end ends the sampler, which then writes its file.
"""

import http.client
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.runs import MACHINE, SAMPLES, Metric

QUEUE_PERIOD_S = 0.5
PROCESS_PERIOD_S = 1.0
PSS_PERIOD_S = 5.0
#: A process that joins a role's tree while none of it ends is seen after this long at the latest.
TREES_PERIOD_S = 5.0
_SCRAPE_TIMEOUT_S = 2.0
#: Rows kept at most: about four hours at the periods above.
_ROWS_MAX = 2_000_000
_STOP_GRACE_S = 15.0

_GAUGES = {
    'spillway_jobs{state="queued"}': Metric.QUEUED_JOBS,
    'spillway_jobs{state="processing"}': Metric.PROCESSING_JOBS,
    'spillway_jobs{state="uploading"}': Metric.UPLOADING_JOBS,
    "spillway_places_held": Metric.PLACES_HELD_JOBS,
    "spillway_oldest_unstarted_seconds": Metric.OLDEST_UNSTARTED_S,
}
_SAMPLE_LINE = re.compile(r"^([a-zA-Z_:][^ ]*(?:\{[^}]*\})?) ([^ ]+)")

Row = tuple[float, str, str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """What to sample and where to write it."""

    metrics_url: str  #: of the janitor; empty when there are no gauges to scrape
    roots: dict[str, list[int]]  #: role or server → pids whose trees belong to it
    file: str

    @classmethod
    def read(cls, file: Path) -> "SamplerConfig":
        """Return the configuration kept in `file`."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


class Sampling:
    """A running sampler process."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child

    def watch(self, role: str, pid: int) -> None:
        """Sample one more process tree from now on, under the name `role`."""
        if self._child.stdin is not None:
            with suppress(BrokenPipeError):  # a sampler that died is found by its missing file
                self._child.stdin.write(json.dumps({"role": role, "pid": pid}).encode() + b"\n")
                self._child.stdin.flush()


@contextmanager
def sampling(config: SamplerConfig, *, config_file: Path) -> Iterator[Sampling]:
    """Run a sampler process for the length of the block; its Parquet file is there afterwards."""
    config_file.write_text(json.dumps(asdict(config)), encoding="utf-8")
    command = [sys.executable, "-m", "loadtest.sampler", str(config_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            yield Sampling(child)
        finally:
            try:
                child.communicate(timeout=_STOP_GRACE_S)  # closes its standard input
            except subprocess.TimeoutExpired:
                child.kill()


def parse_gauges(text: str) -> dict[str, float]:
    """Return the bench's metrics found in a page of Prometheus text."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE_LINE.match(line)
        metric = _GAUGES.get(match.group(1)) if match else None
        if match and metric:
            found[metric] = float(match.group(2))
    return found


@dataclass(slots=True)
class _Rows:
    """The samples so far, bounded."""

    rows: list[Row] = field(default_factory=list)

    def add(self, at_s: float, metric: str, role: str, value: float) -> None:
        if len(self.rows) < _ROWS_MAX:
            self.rows.append((at_s, metric, role, value))


class _Scraper:
    """One kept connection to the janitor's metrics page."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path or "/metrics"
        self._connection = http.client.HTTPConnection(
            parts.hostname or "127.0.0.1", parts.port or 80, timeout=_SCRAPE_TIMEOUT_S
        )

    def scrape(self, rows: _Rows) -> None:
        begin_s = time.monotonic()
        try:
            self._connection.request("GET", self._path)
            text = self._connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return
        end_s = time.monotonic()
        middle_s = (begin_s + end_s) / 2
        for metric, value in parse_gauges(text).items():
            rows.add(middle_s, metric, "", value)
        rows.add(middle_s, Metric.SCRAPE_S, "", end_s - begin_s)


def _trees(config: SamplerConfig) -> dict[str, list[psutil.Process]]:
    """Return every role's living processes; one pass over the process table serves all roles."""
    children: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"] or 0, []).append(process)
    trees: dict[str, list[psutil.Process]] = {}
    for role, pids in list(config.roots.items()):
        tree: dict[int, psutil.Process] = {}
        waiting = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        while waiting:
            process = waiting.pop()
            if process.pid not in tree:
                tree[process.pid] = process
                waiting += children.get(process.pid, [])
        trees[role] = list(tree.values())
    return trees


class _KnownTrees:
    """The trees of all roles, looked up anew after a process of theirs has ended, and every so often.

    Going through the process table costs several times what reading the processes does, and it is the measured
    machine that pays.
    """

    def __init__(self, config: SamplerConfig) -> None:
        self._config = config
        self._trees: dict[str, list[psutil.Process]] = {}
        self._roots_count = 0
        self._stale_from_s = -math.inf

    def at(self, now_s: float) -> dict[str, list[psutil.Process]]:
        roots_count = sum(map(len, self._config.roots.values()))
        known = [process.pid for tree in self._trees.values() for process in tree]
        stale = now_s >= self._stale_from_s or roots_count != self._roots_count
        if stale or not all(map(psutil.pid_exists, known)):
            self._trees, self._roots_count = _trees(self._config), roots_count
            self._stale_from_s = now_s + TREES_PERIOD_S
        return self._trees

    def forget(self) -> None:
        """Look the trees up anew next time."""
        self._stale_from_s = -math.inf


def _sample_processes(trees: _KnownTrees, rows: _Rows, *, with_pss: bool) -> None:
    at_s = time.monotonic()
    for role, tree in trees.at(at_s).items():
        totals = {Metric.RSS_BYTES: 0.0, Metric.CPU_S: 0.0, Metric.RSS_PEAK_BYTES: 0.0, Metric.PSS_BYTES: 0.0}
        processes_count = 0
        for process in tree:
            try:
                _add_process(process, totals, with_pss=with_pss)
                processes_count += 1
            except (psutil.Error, OSError):
                trees.forget()  # it has ended, and another may have taken its place
        if not with_pss:
            del totals[Metric.PSS_BYTES]
        for metric, value in totals.items():
            rows.add(at_s, metric, role, value)
        rows.add(at_s, Metric.PROCESSES_COUNT, role, float(processes_count))
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
    rows.add(at_s, Metric.CPU_S, MACHINE, sum(times) - getattr(times, "guest", 0.0) - idle)


def _add_process(process: psutil.Process, totals: dict[str, float], *, with_pss: bool) -> None:
    with process.oneshot():
        rss = process.memory_info().rss
        cpu = process.cpu_times()
    totals[Metric.RSS_BYTES] += rss
    totals[Metric.CPU_S] += cpu.user + cpu.system + cpu.children_user + cpu.children_system
    totals[Metric.RSS_PEAK_BYTES] = max(totals[Metric.RSS_PEAK_BYTES], _peak_rss(process.pid) or rss)
    if with_pss:
        totals[Metric.PSS_BYTES] += getattr(process.memory_full_info(), "pss", 0)


def _peak_rss(pid: int) -> int:
    """Return VmHWM, bytes, or 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def _sample_until(config: SamplerConfig, stop: threading.Event) -> list[Row]:
    rows = _Rows()
    scraper = _Scraper(config.metrics_url) if config.metrics_url else None
    trees = _KnownTrees(config)
    begin_s = time.monotonic()
    next_process_s, next_pss_s = begin_s, begin_s + PSS_PERIOD_S / 2
    tick = 0
    while not stop.wait(max(0.0, begin_s + tick * QUEUE_PERIOD_S - time.monotonic())):
        tick = int((time.monotonic() - begin_s) / QUEUE_PERIOD_S) + 1  # a slow tick is skipped, not made up
        if scraper is not None:
            scraper.scrape(rows)
        now_s = time.monotonic()
        if now_s >= next_process_s:
            with_pss = now_s >= next_pss_s
            next_process_s = now_s + PROCESS_PERIOD_S
            next_pss_s = now_s + PSS_PERIOD_S if with_pss else next_pss_s
            _sample_processes(trees, rows, with_pss=with_pss)
    trees.forget()
    _sample_processes(trees, rows, with_pss=True)
    return rows.rows


def _write(rows: list[Row], file: str) -> None:
    at_s, metric, role, value = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = {
        "at_s": pa.array(at_s, pa.float64()),
        "metric": pa.array(metric, pa.string()),
        "role": pa.array(role, pa.string()),
        "value": pa.array(value, pa.float64()),
    }
    pq.write_table(pa.table(columns).select(SAMPLES.names), file)


def _main(config_file: str) -> None:
    config = SamplerConfig.read(Path(config_file))
    config.roots["sampler"] = [os.getpid()]
    stop = threading.Event()

    def follow_input() -> None:
        for line in sys.stdin.buffer:
            more = json.loads(line)
            config.roots.setdefault(more["role"], []).append(more["pid"])
        stop.set()

    threading.Thread(target=follow_input, daemon=True).start()
    _write(_sample_until(config, stop), config.file)


if __name__ == "__main__":
    _main(sys.argv[1])
