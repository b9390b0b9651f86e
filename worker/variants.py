"""What a transform gives: variants, the facts about their source, or a refusal with a code of the closed set.

Invariant: no image library and no I/O here, so that the asyncio parent can import it.
"""

from dataclasses import dataclass

from contracts.errors import FailureCode
from contracts.images import ImageFormat, VariantName


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One finished result."""

    name: VariantName
    data: bytes
    sha256: str  #: of `data`, lower-case hexadecimal
    width_px: int
    height_px: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """What is known about a source after all its variants were made."""

    image_format: ImageFormat
    width_px: int  #: of the source as it is seen: upright, after its orientation is applied
    height_px: int
    cpu_s: float  #: CPU time of the child for this image
    rss_bytes_peak: int  #: the child's peak resident memory during this image


class ImageRejected(Exception):  # noqa: N818 - an anticipated outcome of a job, not a fault
    """The image cannot be served, for the reason `code`.

    `retryable` is true when the machine may be to blame (the wall limit passed before the CPU limit did).
    """

    def __init__(self, code: FailureCode, *, retryable: bool = False) -> None:
        super().__init__(code.value)
        self.code = code
        self.retryable = retryable
