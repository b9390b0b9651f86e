"""curl, httpx, aiohttp and requests each upload, are refused, and poll."""

import shutil
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urljoin

import pytest

from stack.servers import Servers
from tests.contract.clients import CLIENTS
from tests.edge import open_edge
from tests.line import Line, photo, until

PHOTO = photo(1)
#: Larger than every buffer between client and server, so that the refusal comes while the client still sends.
LARGE = photo(2, width=3000, height=2400)
UPLOAD_PATH = "/api/v1/images"


@pytest.fixture(scope="module")
async def line(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    async with open_edge(servers, environment) as opened:
        await opened.start("relay", "worker")
        yield opened


@pytest.fixture(scope="module")
async def full(servers: Servers, environment: Mapping[str, str]) -> AsyncIterator[Line]:
    """A line whose only place is taken."""
    async with open_edge(servers, environment, env={"SPILLWAY_ADMISSION_JOBS_MAX": "1"}) as opened:
        await opened.accepted([1])
        yield opened


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "curl" and shutil.which("curl") is None:
        pytest.skip("there is no curl on PATH")
    return name


async def test_it_uploads_and_polls_to_the_end(line: Line, client: str) -> None:
    ask = CLIENTS[client]
    accepted = await ask(line.base_url + UPLOAD_PATH, line.token, PHOTO)
    assert (accepted.status, accepted.json()["status"]) == (202, "queued")
    location = urljoin(line.base_url, accepted.headers["location"])

    async def ready() -> bool:
        looked = await ask(location, line.token, None)
        assert looked.status == 200
        assert ("retry-after" in looked.headers) is (looked.json()["status"] in ("queued", "processing"))
        return str(looked.json()["status"]) == "ready"

    await until(ready, what=f"{client} sees the end")


@pytest.mark.parametrize("data", [PHOTO, LARGE], ids=["small", "large"])
async def test_it_sees_the_refusal_and_how_long_to_wait(full: Line, client: str, data: bytes) -> None:
    refused = await CLIENTS[client](full.base_url + UPLOAD_PATH, full.token, data)
    assert refused.status == 503
    assert refused.json()["code"] == "backlog_full"
    assert int(refused.headers["retry-after"]) >= 1


async def test_it_sees_that_its_token_is_wrong(full: Line, client: str) -> None:
    refused = await CLIENTS[client](full.base_url + UPLOAD_PATH, "wrong", PHOTO)
    assert (refused.status, refused.json()["code"]) == (401, "unauthenticated")
