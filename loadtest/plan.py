"""What the generator process is told: one small JSON document. Pure but for reading it.

Invariant: the generator gets everything from its plan file; nothing is taken from the environment.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

BOUNDARY = "spillway-bench-5d1c5a7be8f04b5f"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorPlan:
    """One load to drive. Paths are absolute; the schedule and the results are Parquet files of contracts.runs."""

    url: str  #: scheme, host and port
    path: str  #: of the upload resource
    token: str
    files: tuple[str, ...]  #: the corpus class, in index order
    schedule_file: str
    requests_file: str
    facts_file: str
    lead_s: float = 1.0  #: from ready to time zero
    answer_timeout_s: float = 60.0  #: an answer later than this is a timeout

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, file: Path) -> "GeneratorPlan":
        """Return the plan kept in `file`."""
        raw = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**raw, "files": tuple(raw["files"])})


def multipart_body(data: bytes, *, file_name: str) -> bytes:
    """Return `data` as the one field `file` of a multipart form, encoded once and sent many times."""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{file_name}"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    )
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()
