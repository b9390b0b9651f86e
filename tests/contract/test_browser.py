"""A browser's `fetch`, from a page of another origin that the settings let in, uploads, is refused and polls."""

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stack.servers import Servers
from tests.contract.clients import TIMEOUT_S
from tests.edge import open_edge
from tests.line import Line, photo, until
from tests.repo.tidy.sources import ROOT
from tests.scripted_server import Reply, Script, scripted

SCRIPT = (ROOT / "tests/contract/browser_page.mjs").read_text(encoding="utf-8")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REPORT_S_MAX = 90.0


@pytest.fixture
def browser(environment: Mapping[str, str]) -> str:
    for name in BROWSERS:
        if (found := shutil.which(name, path=environment["PATH"])) is not None:
            return found
    return pytest.skip(f"none of {', '.join(BROWSERS)} is on PATH")


@pytest.fixture
async def site() -> AsyncIterator[Script]:
    """The server that the page comes from, and that it reports to."""
    async with scripted({"POST /report": [Reply()], "GET /favicon.ico": [Reply(status=404)]}) as script:
        yield script


async def seen_by_page(command: list[str], site: Script, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the browser until its page has reported; return what the page saw."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(environment),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:

        async def reported() -> bool:
            return bool(site.of("POST"))

        await until(reported, timeout_s=REPORT_S_MAX, what="the page's report")
    finally:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(TIMEOUT_S):
                await process.wait()
    report: dict[str, Any] = json.loads(site.of("POST")[-1].body)
    return report


def settings_for(line: Line, full: Line, site: Script) -> str:
    settings = {
        "api": line.base_url,
        "full": {"url": full.base_url, "token": full.token},
        "token": line.token,
        "photo": base64.b64encode(photo(3)).decode(),
        "report": f"{site.url}/report",
    }
    return f"globalThis.SETTINGS = {json.dumps(settings)};"


async def seen_against_two_lines(
    servers: Servers, environment: Mapping[str, str], site: Script, *, origin: str, command: list[str]
) -> dict[str, Any]:
    """Return what the page sees of a line with free places and of a full one, which let in one origin."""
    env = {"SPILLWAY_CORS_ORIGINS": origin}
    async with (
        open_edge(servers, environment, env=env) as line,
        open_edge(servers, environment, env={**env, "SPILLWAY_ADMISSION_JOBS_MAX": "1"}) as full,
    ):
        await line.start("relay", "worker")
        await full.accepted([1])
        page = f'<script>{settings_for(line, full, site)}</script><script type="module">{SCRIPT}</script>'
        site.replies["GET /page"] = [Reply(headers={"Content-Type": "text/html"}, body=page.encode())]
        return await seen_by_page(command, site, environment)


@pytest.mark.long
async def test_a_page_of_a_named_origin_uploads_is_refused_and_polls(
    servers: Servers, environment: Mapping[str, str], browser: str, site: Script, tmp_path: Path
) -> None:
    # As root a browser has no sandbox of its own; the page is ours.
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", f"{site.url}/page"]
    seen = await seen_against_two_lines(servers, environment, site, origin=site.url, command=command)
    assert "error" not in seen
    assert seen["accepted"]["status"] == 202
    assert seen["accepted"]["location"].startswith("/api/v1/image-jobs/")
    assert int(seen["accepted"]["wait"]) >= 1
    assert seen["replayed"] == {"status": 202, "marked": "true"}
    assert (seen["refused"]["status"], seen["refused"]["code"]) == (503, "backlog_full")
    assert int(seen["refused"]["wait"]) >= 1
    assert seen["steps"][-1] == "ready"


@pytest.mark.long
async def test_a_page_of_another_origin_reads_nothing(
    servers: Servers, environment: Mapping[str, str], browser: str, site: Script, tmp_path: Path
) -> None:
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", f"{site.url}/page"]
    seen = await seen_against_two_lines(servers, environment, site, origin="https://app.example", command=command)
    assert "Failed to fetch" in seen["error"]
    assert "accepted" not in seen
