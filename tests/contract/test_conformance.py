"""schemathesis over `contracts/openapi.json` against the running stack: no failure, no undocumented answer."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from app.core.tokens import Scope
from stack.servers import Servers
from tests.edge import open_edge
from tests.line import Line, token_store
from tests.repo.tidy.sources import ROOT

#: Random cases for each operation and phase; the coverage phase has its own, all of them.
EXAMPLES_MAX = 15
TIMEOUT_S = 85
#: These bounds are tested elsewhere; here they would turn valid uploads away, and those away who are to be told `401`.
ENVIRONMENT = {"SPILLWAY_ADMISSION_JOBS_MAX": "100000", "SPILLWAY_AUTH_FAILURES_PER_MINUTE_MAX": "100000"}


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment, env=ENVIRONMENT) as opened:
        await opened.start("relay", "worker")
        yield opened


def schemathesis(
    line: Line, token: str, environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run it in a folder of its own, where it keeps its notes; in one thread, since CPython 3.11 parses only in one."""
    command = [str(Path(sys.executable).with_name("schemathesis"))]
    command += ["--config-file", str(ROOT / "tests/contract/schemathesis.toml")]
    command += ["run", str(ROOT / "contracts/openapi.json"), "--url", line.base_url, "--workers", "1"]
    command += ["--header", f"Authorization: Bearer {token}", "--max-examples", str(EXAMPLES_MAX)]
    env = {**environment, "PYTHONPATH": os.fspath(ROOT), "NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, errors="replace"
    )


async def test_no_check_of_schemathesis_fails(line: Line, environment: Mapping[str, str], tmp_path: Path) -> None:
    async with token_store(line.env) as tokens:
        _, token = await tokens.create(owner="ann", scopes=(Scope.USER, Scope.ADMIN))
    done = await asyncio.to_thread(schemathesis, line, token, environment, tmp_path)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    openapi = json.loads((ROOT / "contracts/openapi.json").read_text(encoding="utf-8"))
    count = sum(len(methods) for methods in openapi["paths"].values())
    assert f"Tested: {count}\n" in done.stdout, "not every operation was tested"
    for phase in ("Coverage", "Fuzzing", "Stateful"):
        assert f"✅ {phase}" in done.stdout, f"{phase} did not run to its end"


async def test_nothing_unexpected_happened_meanwhile(line: Line) -> None:
    unexpected = 'spillway_http_refusals_total{code="internal"}'
    assert unexpected not in (await line.http.get(f"{line.base_url}/metrics")).text
