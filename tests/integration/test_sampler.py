import os
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest

from contracts.runs import SAMPLES, Metric, require_columns
from loadtest.sampler import SamplerConfig, sampling

pytestmark = pytest.mark.alone


def test_a_process_tree_is_sampled_with_its_children(tmp_path: Path) -> None:
    """The parent starts a child that holds 64 MiB: the role's RSS must contain it."""
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
        "'x = bytearray(64 << 20); print(len(x), flush=True); input()'], stdin=subprocess.PIPE); input(); p.kill()"
    )
    file = tmp_path / "samples.parquet"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        parent.stdout.readline()
        config = SamplerConfig(metrics_url="", roots={"worker": [parent.pid], "self": [os.getpid()]}, file=str(file))
        with sampling(config, config_file=tmp_path / "sampler.json") as sampler:
            sampler.watch("late", os.getpid())
            threading.Event().wait(1.5)  # the length of the sample, not a wait for something
        parent.stdin.close()
    samples = pd.read_parquet(file)
    require_columns(SAMPLES, list(samples.columns))
    worker = samples[samples["role"] == "worker"].groupby("metric")["value"].max()
    assert worker[Metric.RSS_BYTES] > 64 << 20
    assert worker[Metric.RSS_PEAK_BYTES] > 64 << 20
    assert worker[Metric.PROCESSES_COUNT] == 2
    assert worker[Metric.PSS_BYTES] > 64 << 20
    assert {"self", "late"} <= set(samples["role"])
