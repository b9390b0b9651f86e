"""The doctor's look at the object store: objects without rows, rows without objects, uploads that were never joined.

Invariant: nothing young is judged, nothing foreign is touched, and one page of keys and one of rows is the most that is
held. A row is there before its object and goes after it, so rows are read after the page of objects that they explain;
an object is deleted only after its row has moved on, so a row is read again after its object was not found.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar
from uuid import UUID

from app.core.listing import Listed
from app.core.objects import ObjectStore
from contracts.keys import original_key, staging_key
from stack.doctor_finds import Difference, Tally
from stack.doctor_judge import (
    judge_object,
    may_be_joined,
    multipart_difference,
    object_difference,
    result_difference,
    source_difference,
)
from stack.doctor_keys import OriginalObject, OurObject, SourceObject, VariantObject, our_object
from stack.doctor_rows import FIRST_ID, LAST_ID, DoctorRows, ExpectedResults, ExpectedSource

#: Rows whose objects are asked for at once.
ASKED_AT_ONCE = 8

STAGING_PREFIX, INBOX_PREFIX, IMAGES_PREFIX = "staging/", "inbox/", "images/"

_RowT = TypeVar("_RowT", ExpectedSource, ExpectedResults)


class StoreLook:
    """One look through one bucket."""

    def __init__(self, objects: ObjectStore, rows: DoctorRows, *, age_s_min: float, tally: Tally) -> None:
        self._objects = objects
        self._rows = rows
        self._age_s_min = age_s_min
        self._tally = tally

    async def differences(self) -> AsyncIterator[Difference]:
        """Yield what store and rows do not agree on."""
        for prefix in (STAGING_PREFIX, INBOX_PREFIX):
            async for page in self._pages(prefix):
                for found in await self._unexplained(page):
                    yield found
        for look in (self._multiparts, self._missing_sources, self._images):
            async for found in look():
                yield found

    async def _pages(self, prefix: str) -> AsyncIterator[list[Listed]]:
        async for page in self._objects.pages(prefix):
            self._tally.objects += len(page)
            yield page

    async def _unexplained(self, page: Iterable[Listed]) -> list[Difference]:
        ours = self._to_judge(page)
        jobs = await self._rows.jobs({it.job_id for _, it in ours if isinstance(it, SourceObject | VariantObject)})
        images = await self._rows.images_needed({it.image_id for _, it in ours if isinstance(it, OriginalObject)})
        judged = ((listed, judge_object(it, jobs=jobs, images=images)) for listed, it in ours)
        return [object_difference(kind, listed) for listed, kind in judged if kind is not None]

    def _to_judge(self, page: Iterable[Listed]) -> list[tuple[Listed, OurObject]]:
        """Return the entries that are ours and old enough."""
        ours = []
        for listed in page:
            stands_for = our_object(listed.key)
            if stands_for is None:
                self._tally.foreign += 1
            elif listed.age_s is None or listed.age_s < self._age_s_min:
                self._tally.young += 1
            else:
                ours.append((listed, stands_for))
        return ours

    async def _multiparts(self) -> AsyncIterator[Difference]:
        async for page in self._objects.multipart_pages(STAGING_PREFIX):
            self._tally.multiparts += len(page)
            ours = [(listed, it.job_id) for listed, it in self._to_judge(page) if isinstance(it, SourceObject)]
            jobs = await self._rows.jobs({job_id for _, job_id in ours})
            for listed, job_id in ours:
                if not may_be_joined(jobs.get(job_id)):
                    yield multipart_difference(listed, jobs.get(job_id))

    async def _missing_sources(self) -> AsyncIterator[Difference]:
        async for page in self._rows.sources():
            self._tally.rows += len(page)
            suspects = await self._absent(page, lambda source: [staging_key(source.job_id)])
            if suspects:
                job_ids = [source.job_id for source in suspects]
                again = {source async for rows in self._rows.sources(job_ids=job_ids) for source in rows}
                for source in again & suspects.keys():
                    yield source_difference(source)

    async def _images(self) -> AsyncIterator[Difference]:
        """Walk the objects and the rows of images side by side: both come in the order of images' ids."""
        after = FIRST_ID
        async for page in self._pages(IMAGES_PREFIX):
            for found in await self._unexplained(page):
                yield found
            upto = max((image_id for listed in page for image_id in _images_of(listed)), default=FIRST_ID)
            async for found in self._missing_results(page, after=after, upto=upto):
                yield found
            after = max(after, upto)
        async for found in self._missing_results((), after=after, upto=LAST_ID):
            yield found

    async def _missing_results(self, page: Iterable[Listed], *, after: UUID, upto: UUID) -> AsyncIterator[Difference]:
        seen = {listed.key for listed in page}
        async for rows in self._rows.results(after=after, upto=upto):
            self._tally.rows += len(rows)
            # What the page does not show may be on its neighbour, or have been written since: it is asked for.
            suspects = await self._absent([row for row in rows if not seen.issuperset(_keys_of(row))], _keys_of)
            if suspects:
                image_ids = [row.image_id for row in suspects]
                again = {row async for page_ in self._rows.results(image_ids=image_ids) for row in page_}
                for row in again & suspects.keys():
                    for key in suspects[row]:
                        yield result_difference(row, key)

    async def _absent(self, rows: Iterable[_RowT], keys_of: Callable[[_RowT], list[str]]) -> dict[_RowT, list[str]]:
        """Return the rows of which an object is not there, with the keys."""
        turns = asyncio.Semaphore(ASKED_AT_ONCE)

        async def missing(row: _RowT) -> list[str]:
            async with turns:
                return [key for key in keys_of(row) if not await self._objects.exists(key)]

        asked = list(rows)
        found = await asyncio.gather(*(missing(row) for row in asked))
        return {row: keys for row, keys in zip(asked, found, strict=True) if keys}


def _keys_of(row: ExpectedResults) -> list[str]:
    return [original_key(row.image_id), *row.variant_keys]


def _images_of(listed: Listed) -> list[UUID]:
    """Return the image that a key belongs to, if it is one of ours."""
    stands_for = our_object(listed.key)
    return [stands_for.image_id] if isinstance(stands_for, OriginalObject | VariantObject) else []
