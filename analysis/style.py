"""How every figure looks: colours that colour-blind readers can tell apart, sizes, and deterministic files.

Invariant: equal figures give equal PNG bytes (fixed backend, no dates, no host fonts).
"""

import io
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

# Okabe and Ito's palette.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#222222",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY, PALE = "#8A8A8A", "#E9E9E9"

POLICY_COLOURS = {"none": VERMILLION, "count": BLUE}
SETTING_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)

_DPI = 150
_PALETTE_COLOURS = 128
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": BLACK,
    "ytick.color": BLACK,
    "xtick.direction": "out",
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.borderaxespad": 0.2,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawn figure with the words that go beside it."""

    name: str  #: of the file, without its suffix
    figure: Figure
    caption: str
    alt: str


def applied() -> AbstractContextManager[None]:
    """Return a context in which everything that is drawn takes this module's look."""
    return mpl.rc_context(_STYLE)


def new_figure(
    rows: int, columns: int, *, width_in: float, height_in: float, **kwargs: Any
) -> tuple[Figure, np.ndarray[Any, Any]]:
    """Return a figure and its axes as a two-dimensional array; `width_in` and `height_in` are inches."""
    figure = Figure(figsize=(width_in, height_in))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def save(picture: Picture, folder: Path) -> Path:
    """Write the picture as PNG and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{picture.name}.png"
    with applied():
        buffer = io.BytesIO()
        picture.figure.savefig(buffer, dpi=_DPI, metadata={"Software": None})
    # A palette cuts a chart's file to a third; line art loses nothing that can be seen.
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(_PALETTE_COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    return file


def setting_colours(settings: Iterable[str]) -> dict[str, str]:
    """Return one colour a setting, always the same for the same set."""
    return dict(zip(sorted(set(settings)), SETTING_COLOURS, strict=False))
