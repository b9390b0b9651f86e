"""Result links: what the client library would sign at the window's start, and equal all through the window."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from app.core.links import Links, LinkTimes
from app.core.objects import StoreSettings

STORE = StoreSettings(
    endpoint_url="http://127.0.0.1:8333",
    public_url="https://files.example:9443",
    region="us-east-1",
    bucket="spillway",
    access_key="AKIA+/EXAMPLE",
    secret_key="secret/+",
    timeout_s=1.0,
    connections_max=1,
)
TIMES = LinkTimes(valid_s=900, window_s=300)
KEY = "images/0f8fad5b-d9cb-469f-a165-70867728950e/b/c0ffee/thumbnail.jpg"
NOW_S = 1_790_000_123.4


def signed_by_the_library(url: str, *, expires_s: int) -> str:
    credentials = Credentials(STORE.access_key, STORE.secret_key)
    request = AWSRequest(method="GET", url=url)
    S3SigV4QueryAuth(credentials, "s3", STORE.region, expires=expires_s).add_auth(request)
    return str(request.url)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("https://files.example:9443", "https://files.example:9443"),
        ("https://files.example:443", "https://files.example"),
        ("http://files.example:80/", "http://files.example"),
        ("http://[::1]:8333", "http://[::1]:8333"),
        ("https://files.example/s3", "https://files.example/s3"),
    ],
)
def test_a_link_is_the_one_the_library_signs_at_the_start_of_the_window(
    address: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Links(replace(STORE, public_url=address), times=TIMES)
    window = links.window(NOW_S)
    start = datetime.fromtimestamp(window * 300, UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: start)
    assert links.sign(KEY, window=window) == signed_by_the_library(f"{host}/spillway/{KEY}", expires_s=900)


def test_links_are_equal_within_a_window_and_differ_between_windows() -> None:
    links = Links(STORE, times=TIMES)
    start_s = links.window(NOW_S) * 300
    within = {links.sign(KEY, window=links.window(start_s + offset_s)) for offset_s in (0, 1, 299.9)}
    assert len(within) == 1
    assert links.sign(KEY, window=links.window(start_s + 300)) not in within
    assert links.sign(KEY + "x", window=links.window(start_s)) not in within


def test_a_window_longer_than_its_links_are_valid_is_refused() -> None:
    with pytest.raises(ValueError, match="must outlive its window"):
        Links(STORE, times=LinkTimes(valid_s=300, window_s=300))
