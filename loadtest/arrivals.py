"""Open-loop arrival schedules: pure functions of a seed, computed whole before anything is sent.

Invariant: equal arguments give equal schedules, byte for byte, whatever the system under test does.
Time is rescaled from one unit-rate Poisson process: phases with other rates keep the same random numbers (pairing).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of constant mean rate."""

    name: str
    duration_s: float
    rate_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All arrivals of one cell, in order of their due time."""

    due_us: npt.NDArray[np.int64]  #: after the cell's time zero
    image: npt.NDArray[np.int32]  #: index into the corpus class
    phase_index: npt.NDArray[np.int32]  #: index into `phases`
    phases: tuple[Phase, ...]

    def __len__(self) -> int:
        return len(self.due_us)

    @property
    def sha256(self) -> str:
        """Return the hex digest of every due time, image and phase of the schedule."""
        digest = hashlib.sha256()
        for column in (self.due_us, self.image, self.phase_index):
            digest.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
        digest.update("\n".join(phase.name for phase in self.phases).encode())
        return digest.hexdigest()

    @property
    def duration_s(self) -> float:
        """Return the planned length of the load, seconds."""
        return sum(phase.duration_s for phase in self.phases)


def poisson(phases: Sequence[Phase], *, seed: int, images: int) -> Schedule:
    """Return Poisson arrivals through `phases`, each with an image drawn evenly from `images`."""
    edges_s = np.concatenate(([0.0], np.cumsum([phase.duration_s for phase in phases])))
    edges_mean = np.concatenate(([0.0], np.cumsum([phase.duration_s * phase.rate_per_s for phase in phases])))
    unit_times = _unit_poisson(float(edges_mean[-1]), seed=seed)
    due_s = np.interp(unit_times, edges_mean, edges_s)
    return _schedule(due_s, phases=phases, seed=seed, images=images)


def poisson_count(count: int, *, rate_per_s: float, seed: int, images: int, name: str = "steady") -> Schedule:
    """Return exactly `count` Poisson arrivals at `rate_per_s`; the last one ends the phase."""
    gaps = np.random.Generator(np.random.PCG64(seed)).exponential(size=count)
    due_s = np.cumsum(gaps) / rate_per_s
    phase = Phase(name=name, duration_s=float(due_s[-1]), rate_per_s=rate_per_s)
    return _schedule(due_s, phases=(phase,), seed=seed, images=images)


def constant(count: int, *, rate_per_s: float, seed: int, images: int, name: str = "constant") -> Schedule:
    """Return `count` evenly spaced arrivals whose images go round the class in order, each equally often."""
    phase = Phase(name=name, duration_s=count / rate_per_s, rate_per_s=rate_per_s)
    evenly = _schedule(np.arange(count) / rate_per_s, phases=(phase,), seed=seed, images=images)
    order = (np.arange(count) % images).astype(np.int32)
    return Schedule(due_us=evenly.due_us, image=order, phase_index=evenly.phase_index, phases=evenly.phases)


def _unit_poisson(end: float, *, seed: int) -> npt.NDArray[np.float64]:
    """Return the arrivals of a rate-1 process before `end`: gaps are drawn in blocks until the end is passed."""
    generator = np.random.Generator(np.random.PCG64(seed))
    block = max(16, int(end + 6 * end**0.5))
    times = np.cumsum(generator.exponential(size=block))
    while times[-1] < end:
        times = np.concatenate((times, times[-1] + np.cumsum(generator.exponential(size=block))))
    return times[times < end]


def _schedule(due_s: npt.NDArray[np.float64], *, phases: Sequence[Phase], seed: int, images: int) -> Schedule:
    ends_s = np.cumsum([phase.duration_s for phase in phases])
    phase_index = np.minimum(np.searchsorted(ends_s, due_s, side="right"), len(phases) - 1)
    chosen = np.random.Generator(np.random.PCG64([seed, 1])).integers(0, images, size=len(due_s))
    return Schedule(
        due_us=np.round(due_s * _US_PER_S).astype(np.int64),
        image=chosen.astype(np.int32),
        phase_index=phase_index.astype(np.int32),
        phases=tuple(phases),
    )
