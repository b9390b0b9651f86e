"""One HTTP exchange after the other, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024


class Failed(Exception):  # noqa: N818 - it ends the smoke, and its text is the verdict
    """The instance does not do what the contract says."""


class Answer(NamedTuple):
    """One whole answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the JSON in the body."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise Failed(f"{self.status} without JSON: {self.body[:200]!r}") from None

    def problem(self) -> str:
        """Return the code of a problem document."""
        if self.headers.get("content-type", "") != "application/problem+json":
            raise Failed(f"{self.status} is no problem document: {self.headers}")
        return str(self.json().get("code"))


class Instance:
    """A running Spillway, by its address."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def get(self, path: str) -> Answer:
        """Read something that needs the token."""
        return fetch("GET", self._url + path, headers=self._authorized())

    def get_openly(self, path: str) -> Answer:
        """Read something without a token."""
        return fetch("GET", self._url + path, headers={})

    def upload(self, path: str, data: bytes, *, key: str) -> Answer:
        """Send a file under an Idempotency-Key."""
        boundary = os.urandom(12).hex()
        opening = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="smoke.png"\r\n'
            "Content-Type: image/png\r\n\r\n"
        )
        body = opening.encode() + data + f"\r\n--{boundary}--\r\n".encode()
        content_type = f"multipart/form-data; boundary={boundary}"
        headers = {**self._authorized(), "Content-Type": content_type, "Idempotency-Key": key}
        return fetch("POST", self._url + path, headers=headers, body=body)

    def post(self, path: str, document: Any) -> Answer:
        """Send a JSON document."""
        headers = {**self._authorized(), "Content-Type": "application/json"}
        return fetch("POST", self._url + path, headers=headers, body=json.dumps(document).encode())

    def _authorized(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}


def fetch(method: str, url: str, *, headers: dict[str, str], body: bytes | None = None) -> Answer:
    """Exchange one request for its answer, on a connection of its own.

    Raises:
        Failed: there was no answer, or the address is none.
    """
    parts = urlsplit(url)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in kinds or not parts.hostname:
        raise Failed(f"{url!r} is no address of a web server")
    connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body=body, headers=headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"no answer from {parts.scheme}://{parts.netloc}: {type(error).__name__}: {error}") from None
    finally:
        connection.close()
