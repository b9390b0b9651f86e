"""What a chaos run will do, decided before it begins: faults and arrivals as pure functions of a seed.

Invariant: equal arguments give equal plans on every machine. At most two faults overlap, never two on one target, and
none begins before the load has, or ends so late that nothing could be settled after it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from app.core.crashpoints import CRASH_POINTS, CrashPoint

T = TypeVar("T")

FAULTS_AT_ONCE_MAX = 2
#: One fault begins this often on average: 15 minutes hold each kind three times.
FAULT_EVERY_S = 8.0
#: How long a fault lasts; what was killed comes back after it.
LASTING_S_MIN, LASTING_S_MAX = 2.0, 6.0
#: What a fault may take beyond its own time until it counts as over: a server that was killed has to start again.
RESTART_S = 4.0
#: No fault before, and none within the last so many seconds: recovery shows in what is settled after it.
CALM_BEFORE_S, CALM_AFTER_S = 4.0, 20.0
#: Shortest run that has room for a fault.
SECONDS_MIN = 40

#: Uploads a second: 2,000 accepted ones in 15 minutes with some refused.
UPLOADS_PER_S = 3.0
OWNERS = ("ann", "bob", "eve")
#: Shares of the uploads that carry a key, are attachments, are cancelled, are watched to their end; and the share of
#: the watched ones whose image gets a second version.
KEYED_SHARE, ATTACHED_SHARE, CANCELLED_SHARE, WATCHED_SHARE = 0.75, 0.15, 0.05, 0.3
REPROCESSED_SHARE = 0.3
CANCEL_AFTER_S_MAX = 1.5

WORKERS = ("worker-1", "worker-2")


class Action(StrEnum):
    """What is done to a target."""

    KILL = "kill"  #: SIGKILL, started again afterwards
    FREEZE = "freeze"  #: SIGSTOP, SIGCONT afterwards
    CRASH = "crash"  #: started anew with a crash point armed, then without
    CUT = "cut"  #: every connection to it is broken, several times
    SLOW = "slow"  #: every read on its lines is passed on late
    HOLD = "hold"  #: its lines are half open
    DUPLICATE = "duplicate"  #: messages are published again
    REORDER = "reorder"  #: waiting messages are put in the opposite order
    STALE = "stale"  #: messages of another pipeline version, and one that nobody can read
    DOUBLE = "double"  #: a second relay and a second janitor run beside the first


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault; with several targets one of them is drawn."""

    action: Action
    targets: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kind's name: `kill-worker`."""
        return f"{self.action}-{self.targets[0].partition('-')[0]}"


_ROLES = (("api",), ("relay",), ("janitor",), WORKERS)
_SERVERS = (("postgres",), ("rabbit",), ("s3",))

KINDS: tuple[Kind, ...] = (
    *(Kind(Action.KILL, targets) for targets in (*_ROLES, *_SERVERS)),
    *(Kind(Action.FREEZE, targets) for targets in (*_ROLES, *_SERVERS)),
    *(Kind(Action.CRASH, targets) for targets in _ROLES),
    *(Kind(action, targets) for action in (Action.CUT, Action.SLOW, Action.HOLD) for targets in _SERVERS),
    *(Kind(action, ("messages",)) for action in (Action.DUPLICATE, Action.REORDER, Action.STALE)),
    Kind(Action.DOUBLE, ("roles",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planned fault; times are seconds after the load begins."""

    number: int
    kind: Kind
    target: str
    begin_s: float
    lasting_s: float
    crash_point: CrashPoint | None = None

    @property
    def over_s(self) -> float:
        """When it is planned to be over, restarts included."""
        return _ms(self.begin_s + self.lasting_s + RESTART_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One planned upload; `image` is an index into the pictures of the run."""

    number: int
    due_s: float
    owner: str
    image: int
    keyed: bool
    attached: bool
    watched: bool
    reprocessed: bool
    cancel_after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of one run."""

    seed: int
    seconds: int
    faults: tuple[Fault, ...]
    arrivals: tuple[Arrival, ...]


class Draws:
    """Numbers that a seed and a label decide, whatever was drawn before."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def ratio(self, *label: object) -> float:
        """Return a number from 0 to below 1."""
        digest = hashlib.sha256(repr((self._seed, *label)).encode()).digest()
        return int.from_bytes(digest[:7]) / 256**7

    def one_of(self, choices: Sequence[T], *label: object) -> T:
        """Return one of the choices."""
        return choices[int(self.ratio(*label) * len(choices))]

    def shuffled(self, items: Sequence[T], *label: object) -> list[T]:
        """Return the items in another order."""
        order = sorted(range(len(items)), key=lambda index: self.ratio(*label, index))
        return [items[index] for index in order]


def make_plan(*, seed: int, seconds: int, images_count: int) -> Plan:
    """Return the plan of a run of `seconds`, in which as many pictures are uploaded.

    Raises:
        ValueError: the run is too short for a single fault.
    """
    if seconds < SECONDS_MIN:
        raise ValueError(f"a run has at least {SECONDS_MIN} s")
    draws = Draws(seed)
    return Plan(
        seed=seed,
        seconds=seconds,
        faults=tuple(_faults(draws, seconds=seconds)),
        arrivals=tuple(_arrivals(draws, seconds=seconds, images_count=images_count)),
    )


def _faults(draws: Draws, *, seconds: int) -> Iterator[Fault]:
    """Yield the faults: evenly spread, moved later where two are still at work or the target is."""
    window_s = seconds - CALM_BEFORE_S - CALM_AFTER_S
    count = int(window_s / FAULT_EVERY_S)
    planned: list[Fault] = []
    for number, kind in zip(range(count), _kinds(draws), strict=False):
        wanted_s = _ms(CALM_BEFORE_S + (number + draws.ratio("begin", number)) * FAULT_EVERY_S)
        target = draws.one_of(kind.targets, "target", number)
        begin_s = _free_from(planned, wanted_s, target)
        lasting_s = _ms(LASTING_S_MIN + draws.ratio("lasting", number) * (LASTING_S_MAX - LASTING_S_MIN))
        if begin_s + lasting_s > seconds - CALM_AFTER_S:
            return
        fault = Fault(
            number=number,
            kind=kind,
            target=target,
            begin_s=begin_s,
            lasting_s=lasting_s,
            crash_point=_crash_point(planned, kind),
        )
        planned.append(fault)
        yield fault


def _kinds(draws: Draws) -> Iterator[Kind]:
    """Yield all kinds in a new order, again and again: in so many rounds each comes as often."""
    turn = 0
    while True:
        yield from draws.shuffled(KINDS, "round", turn)
        turn += 1


def _crash_point(planned: Sequence[Fault], kind: Kind) -> CrashPoint | None:
    """Return the role's crash points in turn."""
    if kind.action is not Action.CRASH:
        return None
    role = kind.targets[0].partition("-")[0]
    points = [point for point in CRASH_POINTS if point.startswith(f"{role}.")]
    return points[sum(fault.kind == kind for fault in planned) % len(points)]


def _free_from(planned: Sequence[Fault], wanted_s: float, target: str) -> float:
    """Return the first moment from `wanted_s` on at which a fault on this target may begin."""
    # In order: so nothing planned before begins later, in the middle of this one.
    earliest_s = [wanted_s, *(fault.begin_s for fault in planned[-1:])]
    begin_s = max(earliest_s + [fault.over_s for fault in planned if _same_part(fault.target, target)])
    while len(at_work := [fault for fault in planned if fault.over_s > begin_s]) >= FAULTS_AT_ONCE_MAX:
        begin_s = min(fault.over_s for fault in at_work)
    return begin_s


def _same_part(one: str, other: str) -> bool:
    # Messages are moved about by a session with the broker, which must be there meanwhile.
    return one == other or {one, other} <= {"messages", "rabbit"}


def _arrivals(draws: Draws, *, seconds: int, images_count: int) -> Iterator[Arrival]:
    for number in range(int(seconds * UPLOADS_PER_S)):
        cancelled = draws.ratio("cancelled", number) < CANCELLED_SHARE
        yield Arrival(
            number=number,
            due_s=_ms((number + draws.ratio("due", number)) / UPLOADS_PER_S),
            owner=draws.one_of(OWNERS, "owner", number),
            image=int(draws.ratio("image", number) * images_count),
            keyed=draws.ratio("keyed", number) < KEYED_SHARE,
            attached=draws.ratio("attached", number) < ATTACHED_SHARE,
            watched=draws.ratio("watched", number) < WATCHED_SHARE,
            reprocessed=draws.ratio("reprocessed", number) < REPROCESSED_SHARE,
            cancel_after_s=draws.ratio("after", number) * CANCEL_AFTER_S_MAX if cancelled else None,
        )


def _ms(time_s: float) -> float:
    """Return seconds in whole milliseconds, so that sums compare equal."""
    return round(time_s, 3)
