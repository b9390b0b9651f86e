"""What one cell of a bench run is, and the record it leaves beside its raw tables. Pure.

Invariant: a `CellSpec` says everything that decides a cell before it runs; equal specs under equal code and corpus have
equal ids, which is what makes an interrupted run resumable.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class CellKind(StrEnum):
    """What a cell measures."""

    DRAIN = "drain"  #: capacity: a backlog is filled with workers stopped, then drained
    STEADY = "steady"  #: time to ready: live Poisson arrivals below capacity
    PULSE = "pulse"  #: overload and recovery: base, pulse above capacity, base again
    BARE = "bare"  #: baseline: the transform alone, on all cores, no servers involved
    DIRECT = "direct"  #: baseline: the transform with its fetch, stores and row update, without queue or API


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPhase:
    """A stretch of load as a share of capacity."""

    name: str
    duration_s: float
    capacity_share: float  #: offered rate ÷ measured capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """Everything that decides a cell before it runs."""

    kind: CellKind
    size: str  #: name of the corpus class
    concurrency: int  #: jobs in work per worker process; for baselines the number of loop processes
    prefetch: int  #: unacked deliveries per worker process; 0 for baselines
    policy: str  #: admission policy: none or count; empty for baselines
    jobs_count: int  #: uploads of a drain, files of a baseline, least measured arrivals of a steady cell; 0 for a pulse
    phases: tuple[LoadPhase, ...]
    bound_s: float  #: bound of the policy `count`, seconds of measured capacity; 0 without a bound
    seed: int
    repeat: int  #: from 0

    @property
    def setting(self) -> str:
        """Return the short name of the worker setting."""
        return f"c{self.concurrency}/p{self.prefetch}"

    @property
    def title(self) -> str:
        """Return what a person reads for the cell."""
        parts = [self.kind.value, self.size]
        if self.prefetch:
            parts.append(self.setting)
        if self.kind is CellKind.PULSE:
            parts.append(self.policy)
        if self.repeat:
            parts.append(f"repeat {self.repeat + 1}")
        return " ".join(parts)

    def cell_id(self, *, code_version: str, corpus_sha256: str) -> str:
        """Return 16 hex digits that name this cell under this code and corpus."""
        text = json.dumps([asdict(self), code_version, corpus_sha256], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> "CellSpec":
        """Return the spec that `asdict` turned into `raw`."""
        phases = tuple(LoadPhase(**phase) for phase in raw["phases"])
        return cls(**{**raw, "kind": CellKind(raw["kind"]), "phases": phases})


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorFacts:
    """What the load generator says of itself after a load."""

    priority: str  #: "fifo", "nice" or "none": what it could get
    zero_monotonic_s: float  #: time zero of the schedule on the host's monotonic clock
    zero_wall_s: float  #: the same instant on the host's wall clock
    planned_count: int
    sent_count: int
    in_flight_max: int
    elapsed_s: float  #: from time zero to the last answer
    cpu_s: float  #: used by the generator in that time

    def to_json(self) -> str:
        """Return the facts as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "GeneratorFacts":
        """Return the facts that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """The record of a finished cell, `cell.json`."""

    cell_id: str
    spec: CellSpec
    order: int  #: position in the run, from 0
    capacity_per_s: float  #: capacity that the load was planned from, jobs a second; 0 where none was needed
    jobs_bound: int  #: bound given to the policy `count`; 0 without one
    rates_per_s: dict[str, float]  #: planned mean rate by phase
    schedule_sha256: str
    corpus_sha256: str
    zero_monotonic_s: float  #: time zero of the cell's rows on the host's monotonic clock
    zero_wall_s: float  #: the same instant on the host's wall clock
    database_minus_host_s: float  #: the database's clock minus the host's, at the cell's start
    work_began_s: float  #: when the workers were started, after time zero; 0 where they ran already
    ended_s: float  #: when the last job was final, after time zero
    drained: bool  #: nothing was unfinished when the cell was archived
    load_average_before: float
    steal_share: float  #: CPU time taken by the hypervisor during the cell, share of all; 0 where unknown
    generator: GeneratorFacts | None

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "CellRecord":
        """Return the record that `to_json` wrote."""
        raw = json.loads(text)
        generator = GeneratorFacts(**raw["generator"]) if raw["generator"] else None
        return cls(**{**raw, "spec": CellSpec.from_dict(raw["spec"]), "generator": generator})
