"""Raw files of a run → checked frames. The only part of the analysis that reads files.

Invariant: a table that is not exactly of the format's columns stops the analysis; nothing is guessed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from contracts.cells import CellRecord
from contracts.runs import (
    BASELINE,
    CELL_FILE,
    CELLS_FOLDER,
    ENVIRONMENT_FILE,
    JOBS,
    MANIFEST_FILE,
    REQUESTS,
    RUN_FORMAT_VERSION,
    SAMPLES,
    SCHEDULE,
    Table,
    require_columns,
)


class RunUnreadableError(Exception):
    """The folder holds no run of this format; the message says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One finished cell: its record and its raw frames; empty frames where the kind has none."""

    record: CellRecord
    schedule: pd.DataFrame
    requests: pd.DataFrame
    jobs: pd.DataFrame
    samples: pd.DataFrame
    baseline: pd.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as found on disk."""

    manifest: dict[str, Any]
    environment: dict[str, Any]
    cells: tuple[Cell, ...]  #: in the order in which they ran


def load_run(folder: Path) -> Run:
    """Return the run kept in `folder`.

    Raises:
        RunUnreadableError: no manifest, or another format version.
        ColumnsDifferError: a raw file is not of this format.
    """
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        environment = json.loads((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise RunUnreadableError(f"{folder.name}: {exc}") from exc
    if manifest.get("format_version") != RUN_FORMAT_VERSION:
        raise RunUnreadableError(f"{folder.name}: format {manifest.get('format_version')}, not {RUN_FORMAT_VERSION}")
    wanted = {cell["cell_id"] for cell in manifest["cells"]}
    found = [load_cell(path.parent) for path in sorted((folder / CELLS_FOLDER).glob(f"*/{CELL_FILE}"))]
    cells = sorted((cell for cell in found if cell.record.cell_id in wanted), key=lambda cell: cell.record.order)
    return Run(manifest=manifest, environment=environment, cells=tuple(cells))


def load_cell(folder: Path) -> Cell:
    """Return one finished cell.

    Raises:
        ColumnsDifferError: a raw file is not of this format.
    """
    record = CellRecord.from_json((folder / CELL_FILE).read_text(encoding="utf-8"))
    return Cell(
        record=record,
        schedule=_read(folder, SCHEDULE),
        requests=_read(folder, REQUESTS),
        jobs=_read(folder, JOBS),
        samples=_read(folder, SAMPLES),
        baseline=_read(folder, BASELINE),
    )


def _read(folder: Path, table: Table) -> pd.DataFrame:
    file = folder / table.file
    if not file.exists():
        return pd.DataFrame({name: [] for name in table.names})
    frame: pd.DataFrame = pq.read_table(file).to_pandas()
    require_columns(table, list(frame.columns))
    return frame
