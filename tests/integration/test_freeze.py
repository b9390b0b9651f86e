"""A frozen server must show in the numbers: the difference between an open and a closed loop (coordinated omission)."""

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from contracts.runs import REQUESTS, require_columns
from loadtest.arrivals import constant
from loadtest.corpus import SIZE_CLASSES, Corpus, ensure_corpus
from loadtest.generator import Aim, drive

pytestmark = pytest.mark.alone

RATE_PER_S = 100
LOAD_S = 20
FREEZE_AFTER_S = 8.0
FREEZE_S = 5.0
#: 2,000 arrivals of which 500 fall into the freeze: the 100th slowest of them waits 4 s, and the drain of the 500
#: waiting adds its part.
P95_S = 4.015


@contextmanager
def stub_server() -> Iterator[tuple[int, int]]:
    """Yield pid and port of a stub in a process of its own."""
    command = [sys.executable, "-m", "loadtest.stub"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.pid, int(child.stdout.readline())
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()


def freeze_later(pid: int) -> None:
    """Stop the process a while after the load has begun and let it go on after the freeze."""
    pause = threading.Event()
    pause.wait(FREEZE_AFTER_S)
    os.kill(pid, signal.SIGSTOP)
    pause.wait(FREEZE_S)
    os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Two pictures of a few kB: the bytes of 500 waiting uploads would add their own time after the freeze."""
    tiny = replace(SIZE_CLASSES["0.3MP"], width_px=96, height_px=64, images_count=2)
    return ensure_corpus(tmp_path_factory.mktemp("corpus"), tiny, seed=1)


def open_loop(folder: Path, corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Return latencies from due time and generator lags of a run with a freeze, seconds."""
    schedule = constant(RATE_PER_S * LOAD_S, rate_per_s=RATE_PER_S, seed=1, images=2)
    with stub_server() as (pid, port):
        aim = Aim(url=f"http://127.0.0.1:{port}", token="t")
        freezer = threading.Thread(target=freeze_later, args=(pid,))
        facts = drive(schedule, aim=aim, corpus=corpus, folder=folder, on_start=lambda _: freezer.start())
        freezer.join()
    rows = pq.read_table(folder / "requests.parquet")
    require_columns(REQUESTS, rows.column_names)
    assert facts.sent_count == facts.planned_count == rows.num_rows == RATE_PER_S * LOAD_S
    assert set(rows["outcome"].to_pylist()) == {"accepted"}
    due_s, started_s, ended_s = (rows[name].to_numpy() for name in ("due_s", "started_s", "ended_s"))
    return ended_s - due_s, started_s - due_s


def stock_locust(folder: Path) -> tuple[int, float]:
    """Return the count of requests that stock pacing sent and the p95 it printed, seconds."""
    with stub_server() as (pid, port):
        command = [sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("stock_locust_file.py"))]
        command += ["--headless", "-u", "10", "-r", "10", "-t", f"{LOAD_S}s", "--host", f"http://127.0.0.1:{port}"]
        command += ["--csv", str(folder / "stock"), "--only-summary", "--loglevel", "ERROR"]
        freezer = threading.Thread(target=freeze_later, args=(pid,))
        freezer.start()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        freezer.join()
    with (folder / "stock_stats.csv").open() as file:
        total = next(row for row in csv.DictReader(file) if row["Name"] == "Aggregated")
    return int(total["Request Count"]), float(total["95%"]) / 1000


def test_a_freeze_of_five_seconds_shows_in_the_open_loop_and_not_in_stock_pacing(
    tmp_path: Path, small_corpus: Corpus
) -> None:
    """Two stubs, both frozen for 5 s of 20 s at 100 a second, side by side so that the test takes half the time."""
    begin_s = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(open_loop, tmp_path, small_corpus)
        theirs = pool.submit(stock_locust, tmp_path)
        latency_s, lag_s = ours.result()
        stock_count, stock_p95_s = theirs.result()
    assert np.percentile(latency_s, 95) == pytest.approx(P95_S, rel=0.05)
    assert latency_s.max() == pytest.approx(FREEZE_S, rel=0.1)
    assert np.percentile(lag_s, 99) < 0.1, "the generator itself must not have been late"
    assert stock_count < 0.85 * RATE_PER_S * LOAD_S, "stock pacing should have dropped about a quarter of the arrivals"
    assert stock_p95_s < 0.25 * P95_S, "stock pacing should not have seen the freeze in its p95"
    assert time.monotonic() - begin_s < 60
