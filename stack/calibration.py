"""The generator against a server that does nothing: what it can do here before anything is blamed on the product.

Invariant: the calibration's load is at least twice the highest rate of the quick plan, with its largest upload.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from analysis.checks import LAG_P99_S_FIFO, LAG_S_MAX, lag_of
from contracts.runs import REQUESTS
from loadtest.arrivals import poisson_count
from loadtest.corpus import Corpus
from loadtest.generator import Aim, drive

RATE_PER_S = 50.0
COUNT = 200


def calibrate(corpora: Mapping[str, Corpus], *, console: Console) -> dict[str, Any]:
    """Return the generator's lag against the stub as facts for the fingerprint; warns when the machine is too busy."""
    corpus = max(corpora.values(), key=lambda corpus: corpus.size_class.megapixels)
    with tempfile.TemporaryDirectory(prefix="spillway-null-") as folder:
        p99_s, max_s = _lag(Path(folder), corpus)
    if p99_s > LAG_P99_S_FIFO or max_s > LAG_S_MAX:
        console.print(
            f"bench: the generator is late even against an idle server (p99 {p99_s * 1000:.1f} ms, max "
            f"{max_s * 1000:.1f} ms): the machine is busy, expect GENERATOR_LIMITED cells",
            highlight=False,
        )
    return {
        "generator_null_lag_p99_ms": round(p99_s * 1000, 2),
        "generator_null_lag_max_ms": round(max_s * 1000, 2),
        "generator_null_rate_per_s": RATE_PER_S,
    }


def _lag(folder: Path, corpus: Corpus) -> tuple[float, float]:
    schedule = poisson_count(COUNT, rate_per_s=RATE_PER_S, seed=1, images=len(corpus.files))
    command = [sys.executable, "-m", "loadtest.stub"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stub:
        try:
            port = stub.stdout.readline().strip() if stub.stdout is not None else ""
            aim = Aim(url=f"http://127.0.0.1:{port}", token="-")  # noqa: S106 - the stub looks at no token
            drive(schedule, aim=aim, corpus=corpus, folder=folder)
        finally:
            stub.kill()
    return lag_of(pd.read_parquet(folder / REQUESTS.file))
