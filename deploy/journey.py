"""What a client sees of a running instance in the trial: uploads that are accepted, and results that are right.

Invariant: it speaks HTTP to published addresses only; every wait has a deadline.
"""

import hashlib
import io
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import httpx
from PIL import Image

from deploy.engine import TrialError

FINAL_S_MAX = 120.0
READY_S_MAX = 120.0
THUMBNAIL_SIDE_PX = 256
_POLL_S = 0.5
_REQUEST_S_MAX = 30.0
_NOISE = 60
_SIZE_PX = (640, 480)

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T | None], *, timeout_s: float, what: str) -> _T:
    """Return the condition's first value that is not None.

    Raises:
        TrialError: there was none in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while (value := condition()) is None:
        if time.monotonic() > deadline_s:
            raise TrialError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(_POLL_S)
    return value


def photo() -> bytes:
    """Return a JPEG full of noise; no two are equal."""
    out = io.BytesIO()
    Image.effect_noise(_SIZE_PX, _NOISE).convert("RGB").save(out, "JPEG", quality=85)
    return out.getvalue()


class Journey:
    """A client with a token."""

    def __init__(self, api_url: str) -> None:
        self._http = httpx.Client(base_url=api_url, timeout=_REQUEST_S_MAX)
        self._headers: dict[str, str] = {}

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def use_token(self, token: str) -> None:
        """Authenticate with this token from now on."""
        self._headers = {"Authorization": f"Bearer {token}"}

    def wait_health(self, *wanted: str) -> dict[str, Any]:
        """Wait until readiness says one of these; return its document."""

        def seen() -> dict[str, Any] | None:
            try:
                health: dict[str, Any] = self._http.get("/health/ready").json()
            except (httpx.HTTPError, ValueError):
                return None
            return health if health.get("status") in wanted else None

        return wait_until(seen, timeout_s=READY_S_MAX, what=f"/health/ready says {' or '.join(wanted)}")

    def upload(self, data: bytes) -> str:
        """Upload a file, which must be accepted, and return its job's address."""
        answer = self._http.post("/api/v1/images", files={"file": ("a.jpg", data, "image/jpeg")}, headers=self._headers)
        if answer.status_code != httpx.codes.ACCEPTED:
            raise TrialError(f"an upload was answered with {answer.status_code}: {answer.text}")
        return answer.headers["location"]

    def wait_ready(self, jobs: Iterable[str]) -> list[dict[str, Any]]:
        """Wait until all jobs are final; return their documents when all are ready."""
        documents = [self._wait_final(job) for job in jobs]
        for document in documents:
            if document["status"] != "ready":
                raise TrialError(f"a job ended otherwise: {document}")
        return documents

    def check_results(self, document: dict[str, Any]) -> None:
        """Check that the links of a ready job lead to what it says, and the thumbnail is a JPEG of the right size."""
        for name, variant in document["variants"].items():
            body = self._fetch(variant["url"])
            if hashlib.sha256(body).hexdigest() != variant["sha256"]:
                raise TrialError(f"{name} is not what its job says")
        with Image.open(io.BytesIO(self._fetch(document["thumb_url"]))) as thumbnail:
            thumbnail.load()
            if thumbnail.format != "JPEG" or max(thumbnail.size) != THUMBNAIL_SIDE_PX:
                raise TrialError(f"the thumbnail is {thumbnail.format} of {thumbnail.size}")

    def check_store_is_closed(self, document: dict[str, Any]) -> None:
        """Check that a result cannot be read without the signature of its link."""
        answer = httpx.get(httpx.URL(document["thumb_url"]).copy_with(query=None), timeout=_REQUEST_S_MAX)
        if answer.status_code != httpx.codes.FORBIDDEN:
            raise TrialError(f"the store answered {answer.status_code} to a link without signature")

    def _wait_final(self, job: str) -> dict[str, Any]:
        def final() -> dict[str, Any] | None:
            answer = self._http.get(job, headers=self._headers)
            document: dict[str, Any] = answer.raise_for_status().json()
            return document if document["status"] in ("ready", "failed", "cancelled") else None

        return wait_until(final, timeout_s=FINAL_S_MAX, what=f"{job} is final")

    def _fetch(self, url: str) -> bytes:
        return httpx.get(url, timeout=_REQUEST_S_MAX).raise_for_status().content
