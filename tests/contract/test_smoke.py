"""The public smoke passes against the running stack, and fails with a sentence where something is wrong."""

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping

import pytest
from PIL import Image

from stack.servers import Servers
from tests.edge import open_edge
from tests.line import Line
from tests.repo.tidy.sources import ROOT
from tests.scripted_server import Reply, scripted
from tests.smoke.images import Size, jpeg_size, png


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment) as opened:
        await opened.start("relay", "worker")
        yield opened


async def smoke(environment: Mapping[str, str], *arguments: str, token: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.smoke", *arguments],
        cwd=ROOT,
        env={**environment, "SPILLWAY_TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


async def test_it_passes_against_a_running_stack(line: Line, environment: Mapping[str, str]) -> None:
    done = await smoke(environment, line.base_url, token=line.token)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("smoke: passed")


async def test_make_runs_it_with_nothing_but_address_and_token(line: Line, environment: Mapping[str, str]) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        ["make", "test", f"URL={line.base_url}"],
        cwd=ROOT,
        env={**environment, "SPILLWAY_TOKEN": line.token},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "smoke: passed" in done.stdout


async def test_a_wrong_token_fails_it(line: Line, environment: Mapping[str, str]) -> None:
    done = await smoke(environment, line.base_url, token="wrong")
    assert done.returncode == 1
    assert "FAILED  401 instead of" in done.stdout


async def test_another_server_fails_it(environment: Mapping[str, str]) -> None:
    async with scripted({"GET /health/ready": [Reply(body=b"<html>")]}) as script:
        done = await smoke(environment, script.url, token="x")
    assert (done.returncode, "without JSON" in done.stdout) == (1, True)


async def test_wrong_use_is_told(environment: Mapping[str, str]) -> None:
    done = await smoke(environment, "http://127.0.0.1:1", token="")
    assert (done.returncode, "usage:" in done.stderr) == (2, True)


def test_its_png_is_an_image() -> None:
    with Image.open(io.BytesIO(png(64, 40, seed=3))) as image:
        image.load()
        assert (image.size, image.format) == ((64, 40), "PNG")
    assert png(64, 40, seed=3) != png(64, 40, seed=4)


@pytest.mark.parametrize("progressive", [True, False])
def test_only_whole_jpegs_have_a_size(*, progressive: bool) -> None:
    out = io.BytesIO()
    Image.new("RGB", (64, 40)).save(out, "JPEG", progressive=progressive)
    data = out.getvalue()
    assert jpeg_size(data) == Size(64, 40)
    assert jpeg_size(data[:-2]) is None
    assert jpeg_size(data[2:]) is None
    assert jpeg_size(b"\xff\xd8\xff\xd9") is None
    assert jpeg_size(png(64, 40, seed=1)) is None
