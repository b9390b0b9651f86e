"""One chaos run: a stack of its own in a temporary folder, disturbed by plan while load runs, then judged.

Invariant: it ends by itself and ends every process it started, whatever it ran into; it speaks to loopback only. The
report holds the seed, from which plan and files follow.
"""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.core.role import wait_or_stop
from app.core.settings import PREFIX
from app.core.tokens import TokenStore
from stack.chaos_collect import Watch, open_watch
from stack.chaos_faults import Faults
from stack.chaos_gather import Seen, gather
from stack.chaos_history import FaultSpan, History
from stack.chaos_load import Clients, Load
from stack.chaos_pictures import Upload, make_uploads
from stack.chaos_plan import FAULTS_AT_ONCE_MAX, OWNERS, WORKERS, Fault, Plan, make_plan
from stack.chaos_rig import Rig, wall_s
from stack.chaos_show import ChaosShow
from stack.chaos_view import ACCEPTED, UPLOAD
from stack.checker import Verdict, judge
from stack.errors import EnvironmentUnfitError
from stack.roles import Roles
from stack.servers import Servers
from stack.state import LOG_FOLDER

#: The bound of the run: reached now and then, so that refusals and the exactness of the bound are part of it.
JOBS_BOUND = 40
#: Short leases, so that a fault of seconds outlasts them; two API processes, so that the bound has two who ask.
SETTINGS = {
    f"{PREFIX}API_PROCESSES": "2",
    f"{PREFIX}ADMISSION_JOBS_MAX": str(JOBS_BOUND),
    f"{PREFIX}JOB_LEASE_S": "4",
    f"{PREFIX}UPLOAD_LEASE_S": "4",
    f"{PREFIX}RELAY_LEASE_S": "3",
    f"{PREFIX}RELAY_POLL_S": "0.5",
    f"{PREFIX}JANITOR_INTERVAL_S": "0.5",
    f"{PREFIX}PROCESS_SEEN_S": "0.5",
    f"{PREFIX}BROKER_TIMEOUT_S": "3",
    f"{PREFIX}BROKER_HEARTBEAT_S": "2",
    f"{PREFIX}S3_TIMEOUT_S": "5",
    f"{PREFIX}RETRY_BASE_S": "0.5",
    f"{PREFIX}RETRY_CAP_S": "4",
    f"{PREFIX}WORKER_CONCURRENCY": "2",
    f"{PREFIX}WORKER_CHILDREN": "1",
    f"{PREFIX}WORKER_STOP_GRACE_S": "5",
    f"{PREFIX}STOP_GRACE_S": "5",
}
PROCESSES = ("api", "relay", "janitor", *WORKERS)
#: After the load everything has this long to come to rest: no unfinished job, no sweep left to do.
REST_S_MAX = 120.0
BUCKET_S_MAX = 30.0
_TEND_EVERY_S = 0.5
_REPORT, _HISTORY = "report.json", "history.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """What to do to whom, and where the report goes."""

    seed: int
    seconds: int
    runs: Path

    @property
    def folder(self) -> Path:
        """The folder of this run's report."""
        return self.runs / f"seed-{self.seed}-{self.seconds}s"


def run_chaos(options: ChaosOptions, environment: Mapping[str, str], *, show: ChaosShow) -> Verdict:
    """Run, judge, write the report and return the verdict.

    Raises:
        EnvironmentUnfitError: the stack does not start here, or the report has no place.
    """
    # Nothing that names a server of somebody's: the run has its own and no other is ever disturbed.
    own = {name: value for name, value in environment.items() if not name.startswith(PREFIX)}
    _make_room(options.folder)
    with _stack_folder() as data:
        servers = Servers(data, own)
        try:
            show.say("starting PostgreSQL, S3 and RabbitMQ")
            servers.start()
            roles = Roles(servers, own)
            roles.migrate()
            history = _whole(_run(options, servers, roles, show))
        finally:
            servers.stop()
        verdict = judge(history)
        _write(options, history, verdict, logs=data / LOG_FOLDER)
    return verdict


def _make_room(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfitError(f"{folder} cannot be made: choose another place with --runs.") from error


@contextmanager
def _stack_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="spillway-chaos-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _whole(run: Coroutine[Any, Any, History]) -> History:
    """Run to the end; what keeps a server from coming back is told as what it is, not as one of a group.

    Raises:
        EnvironmentUnfitError: a server does not start here.
    """
    try:
        return asyncio.run(run)
    except ExceptionGroup as group:
        unfit = group.subgroup(EnvironmentUnfitError)
        if unfit is None:
            raise
        raise EnvironmentUnfitError(str(_leaf(unfit))) from group


def _leaf(error: BaseException) -> BaseException:
    """Return the first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run(options: ChaosOptions, servers: Servers, roles: Roles, show: ChaosShow) -> History:
    env = servers.env()
    rig = Rig(servers, roles, env=env, settings=SETTINGS)
    try:
        async with open_watch(env) as watch:
            await watch.begin()
            await watch.bucket_there(timeout_s=BUCKET_S_MAX)
            show.say("making the pictures and what one undisturbed run makes of them")
            uploads = await make_uploads(servers.folder / "pictures", seed=options.seed)
            plan = make_plan(seed=options.seed, seconds=options.seconds, images_count=len(uploads))
            tokens = {owner: (await TokenStore(watch.database).create(owner=owner))[1] for owner in OWNERS}
            await asyncio.gather(*(rig.start(name) for name in PROCESSES))
            clients = Clients(port=rig.process("api").port, tokens=tokens)
            try:
                return await _disturb(_Run(rig, watch, clients, uploads, plan, show))
            finally:
                await asyncio.to_thread(clients.close)
    finally:
        await rig.close()


@dataclass(frozen=True, slots=True)
class _Run:
    """What one run works with."""

    rig: Rig
    watch: Watch
    clients: Clients
    uploads: Sequence[Upload]
    plan: Plan
    show: ChaosShow


async def _disturb(run: _Run) -> History:
    """Run load and faults side by side, wait for rest, and gather the history."""
    stop, load_over = asyncio.Event(), asyncio.Event()
    load = Load(run.clients, run.uploads, database=run.watch.database, jobs_bound=JOBS_BOUND, stop=stop)
    tending = asyncio.create_task(_tend(run, stop=load_over))
    try:
        spans, _ = await asyncio.gather(_faults(run, stop=stop), load.run(run.plan.arrivals))
        load_ended_s = wall_s()
        run.show.say("waiting until everything is at rest")
        await run.rig.heal()
        rested = await run.watch.at_rest(timeout_s=REST_S_MAX)
        if not rested:
            run.show.say(f"not at rest after {REST_S_MAX:.0f} s")
        await _last_looks(run)
    finally:
        stop.set()
        load_over.set()
        await tending
    run.show.say("gathering what happened")
    return await _history(run, spans, load_ended_s=load_ended_s)


async def _faults(run: _Run, *, stop: asyncio.Event) -> tuple[FaultSpan, ...]:
    """Carry out the plan's faults, each at its time or as soon as fewer than the most are at work."""
    faults = Faults(run.rig, run.watch, stop=stop)
    lanes = asyncio.Semaphore(FAULTS_AT_ONCE_MAX)
    spans: list[FaultSpan] = []
    began_s = time.monotonic()

    async def carry_out(fault: Fault) -> None:
        try:
            run.show.fault(fault)
            spans.append(await faults.carry_out(fault))
        finally:
            lanes.release()

    async with asyncio.TaskGroup() as group:
        for fault in run.plan.faults:
            if await wait_or_stop(stop, max(0.0, began_s + fault.begin_s - time.monotonic())):
                break
            await lanes.acquire()
            group.create_task(carry_out(fault))
    return tuple(spans)


async def _tend(run: _Run, *, stop: asyncio.Event) -> None:
    """Start again who died without a fault, and keep the view fresh."""
    while not await wait_or_stop(stop, _TEND_EVERY_S):
        await run.rig.revive_dead()
        run.show.tick(calls=len(run.clients.calls))


async def _last_looks(run: _Run) -> None:
    """Let every client see its job once more."""
    accepted = [call for call in run.clients.calls if call.what == UPLOAD and call.status == ACCEPTED]
    promised = {call.job_id: call.owner for call in accepted}
    await asyncio.gather(*(run.clients.read(job_id, owner=owner) for job_id, owner in promised.items()))


async def _history(run: _Run, spans: tuple[FaultSpan, ...], *, load_ended_s: float) -> History:
    seen = Seen(
        jobs_bound=JOBS_BOUND,
        load_ended_s=load_ended_s,
        pictures=tuple(upload.picture for upload in run.uploads),
        calls=tuple(run.clients.calls),
        faults=spans,
    )
    return await gather(run.watch, run.rig, seen)


def summary(options: ChaosOptions, verdict: Verdict) -> dict[str, Any]:
    """Return what a program reads: the counts, the seed, and the names of the broken promises."""
    return {
        **{name: value for name, value in asdict(verdict).items() if name != "violations"},
        "holds": verdict.holds,
        "broken": sorted(verdict.broken),
        "seed": options.seed,
        "seconds": options.seconds,
        "report": str(options.folder / _REPORT),
    }


def _write(options: ChaosOptions, history: History, verdict: Verdict, *, logs: Path) -> None:
    report = {
        **summary(options, verdict),
        "violations": [asdict(violation) for violation in verdict.violations],
        "spans": [asdict(span) for span in history.faults],
        "exits": [asdict(gone) for gone in history.exits],
    }
    (options.folder / _REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")
    (options.folder / _HISTORY).write_text(json.dumps(history.as_rows(), default=str), encoding="utf-8")
    if not verdict.holds:
        shutil.copytree(logs, options.folder / LOG_FOLDER, dirs_exist_ok=True)
