"""What schemathesis must know of our bodies: how an image looks. Loaded by it through `SCHEMATHESIS_HOOKS`."""

import io
from datetime import UTC, datetime

import schemathesis
from hypothesis import strategies as st
from PIL import Image

from contracts.images import MEDIA_TYPES, ImageFormat

#: So many different files of each format: enough that keys meet the same and another file.
FILES_COUNT = 3


def small_image(image_format: ImageFormat, *, number: int) -> bytes:
    """Return a small image; another one for each number."""
    out = io.BytesIO()
    Image.new("RGB", (40 + number, 30), (80 * number, 90, 10)).save(out, image_format.value.upper())
    return out.getvalue()


FILES = {known: [small_image(known, number=number) for number in range(FILES_COUNT)] for known in ImageFormat}
for known, media_type in MEDIA_TYPES.items():
    schemathesis.openapi.media_type(media_type, st.sampled_from(FILES[known]))
schemathesis.openapi.media_type("image/*", st.sampled_from([file for files in FILES.values() for file in files]))

# Moments as they are written: years that the calendar of every server knows.
SECONDS_MAX = 4_000_000_000
schemathesis.openapi.format(
    "date-time", st.integers(0, SECONDS_MAX).map(lambda second: datetime.fromtimestamp(second, UTC).isoformat())
)

# Digests that say nothing of the body: one that did could only be right by luck.
schemathesis.openapi.format("digests", st.sampled_from(["md5=:1B2M2Y8AsgTpgAmY7PhCfg==:", "sha-512=:AAAA:"]))
