"""A corpus of photographic JPEGs made from a seed: 1/f textures, sharp edges and sensor noise.

Invariant: seed, class and library versions decide every byte; the manifest's hash names the set, and a folder whose
files do not match its manifest is made anew. Not random bytes and not one file: encoders and caches would notice.
"""

import hashlib
import io
import json
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, ImageDraw

#: Bumped when the recipe below changes its pictures.
RECIPE_VERSION = 1

JPEG_QUALITY = 85
#: Amplitudes fall as frequency to this power: sharp scenes are near 1, lenses and demosaicing smooth them.
_SPECTRUM_POWER = 1.6
_FIELDS_COUNT = 4
_EDGES_COUNT = 24
_PROCESSES_MAX = 4
_MANIFEST = "corpus.json"

Field = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """One class of image sizes. `noise_levels` is the sensor noise (sigma, of 255) that gives camera-like files."""

    name: str
    width_px: int
    height_px: int
    images_count: int
    noise_levels: float

    @property
    def megapixels(self) -> float:
        """Return the pixels of one image in millions."""
        return self.width_px * self.height_px / 1e6


SIZE_CLASSES: dict[str, SizeClass] = {
    "0.3MP": SizeClass(name="0.3MP", width_px=640, height_px=480, images_count=64, noise_levels=4.5),
    "2MP": SizeClass(name="2MP", width_px=1632, height_px=1224, images_count=200, noise_levels=3.2),
    "12MP": SizeClass(name="12MP", width_px=4000, height_px=3000, images_count=8, noise_levels=2.8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The files of one class on disk, in index order."""

    size_class: SizeClass
    files: tuple[Path, ...]
    sha256: str  #: of the manifest: recipe, seed, class and every file's own digest


def ensure_corpus(folder: Path, size_class: SizeClass, *, seed: int) -> Corpus:
    """Return the corpus of `size_class`, made in `folder` unless it is already there whole; safe when interrupted."""
    recipe = _recipe(size_class, seed=seed)
    name = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
    target = folder / f"{size_class.name}-{name}"
    found = _load(target, size_class, recipe=recipe)
    if found is not None:
        return found
    _make(target, size_class, recipe=recipe)
    made = _load(target, size_class, recipe=recipe)
    if made is None:
        raise OSError(f"corpus {target.name} is not readable after it was made")
    return made


def _recipe(size_class: SizeClass, *, seed: int) -> dict[str, Any]:
    return {
        "recipe_version": RECIPE_VERSION,
        "seed": seed,
        "quality": JPEG_QUALITY,
        "class": asdict(size_class),
        "pillow": PIL.__version__,
        "numpy": np.__version__,
    }


def _load(target: Path, size_class: SizeClass, *, recipe: dict[str, Any]) -> Corpus | None:
    try:
        text = (target / _MANIFEST).read_text(encoding="utf-8")
        manifest = json.loads(text)
        digests = {name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in manifest["files"]}
    except (OSError, ValueError, KeyError):
        return None
    if manifest["recipe"] != recipe or manifest["files"] != digests:
        return None
    files = tuple(target / name for name in sorted(digests))
    return Corpus(size_class=size_class, files=files, sha256=hashlib.sha256(text.encode()).hexdigest())


def _make(target: Path, size_class: SizeClass, *, recipe: dict[str, Any]) -> None:
    """Write all images and, last, the manifest into a fresh folder, then move it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir(mode=0o755)
        workers = min(_PROCESSES_MAX, os.cpu_count() or 1)
        parts = [range(start, size_class.images_count, workers) for start in range(workers)]
        write = partial(_write_images, fresh, size_class, recipe["seed"])
        digests: dict[str, str] = {}
        with ProcessPoolExecutor(max_workers=workers, mp_context=get_context("spawn")) as pool:
            for part in pool.map(write, parts):
                digests.update(part)
        manifest = {"recipe": recipe, "files": dict(sorted(digests.items()))}
        (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
        if target.exists():
            target.rename(Path(scratch) / "stale")
        fresh.rename(target)


def _write_images(folder: Path, size_class: SizeClass, seed: int, indexes: range) -> dict[str, str]:
    fields = _base_fields(size_class, seed=seed)
    digests: dict[str, str] = {}
    for index in indexes:
        data = photograph(size_class, fields, seed=seed, index=index)
        name = f"{index:04d}.jpg"
        (folder / name).write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    return digests


def _base_fields(size_class: SizeClass, *, seed: int) -> list[Field]:
    """Return the textures that the images of a class are mixed from: random phases under a natural spectrum."""
    generator = np.random.Generator(np.random.PCG64([seed, size_class.width_px]))
    return [_one_over_f(size_class, generator) for _ in range(_FIELDS_COUNT)]


def _one_over_f(size_class: SizeClass, generator: np.random.Generator) -> Field:
    rows = np.fft.fftfreq(size_class.height_px)[:, None]
    columns = np.fft.rfftfreq(size_class.width_px)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf  # no mean: brightness is set per image
    phase = generator.uniform(0, 2 * np.pi, size=frequency.shape)
    spectrum = frequency**-_SPECTRUM_POWER * np.exp(1j * phase)
    field = np.fft.irfft2(spectrum, s=(size_class.height_px, size_class.width_px))
    scaled: Field = (field / field.std()).astype(np.float32)
    return scaled


def photograph(size_class: SizeClass, fields: list[Field], *, seed: int, index: int) -> bytes:
    """Return one JPEG: two shifted textures as light, a third as colour, opaque shapes over them, noise over all."""
    generator = np.random.Generator(np.random.PCG64([seed, size_class.width_px, index]))
    light = 118.0 + 34.0 * _shifted(fields, generator) + 14.0 * _shifted(fields, generator)
    light += _shapes(size_class, generator)
    tint = 16.0 * _shifted(fields, generator)
    noise = generator.standard_normal(size=light.shape, dtype=np.float32) * size_class.noise_levels
    light += noise
    warm = float(generator.uniform(-12, 12))
    channels = (light + tint + warm, light, light - tint - warm)
    pixels = np.stack([np.clip(channel, 0, 255).astype(np.uint8) for channel in channels], axis=-1)
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def _shifted(fields: list[Field], generator: np.random.Generator) -> Field:
    """Return one of the textures, wrapped round by a random offset: another scene at a fraction of the cost."""
    field = fields[int(generator.integers(len(fields)))]
    shift = (int(generator.integers(field.shape[0])), int(generator.integers(field.shape[1])))
    rolled: Field = np.roll(field, shift, axis=(0, 1))
    return rolled


def _shapes(size_class: SizeClass, generator: np.random.Generator) -> Field:
    """Return sharp-edged patches that add to or take from the light, as objects before a background do."""
    canvas = Image.new("L", (size_class.width_px, size_class.height_px), 128)
    draw = ImageDraw.Draw(canvas)
    for _ in range(_EDGES_COUNT):
        centre = generator.uniform((0, 0), (size_class.width_px, size_class.height_px))
        spread = generator.uniform(0.03, 0.18) * size_class.width_px
        corners = centre + generator.normal(0, spread, size=(4, 2))
        level = int(generator.integers(88, 168))
        draw.polygon([(float(x), float(y)) for x, y in corners], fill=level)
    return np.asarray(canvas, dtype=np.float32) - 128.0
