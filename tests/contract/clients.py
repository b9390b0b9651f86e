"""The clients that people use, each reduced to what the contract needs of it: send a file, read something."""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import requests

TIMEOUT_S = 30
FILE_NAME = "photo.jpg"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the JSON in the body."""
        return json.loads(self.body)


#: Sends a request to an address with a token: without data a GET, else a POST of a form with the file.
Client = Callable[[str, str, bytes | None], Awaitable[Answer]]


async def by_httpx(url: str, token: str, data: bytes | None) -> Answer:
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        headers = {"Authorization": f"Bearer {token}"}
        if data is None:
            answer = await client.get(url, headers=headers)
        else:
            answer = await client.post(url, headers=headers, files={"file": (FILE_NAME, data)})
    return Answer(answer.status_code, dict(answer.headers), answer.content)


async def by_aiohttp(url: str, token: str, data: bytes | None) -> Answer:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}, timeout=timeout) as session:
        form = aiohttp.FormData()
        if data is not None:
            form.add_field("file", data, filename=FILE_NAME, content_type="image/jpeg")
        request = session.get(url) if data is None else session.post(url, data=form)
        async with request as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, headers, await answer.read())


async def by_requests(url: str, token: str, data: bytes | None) -> Answer:
    def ask() -> Answer:
        with requests.Session() as session:
            session.trust_env = False
            files = None if data is None else {"file": (FILE_NAME, data)}
            answer = session.request(
                "GET" if data is None else "POST",
                url,
                headers={"Authorization": f"Bearer {token}"},
                files=files,
                timeout=TIMEOUT_S,
            )
        return Answer(
            answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, answer.content
        )

    return await asyncio.to_thread(ask)


async def by_curl(url: str, token: str, data: bytes | None) -> Answer:
    return await asyncio.to_thread(_curl, url, token, data)


def _curl(url: str, token: str, data: bytes | None) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        head, body, file = Path(folder, "head"), Path(folder, "body"), Path(folder, FILE_NAME)
        body.touch()
        command = ["curl", "--silent", "--show-error", "--max-time", str(TIMEOUT_S), "--noproxy", "*"]
        command += ["--dump-header", str(head), "--output", str(body), "--header", f"Authorization: Bearer {token}"]
        if data is not None:
            file.write_bytes(data)
            command += ["--form", f"file=@{file}"]
        subprocess.run([*command, url], check=True, timeout=2 * TIMEOUT_S)
        # Informational answers come first.
        last = head.read_bytes().decode("latin-1").strip().split("\r\n\r\n")[-1]
        status, *lines = last.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(status.split()[1]), headers, body.read_bytes())


CLIENTS: dict[str, Client] = {
    "curl": by_curl,
    "httpx": by_httpx,
    "aiohttp": by_aiohttp,
    "requests": by_requests,
}
