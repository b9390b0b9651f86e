"""Tokens have scopes, failures are counted by address, and only named origins are let in."""

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from app.core.tokens import Scope
from stack.servers import Servers
from tests.edge import Answer, api_of, body, exchange, head, open_edge, post
from tests.line import Line, photo, token_store

PHOTO = photo(1)
FAILURES_MAX = 5
ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    settings = {
        "SPILLWAY_METRICS_TOKEN_REQUIRED": "true",
        "SPILLWAY_CORS_ORIGINS": f"{ORIGIN},http://127.0.0.1:3000",
        "SPILLWAY_AUTH_FAILURES_PER_MINUTE_MAX": "1000",
    }
    async with open_edge(servers, environment, env=settings) as opened:
        yield opened


async def ask(line: Line, *lines: str, token: str | None, method: str = "GET", path: str, port: int = 0) -> Answer:
    data = head(token, *lines, content_type=None, method=method, path=path)
    return await exchange(port or api_of(line).port, data)


async def test_a_token_opens_what_its_scopes_say_and_nothing_else(line: Line) -> None:
    async with token_store(line.env) as store:
        _, metrics = await store.create(owner="prometheus", scopes=[Scope.METRICS])
        _, both = await store.create(owner="eve", scopes=[Scope.USER, Scope.METRICS])
        listed = {entry.owner: entry.scopes for entry in await store.entries()}
    assert (listed["prometheus"], listed["ann"]) == ((Scope.METRICS,), (Scope.USER,))
    assert set(listed["eve"]) == {Scope.USER, Scope.METRICS}
    data = body(PHOTO)
    upload = await exchange(api_of(line).port, head(metrics, length_bytes=len(data)) + data)
    assert (upload.status, upload.code) == (403, "forbidden")
    jobs = await ask(line, token=metrics, path="/api/v1/image-jobs")
    assert (jobs.status, jobs.code) == (403, "forbidden")
    assert (await ask(line, token=both, path="/api/v1/image-jobs")).status == 200
    for token, status in ((metrics, 200), (both, 200), (line.token, 403), (None, 401)):
        assert (await ask(line, token=token, path="/metrics")).status == status


async def test_the_command_line_gives_and_lists_scopes(line: Line, environment: Mapping[str, str]) -> None:
    async def run(*arguments: str) -> Any:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stack.cli", "token", *arguments, "--json"),
            env={**environment, "SPILLWAY_DATABASE_URL": line.env["SPILLWAY_DATABASE_URL"]},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(out)

    made = await run("create", "--owner", "carl", "--scope", "metrics", "--scope", "user")
    assert made["scopes"] == ["metrics", "user"]
    assert (await ask(line, token=made["token"], path="/metrics")).status == 200
    (entry,) = [entry for entry in await run("list") if entry["id"] == made["id"]]
    assert (entry["owner"], entry["scopes"], "token" in entry) == ("carl", ["metrics", "user"], False)


async def test_metrics_are_open_when_the_settings_say_so(line: Line) -> None:
    other = await line.start_named("api", name="api-open", SPILLWAY_AUTH_FAILURES_PER_MINUTE_MAX=str(FAILURES_MAX))
    try:
        assert (await ask(line, token=None, path="/metrics", port=other.port)).status == 200
        await _guesses_are_told_to_wait(line, other.port)
    finally:
        await asyncio.to_thread(other.kill)


async def _guesses_are_told_to_wait(line: Line, port: int) -> None:
    path = "/api/v1/image-jobs"
    for _ in range(FAILURES_MAX):
        assert (await ask(line, token=f"spw_{secrets.token_urlsafe(32)}", path=path, port=port)).status == 401
    late = await ask(line, token=f"spw_{secrets.token_urlsafe(32)}", path=path, port=port)
    assert (late.status, late.code) == (429, "rate_limited")
    assert 1 <= int(late.headers["retry-after"]) <= 60
    upload = await exchange(port, head("spw_wrong", length_bytes=9 * 1024**2))
    assert (upload.status, upload.code) == (429, "rate_limited")
    # Whoever has a token, and what needs none, is not touched by what others at the address did.
    assert (await ask(line, token=line.token, path=path, port=port)).status == 200
    assert (await ask(line, token=None, path="/health/live", port=port)).status == 200
    assert (await ask(line, token=None, path="/metrics", port=port)).status == 200


async def test_a_preflight_is_answered_in_front_of_the_gate(line: Line) -> None:
    wanted = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization, idempotency-key")
    answer = await ask(line, f"Origin: {ORIGIN}", *wanted, token=None, method="OPTIONS", path="/api/v1/images")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert {"authorization", "idempotency-key", "content-type"} <= {name.strip() for name in allowed.split(",")}
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://app.example.evil.example", "http://app.example", "null"]
)
async def test_other_origins_are_not_let_in(line: Line, origin: str) -> None:
    wanted = "Access-Control-Request-Method: POST"
    answer = await ask(line, f"Origin: {origin}", wanted, token=None, method="OPTIONS", path="/api/v1/images")
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers
    read = await ask(line, f"Origin: {origin}", token=line.token, path="/api/v1/image-jobs")
    assert (read.status, "access-control-allow-origin" in read.headers) == (200, False)


async def test_pages_may_read_answers_and_refusals_with_their_headers(line: Line) -> None:
    accepted = await post(line, body(PHOTO))
    path = accepted.headers["location"]
    for answer in (
        await ask(line, f"Origin: {ORIGIN}", token=line.token, path=path),
        await ask(line, f"Origin: {ORIGIN}", token=None, path=path),
        await exchange(api_of(line).port, head(line.token, f"Origin: {ORIGIN}", length_bytes=10**12)),
    ):
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert {"Location", "Retry-After", "ETag", "Idempotency-Replayed"} <= exposed
        assert "Origin" in answer.headers["vary"]


async def test_without_an_origin_a_preflight_is_no_route(servers: Servers, environment: Mapping[str, str]) -> None:
    async with open_edge(servers, environment, janitor=False) as plain:
        lines = (f"Origin: {ORIGIN}", "Access-Control-Request-Method: POST")
        answer = await ask(plain, *lines, token=None, method="OPTIONS", path="/api/v1/images")
        assert (answer.status, answer.code) == (405, "method_not_allowed")
        read = await ask(plain, f"Origin: {ORIGIN}", token=plain.token, path="/api/v1/image-jobs")
        assert "access-control-allow-origin" not in read.headers
