"""What `examples/` shows works as it stands: the curl lines as pasted, and a client in another language."""

import asyncio
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from stack.servers import Servers
from tests.edge import open_edge
from tests.line import Line, photo, until
from tests.repo.tidy.sources import ROOT

EXAMPLES = ROOT / "examples"
PASTED = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
NODE_VERSION_MIN = 20
TIMEOUT_S = 90


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment) as opened:
        await opened.start("relay", "worker")
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photo.jpg").write_bytes(photo(7))
    return tmp_path


@pytest.fixture
def node(environment: Mapping[str, str]) -> str:
    found = shutil.which("node", path=environment["PATH"])
    if found is None:
        pytest.skip("there is no node on PATH")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    if int(version.lstrip("v").split(".")[0]) < NODE_VERSION_MIN:
        pytest.skip(f"node is {version.strip()}, the example needs {NODE_VERSION_MIN}")
    return found


async def run(command: list[str], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


async def test_the_curl_lines_work_as_pasted(line: Line, environment: Mapping[str, str], folder: Path) -> None:
    if shutil.which("curl", path=environment["PATH"]) is None:
        pytest.skip("there is no curl on PATH")
    blocks = PASTED.findall((EXAMPLES / "curl.md").read_text(encoding="utf-8"))
    env = {**environment, "SPILLWAY_TOKEN": line.token, "URL": line.base_url}
    done = await run(["sh", "-eu", "-c", "\n".join(blocks)], folder, env)
    assert done.returncode == 0, done.stdout + done.stderr
    heads = re.findall(r"^HTTP/1.1 (\d+)", done.stdout, re.MULTILINE)
    assert [status for status in heads if status != "100"] == ["202", "201", "422"]
    assert "status: ready" in done.stdout
    assert (folder / "thumbnail.jpg").read_bytes().startswith(b"\xff\xd8")
    jobs = await line.raw.fetchval("SELECT count(*) FROM spillway.jobs WHERE state <> 'dropped'")
    assert jobs == 2, "the repeat under the same key made another job"


async def test_the_javascript_client_uploads_follows_and_saves(
    line: Line, environment: Mapping[str, str], folder: Path, node: str
) -> None:
    command = [node, str(EXAMPLES / "client.mjs"), "photo.jpg", "--url", line.base_url, "--save", "out"]
    done = await run(command, folder, {**environment, "SPILLWAY_TOKEN": line.token})
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["outcome"], result["tries"]) == (0, "ready", 1), done.stderr
    row = await line.raw.fetchrow("SELECT source_sha256, variants FROM spillway.jobs WHERE id = $1", result["job_id"])
    assert row is not None
    assert row["source_sha256"] == hashlib.sha256(photo(7)).hexdigest()
    announced = {variant["name"]: variant["sha256"] for variant in json.loads(row["variants"])}
    saved = {
        path.name.split(".")[1]: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "out").iterdir()
    }
    assert saved == announced


async def test_the_javascript_client_tries_a_refused_upload_again(
    servers: Servers, environment: Mapping[str, str], folder: Path, node: str
) -> None:
    async with open_edge(servers, environment, env={"SPILLWAY_ADMISSION_JOBS_MAX": "1"}) as full:
        await full.accepted([1])
        command = [node, str(EXAMPLES / "client.mjs"), "photo.jpg", "--url", full.base_url]
        running = asyncio.create_task(run(command, folder, {**environment, "SPILLWAY_TOKEN": full.token}))
        refused = b'spillway_http_refusals_total{code="backlog_full"}'

        async def seen() -> bool:
            return refused in (await full.http.get(f"{full.base_url}/metrics")).content

        await until(seen, what="the client's refusal")
        await full.start("relay", "worker")
        done = await running
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["outcome"]) == (0, "ready"), done.stderr
    assert result["tries"] >= 2


async def test_the_javascript_client_tells_why_a_file_was_rejected(
    line: Line, environment: Mapping[str, str], folder: Path, node: str
) -> None:
    (folder / "photo.jpg").write_bytes(b"hello")
    command = [node, str(EXAMPLES / "client.mjs"), "photo.jpg", "--url", line.base_url]
    done = await run(command, folder, {**environment, "SPILLWAY_TOKEN": line.token})
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["outcome"], result["code"]) == (1, "rejected", "unsupported_format")


def test_the_javascript_client_needs_no_package() -> None:
    text = (EXAMPLES / "client.mjs").read_text(encoding="utf-8")
    imported = re.findall(r"^import .* from \"([^\"]+)\"", text, re.MULTILINE)
    assert imported
    assert all(name.startswith("node:") for name in imported)
