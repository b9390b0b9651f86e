"""Links that open results: presigned GETs (AWS Signature Version 4 in the query) on the store's public address.

Invariant: pure in key and window. Within one window every process signs the same link, so that answers that carry it
can be compared and remembered; no call is made, and the store need not be up.

Signed by hand because the store's client library always signs at the present second.
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from app.core.objects import StoreSettings

_ALGORITHM = "AWS4-HMAC-SHA256"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """Seconds: how long a link is valid from the start of its window, and how long a window is."""

    valid_s: int
    window_s: int


class Links:
    """Signs result links for one bucket."""

    def __init__(self, store: StoreSettings, *, times: LinkTimes) -> None:
        if times.window_s >= times.valid_s:
            raise ValueError(f"a link must outlive its window ({times.valid_s} s <= {times.window_s} s)")
        address = urlsplit(store.public_url)
        port = None if address.port == _DEFAULT_PORTS.get(address.scheme) else address.port
        # As clients send it: without the scheme's own port.
        self._host = f"{_host_name(address.hostname or '')}{'' if port is None else f':{port}'}"
        self._origin = f"{address.scheme}://{self._host}"
        self._root = f"{address.path.rstrip('/')}/{store.bucket}/"
        self._store = store
        self._times = times
        self._day = ""
        self._day_key = b""

    def window(self, now_s: float) -> int:
        """Return the number of the window that a moment (seconds since the epoch) lies in."""
        return int(now_s // self._times.window_s)

    def sign(self, key: str, *, window: int) -> str:
        """Return the link of one object that is handed out all through a window."""
        stamp = datetime.fromtimestamp(window * self._times.window_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        day = stamp[:8]
        scope = f"{day}/{self._store.region}/s3/aws4_request"
        path = quote(self._root + key, safe="/~")
        query = (
            f"X-Amz-Algorithm={_ALGORITHM}&X-Amz-Credential={quote(f'{self._store.access_key}/{scope}', safe='')}"
            f"&X-Amz-Date={stamp}&X-Amz-Expires={self._times.valid_s}&X-Amz-SignedHeaders=host"
        )
        request = f"GET\n{path}\n{query}\nhost:{self._host}\n\nhost\nUNSIGNED-PAYLOAD"
        text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = _hmac(self._key_of(day), text).hex()
        return f"{self._origin}{path}?{query}&X-Amz-Signature={signature}"

    def _key_of(self, day: str) -> bytes:
        if day != self._day:
            key = _hmac(f"AWS4{self._store.secret_key}".encode(), day)
            for part in (self._store.region, "s3", "aws4_request"):
                key = _hmac(key, part)
            self._day, self._day_key = day, key
        return self._day_key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _host_name(name: str) -> str:
    return f"[{name}]" if ":" in name else name
