"""The worker of `spillway bench noop`: a whole worker but for the pixels, and on demand but for the store as well.

Invariant: it cannot work off a real job. It is no role and no setting: nothing but the bench starts it, and it ends
at once unless the database it is told of is the one that the bench has made for it.
"""

import asyncio
import hashlib
import sys
from collections.abc import Callable
from enum import StrEnum
from urllib.parse import urlsplit

from app.core import role
from app.core.crashpoints import Crasher
from app.core.jobstore import Claim, StoredVariant
from app.core.objects import ObjectStore, store_settings
from app.core.settings import Settings, load_settings
from contracts.images import ImageFormat, ImageLimits, TransformParams, VariantName
from contracts.keys import variant_key
from worker.main import STORE_CALLS_PER_JOB, consume, registered
from worker.outcome import Done, Outcome
from worker.pipeline import Pipeline
from worker.sandbox import Sandbox
from worker.variants import Transformed, Variant

#: The one database that this worker works on.
NOOP_DATABASE = "spillway_bench_noop"

EXIT_WRONG_USE = 2

#: What stands for every variant, and in the keys for the version of libvips.
BODY, VERSION = b"no pixels", "none"


class Work(StrEnum):
    """What is left of the work of one job."""

    NOTHING = "nothing"  #: outbox, relay, broker, claim, lease, settle and ack alone
    STORE = "store"  #: and the source fetched and verified, the original copied, three variants stored


class _NoPixels(Sandbox):
    """Stands in the sandbox's place: three fixed variants at once, without a child."""

    def __init__(self) -> None:
        super().__init__(children=0, limits=ImageLimits(), params=TransformParams())
        self._libvips_version = VERSION

    async def transform(
        self,
        source: bytes,
        *,
        on_variant: Callable[[Variant], None],
        params: TransformParams | None = None,
    ) -> Transformed:
        """Return made-up facts; neither the source nor the parameters are looked at."""
        del source, params
        digest = hashlib.sha256(BODY).hexdigest()
        for name in VariantName:
            on_variant(Variant(name=name, data=BODY, sha256=digest, width_px=1, height_px=1))
        return Transformed(image_format=ImageFormat.JPEG, width_px=1, height_px=1, cpu_s=0.0, rss_bytes_peak=0)


class _NoStore(Pipeline):
    """Says that all is stored without a call to the store."""

    async def run(self, claim: Claim) -> Outcome:
        """Return the outcome of a job that is done."""
        digest = hashlib.sha256(BODY).hexdigest()
        stored = (
            StoredVariant(
                name=name,
                key=variant_key(claim.image_id, claim.job_id, VERSION, name),
                sha256=digest,
                size_bytes=len(BODY),
                width=1,
                height=1,
            )
            for name in VariantName
        )
        return Done(tuple(stored), 0.0)


async def _work(settings: Settings, stop: asyncio.Event, *, work: Work) -> None:
    async with (
        registered(settings, "worker") as (database, register),
        ObjectStore.open(
            store_settings(settings, connections_max=settings.worker_concurrency * STORE_CALLS_PER_JOB + 1)
        ) as objects,
    ):
        pipeline = (Pipeline if work is Work.STORE else _NoStore)(
            objects=objects,
            sandbox=_NoPixels(),
            crasher=Crasher(settings.crash_point),
        )
        await consume(settings, stop, database=database, register=register, pipeline=pipeline, probe=objects.probe_work)


def main(work: Work, settings: Settings) -> int:
    """Run until SIGTERM; returns the exit code, 2 for a database that is not the bench's own."""
    if urlsplit(settings.database_url.get_secret_value()).path != f"/{NOOP_DATABASE}":
        sys.stderr.write("spillway: this worker makes no pixels and serves the bench's own database only\n")
        return EXIT_WRONG_USE
    return role.run(lambda stop: _work(settings, stop, work=work), role="worker", settings=settings)


if __name__ == "__main__":
    sys.exit(main(Work(sys.argv[1]), load_settings()))
