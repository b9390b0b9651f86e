"""What a link for one PUT is signed over: the bytes that may come, and nothing else.

Invariant: length, type and checksum are part of the signature, so the store itself refuses any other body.
"""

import base64
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPut:
    """A link for one PUT on the public address, and the headers that must go with it as they are."""

    url: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedBody:
    """The body that a link takes; `sha256` is hexadecimal."""

    size_bytes: int
    media_type: str
    sha256: str

    def params(self) -> dict[str, str | int]:
        """Return the parameters of the signed call."""
        return {"ContentLength": self.size_bytes, "ContentType": self.media_type, "ChecksumSHA256": self._checksum()}

    def headers(self) -> dict[str, str]:
        """Return the headers that the client must send."""
        return {
            "Content-Length": str(self.size_bytes),
            "Content-Type": self.media_type,
            "x-amz-checksum-sha256": self._checksum(),
        }

    def _checksum(self) -> str:
        return base64.b64encode(bytes.fromhex(self.sha256)).decode()
