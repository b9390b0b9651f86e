"""The stage of a demonstration: servers and roles of its own in a temporary folder, and the sentences that tell it.

Invariant: nothing that is there already is touched, whatever is started ends with the stage, and no wait goes on past
the time that a demonstration has.
"""

import asyncio
import contextlib
import hashlib
import http.client
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from rich.console import Console

from app.core.postgres import Database, PoolSettings, load_queries, open_database
from app.core.settings import PREFIX
from app.core.tokens import TokenStore
from stack.demo_picture import noise_png
from stack.roles import Role, RoleProcess, Roles
from stack.servers import DATABASE_VARIABLE, Servers

#: A demonstration is over by then, well or not; starting its servers is not counted.
SCENE_S_MAX = 100.0
OWNER = "demo"

#: Leases of seconds, so that nobody has to wait long for the end of one.
_QUICK = {
    "JOB_LEASE_S": "3",
    "UPLOAD_LEASE_S": "3",
    "RELAY_LEASE_S": "2",
    "RELAY_POLL_S": "0.2",
    "JANITOR_INTERVAL_S": "0.3",
    "PROCESS_SEEN_S": "0.5",
    "WORKER_CONCURRENCY": "1",
    "LOG_LEVEL": "warning",
}
_REQUEST_S_MAX = 30.0
_POLL_S = 0.05
_CONNECTIONS = 1
_DATABASE_S_MAX = 5.0
_SMALL_PX = (480, 360)

_T = TypeVar("_T")


class NotSoError(Exception):
    """What a demonstration was to show was not seen; the message says what."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An upload that was answered 202."""

    attachment_id: str
    job_id: UUID


@dataclass(frozen=True, slots=True)
class Row:
    """What the database says of a job."""

    state: str
    error_code: str | None
    claim_token: int
    deaths: int
    attempts_spent: int
    version: int
    image_id: UUID
    published: bool
    announcements: int


@dataclass(slots=True)
class Stage:
    """Use as a context manager; all methods block."""

    console: Console
    environment: Mapping[str, str]
    servers: Servers = field(init=False)
    _roles: Roles = field(init=False)
    _database: Database = field(init=False)
    _token: str = field(init=False)
    _url: str = field(init=False, default="")
    _seed: int = field(init=False, default=0)
    _deadline_s: float = field(init=False, default=0.0)
    _open: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)
    _runner: asyncio.Runner = field(init=False, default_factory=asyncio.Runner)

    def __enter__(self) -> Self:
        """Start the servers, and no role yet.

        Raises:
            EnvironmentUnfitError: they do not start; the message holds the end of a log.
        """
        with contextlib.ExitStack() as opening:
            folder = Path(opening.enter_context(tempfile.TemporaryDirectory(prefix="spillway-demo-")))
            # A demonstration kills and freezes: it has servers of its own, whatever the environment names.
            own = {name: value for name, value in self.environment.items() if not name.startswith(PREFIX)}
            self.servers = Servers(folder, own)
            opening.callback(self.servers.stop)
            with self.console.status("starting PostgreSQL, RabbitMQ and an S3 server"):
                self.servers.start()
                quick = {f"{PREFIX}{name}": value for name, value in _QUICK.items()}
                self._roles = Roles(self.servers, own, env=quick)
                opening.callback(self._roles.kill)
                self._roles.migrate()
            opening.callback(self._runner.close)
            self._database = self._runner.run(self._open_database())
            opening.callback(lambda: self._runner.run(self._database.close()))
            _, self._token = self._runner.run(TokenStore(self._database).create(owner=OWNER))
            self._open = opening.pop_all()
        self._deadline_s = time.monotonic() + SCENE_S_MAX
        return self

    def __exit__(self, *_: object) -> None:
        """End everything and remove the folder."""
        with self.console.status("stopping"):
            self._open.close()

    @property
    def command_env(self) -> dict[str, str]:
        """The environment in which our commands reach this stage."""
        own = {name: value for name, value in self.environment.items() if not name.startswith(PREFIX)}
        return {**own, **self.servers.env()}

    def does(self, text: str) -> None:
        """Tell what is done now."""
        self.console.print(f"  · {text}", highlight=False, markup=False, soft_wrap=True)

    def sees(self, text: str, holds: object) -> None:
        """Tell what is seen.

        Raises:
            NotSoError: it does not hold.
        """
        if not holds:
            raise NotSoError(text)
        self.console.print(f"  [green]✓[/green] {text}", highlight=False, soft_wrap=True)

    def until(self, look: Callable[[], _T | None], text: str) -> _T:
        """Look until what is seen is true, tell so, and return it.

        Raises:
            NotSoError: it was not before the time was over.
        """
        with self.console.status(f"waiting: {text}"):
            while not (seen := look()):
                if time.monotonic() > self._deadline_s:
                    raise NotSoError(text)
                time.sleep(_POLL_S)
        self.sees(text, seen)
        return seen

    def start(self, *roles: Role, name: str | None = None, **env: str) -> list[RoleProcess]:
        """Start roles and return when each answers; `env` are settings without their prefix."""
        given = {f"{PREFIX}{setting}": value for setting, value in env.items()}
        started = [self._roles.spawn(role, name=name, env=given) for role in roles]
        for process in started:
            process.wait_live()
            if process.role == "api":
                self._url = process.url
        return started

    def upload(self, *, size_px: tuple[int, int] = _SMALL_PX) -> Sent:
        """Upload another picture as an attachment, which must be answered 202."""
        self._seed += 1
        picture = noise_png(*size_px, seed=self._seed)
        status, answer = self.call("POST", "/api/v1/attachments", picture, media_type="image/png")
        self.sees(f"an upload of {len(picture) // 1024:,} KiB is answered {status}", status == http.client.ACCEPTED)
        document = json.loads(answer)
        return Sent(document["attachment_id"], UUID(document["job_id"]))

    def attachment(self, sent: Sent) -> dict[str, Any]:
        """Return an attachment as its owner sees it."""
        status, answer = self.call("GET", f"/api/v1/attachments/{sent.attachment_id}")
        if status != http.client.OK:
            raise NotSoError(f"the attachment can be read (it was answered {status})")
        document: dict[str, Any] = json.loads(answer)
        return document

    def until_ready(self, sent: Sent) -> dict[str, Any]:
        """Wait until an attachment is ready, and hold its variants against what is said of them."""
        ready = self.until(lambda: self._in_state(sent, "ready"), "the attachment is ready")
        for variant in ready["variants"].values():
            status, content = self.call("GET", variant["url"])
            right = status == http.client.OK and hashlib.sha256(content).hexdigest() == variant["sha256"]
            if not right:
                raise NotSoError(f"{variant['url']} can be read and is what its SHA-256 says")
        self.sees(
            f"its {len(ready['variants'])} variants can be read and are what their SHA-256 say", ready["variants"]
        )
        return ready

    def row(self, sent: Sent) -> Row:
        """Return what the database says of an upload's job."""
        found = self._runner.run(self._database.one(_QUERIES.demo_job, job_id=sent.job_id))
        if found is None:
            raise NotSoError(f"there is a row of job {sent.job_id}")
        return Row(**found)

    def call(
        self, method: str, path: str, body: bytes | None = None, *, media_type: str = "application/json"
    ) -> tuple[int, bytes]:
        """Return status and body of a request with our token."""
        host = urlsplit(self._url)
        connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=_REQUEST_S_MAX)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": media_type}
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _in_state(self, sent: Sent, state: str) -> dict[str, Any] | None:
        shown = self.attachment(sent)
        return shown if shown["status"] == state else None

    async def _open_database(self) -> Database:
        return await open_database(
            PoolSettings(
                url=self.servers.env()[DATABASE_VARIABLE],
                application_name="spillway-demo",
                connections_max=_CONNECTIONS,
                acquire_timeout_s=_DATABASE_S_MAX,
                statement_timeout_s=_DATABASE_S_MAX,
            )
        )


_QUERIES = load_queries(str(Path(__file__).with_name("demo.sql")))
