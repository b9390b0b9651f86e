"""The work of one job, straight: fetch → transform → store. It says what came of it; `worker.life` settles it.

Keys and bytes are functions of the job, so a repeat writes equal bytes to the same keys. For the same reason nothing
that a failed attempt stored is deleted here: a replay may be writing it anew. It goes when the job's time is over.
"""

import asyncio
import hashlib
from collections.abc import Callable

from app.core.crashpoints import Crasher
from app.core.jobstore import Claim, StoredVariant
from app.core.objects import (
    ObjectMissingError,
    ObjectStore,
    ObjectTooLargeError,
    StoreSilentError,
    StoreUnavailableError,
)
from contracts.errors import FailureCode
from contracts.images import MEDIA_TYPES, VARIANT_MEDIA_TYPES, VariantName, pipeline_digest
from contracts.keys import original_key, staging_key, variant_key
from worker.child_handle import ChildDied
from worker.outcome import Done, HandBack, Outcome, Rejected, Retry
from worker.sandbox import Sandbox
from worker.variants import ImageRejected, Variant

#: A store that gives no answer to one job but works for a probe is taken for one that has just come back, so often.
HAND_BACKS_MAX = 20


class SourceMissingError(Exception):
    """The file to work on is gone, or is not the one that was accepted."""


class Pipeline:
    """Does the work of claimed jobs with one store and one sandbox."""

    def __init__(self, *, objects: ObjectStore, sandbox: Sandbox, crasher: Crasher) -> None:
        self._objects = objects
        self._sandbox = sandbox
        self._crasher = crasher

    async def run(self, claim: Claim) -> Outcome:
        """Return what came of one attempt; raises only when cancelled."""
        try:
            source = await self._fetch_surely(claim)
            return await self._make(claim, source)
        except (SourceMissingError, ObjectMissingError, ObjectTooLargeError):
            return Rejected(FailureCode.SOURCE_MISSING)
        except ImageRejected as rejection:
            return Retry(rejection.code) if rejection.retryable else Rejected(rejection.code)
        except ChildDied:
            return Retry("child_died")
        except StoreUnavailableError as error:
            return await self._why_not_stored(claim, error)

    async def _why_not_stored(self, claim: Claim, error: StoreUnavailableError) -> Outcome:
        """Blame the job only for what is its own: a store that does the same for a probe is away for everybody."""
        if not await self._objects.probe_work():
            return HandBack("store_away", server_away=True)
        if isinstance(error, StoreSilentError) and claim.hand_backs < HAND_BACKS_MAX:
            return HandBack("store_was_away")  # a cut or a restart that was over before the probe looked
        return Retry("store_refused")

    async def _fetch_surely(self, claim: Claim) -> bytes:
        """Fetch, and look once more before the source is taken for gone: that is final, and it is then deleted."""
        try:
            return await self._fetch(claim)
        except (SourceMissingError, ObjectMissingError, ObjectTooLargeError):
            if not await self._objects.probe_work():
                raise StoreUnavailableError("the store does not work") from None
            return await self._fetch(claim)

    async def _fetch(self, claim: Claim) -> bytes:
        source = await self._objects.get(_source_key(claim), bytes_max=claim.source_bytes)
        # What was promised at accept is what must be worked on, whatever the store did meanwhile.
        if hashlib.sha256(source).hexdigest() != claim.source_sha256:
            raise SourceMissingError
        return source

    async def _make(self, claim: Claim, source: bytes) -> Done:
        """Transform, storing each variant while the next one is made, and the original once the image has decoded."""
        stored: list[StoredVariant] = []
        try:
            async with asyncio.TaskGroup() as storing:

                def on_variant(variant: Variant) -> None:
                    if not stored and not claim.reads_original:
                        storing.create_task(self._publish_original(claim))
                    stored.append(self._placed(claim, variant))
                    storing.create_task(self._store(stored[-1], variant.data))

                transformed = await self._sandbox.transform(source, params=claim.params, on_variant=on_variant)
        except* (ImageRejected, ChildDied, ObjectMissingError, StoreUnavailableError) as group:
            raise _first(group) from group
        self._crasher.reach("worker.stored")
        return Done(tuple(sorted(stored, key=lambda variant: variant.name)), transformed.cpu_s)

    async def _publish_original(self, claim: Claim) -> None:
        await self._objects.copy(
            staging_key(claim.job_id), original_key(claim.image_id), media_type=MEDIA_TYPES[claim.source_format]
        )

    async def _store(self, place: StoredVariant, data: bytes) -> None:
        await self._objects.put(place.key, data, media_type=VARIANT_MEDIA_TYPES[place.name])

    def _placed(self, claim: Claim, variant: Variant) -> StoredVariant:
        return StoredVariant(
            name=variant.name,
            key=self._key(claim, variant.name),
            sha256=variant.sha256,
            size_bytes=len(variant.data),
            width=variant.width_px,
            height=variant.height_px,
        )

    def _key(self, claim: Claim, name: VariantName) -> str:
        digest = pipeline_digest(
            claim.params,
            libvips_version=self._sandbox.libvips_version,
            pipeline_version=claim.pipeline_version,
        )
        return variant_key(claim.image_id, claim.job_id, digest, name)


def _source_key(claim: Claim) -> str:
    return original_key(claim.image_id) if claim.reads_original else staging_key(claim.job_id)


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return one leaf: a refusal of the image before trouble of the store, since it is final."""
    leaves: list[Exception] = []
    _walk(group, leaves.append)
    return next((leaf for leaf in leaves if isinstance(leaf, ImageRejected)), leaves[0])


def _walk(group: BaseExceptionGroup[Exception], take: Callable[[Exception], None]) -> None:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _walk(error, take)
        else:
            take(error)
