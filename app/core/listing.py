"""The object store's listings, page by page, as values.

Invariant: an age is the difference of two moments of the store's own clock, that of its answer and that of the object;
no other clock is compared with it.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

#: One page of a listing holds at most this many keys.
LIST_KEYS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An object or an unfinished multipart upload; `mark` tells it from a later one under the same key."""

    key: str
    mark: str  #: an object's ETag, an upload's id
    size_bytes: int  #: 0 for an unfinished upload, of which the listing does not say it
    since: datetime  #: last modified, or begun, by the store's clock
    age_s: float | None  #: None when the answer did not say what time it was


class Lister(ABC):
    """The listing calls of a store, which itself makes each call."""

    @abstractmethod
    async def _ask(self, operation: str, **query: object) -> Any:
        """Make one call on our bucket, within its deadline, and return the answer."""

    async def list_keys(self, prefix: str, *, keys_max: int) -> list[str]:
        """Return up to `keys_max` keys under a prefix."""
        keys: list[str] = []
        async with aclosing(self.pages(prefix, keys_max=min(keys_max, LIST_KEYS_MAX))) as pages:
            async for page in pages:
                keys += [listed.key for listed in page]
                if len(keys) >= keys_max:
                    break
        return keys[:keys_max]

    async def pages(self, prefix: str, *, keys_max: int = LIST_KEYS_MAX) -> AsyncGenerator[list[Listed]]:
        """Yield the objects under a prefix, by key, up to `keys_max` at once; a page in between may be empty."""
        following: dict[str, str] = {}
        while True:
            answer = await self._ask("list_objects_v2", Prefix=prefix, MaxKeys=keys_max, **following)
            yield listed_objects(answer)
            earlier, following = following, {"ContinuationToken": answer.get("NextContinuationToken", "")}
            if not answer.get("IsTruncated") or following == earlier:
                return

    async def multipart_pages(self, prefix: str) -> AsyncGenerator[list[Listed]]:
        """Yield the unfinished multipart uploads under a prefix, as many at once as the store gives."""
        following: dict[str, str] = {}
        while True:
            answer = await self._ask("list_multipart_uploads", Prefix=prefix, **following)
            page = listed_multiparts(answer)
            yield page
            earlier, following = following, _markers(answer, page)
            if not answer.get("IsTruncated") or following == earlier:
                return


def listed_objects(answer: Mapping[str, Any]) -> list[Listed]:
    """Return what an answer to ListObjectsV2 says."""
    now = _time_of(answer)
    return [
        Listed(
            key=item["Key"],
            mark=item["ETag"],
            size_bytes=item["Size"],
            since=item["LastModified"],
            age_s=_age_s(item["LastModified"], now),
        )
        for item in answer.get("Contents", [])
    ]


def listed_multiparts(answer: Mapping[str, Any]) -> list[Listed]:
    """Return what an answer to ListMultipartUploads says."""
    now = _time_of(answer)
    return [
        Listed(
            key=item["Key"],
            mark=item["UploadId"],
            size_bytes=0,
            since=item["Initiated"],
            age_s=_age_s(item["Initiated"], now),
        )
        for item in answer.get("Uploads", [])
    ]


def _time_of(answer: Mapping[str, Any]) -> datetime | None:
    said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if said is None else parsedate_to_datetime(said)


def _age_s(since: datetime, now: datetime | None) -> float | None:
    return None if now is None else (now - since).total_seconds()


def _markers(answer: Mapping[str, Any], page: list[Listed]) -> dict[str, str]:
    """Return where the next page of multipart uploads begins: after the last entry, where the store does not say it."""
    if not page:
        return {}
    key, upload_id = answer.get("NextKeyMarker") or page[-1].key, answer.get("NextUploadIdMarker") or page[-1].mark
    return {"KeyMarker": key, "UploadIdMarker": upload_id}
