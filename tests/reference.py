"""What one undisturbed run makes of a file: the yardstick for every run that was killed, repeated or interrupted."""

from contracts.images import VARIANT_SUFFIXES, ImageLimits, TransformParams
from worker.sandbox import Sandbox
from worker.variants import Variant


async def reference_hashes(source: bytes) -> dict[str, str]:
    """Return the file name of each variant with the SHA-256 of its bytes."""
    sandbox = Sandbox(children=1, limits=ImageLimits(), params=TransformParams())
    await sandbox.start()
    try:
        variants: list[Variant] = []
        await sandbox.transform(source, on_variant=variants.append)
    finally:
        await sandbox.close()
    return {f"{variant.name.value}.{VARIANT_SUFFIXES[variant.name]}": variant.sha256 for variant in variants}
