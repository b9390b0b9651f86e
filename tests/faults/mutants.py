"""Wrong versions of the product, made from the right one, and short stories in which the difference must show.

A mutant is a copy of the sources or a function of a scratch database with some words exchanged; words that are no
longer there fail the test. Stories use the tools of the chaos runs and are judged by their checker.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from contracts.jobs import JobState
from stack.chaos_collect import Watch, open_watch, settles_of
from stack.chaos_gather import Seen, gather
from stack.chaos_history import FaultSpan, Picture, Settle, Step
from stack.chaos_load import Clients
from stack.chaos_pictures import Upload, references
from stack.chaos_rig import Rig, wall_s
from stack.checker import Verdict, judge
from stack.docs import PACKAGES, ROOT
from stack.proxy import LineMode
from stack.roles import Roles
from stack.servers import DATABASE_VARIABLE, Servers
from stack.state import LOG_FOLDER
from tests.line import QUICK, photo, token_store, until

OWNER = "ann"
#: A bound that a handful of uploads reaches.
JOBS_BOUND = 4
SETTINGS = {
    **QUICK,
    "SPILLWAY_ADMISSION_JOBS_MAX": str(JOBS_BOUND),
    "SPILLWAY_WORKER_CONCURRENCY": "1",
    "SPILLWAY_RETRY_BASE_S": "0.3",
    "SPILLWAY_RETRY_CAP_S": "0.6",
    "SPILLWAY_S3_TIMEOUT_S": "4",
}
#: About a second of work, so that something can be done to it meanwhile; and a few hundredths.
SLOW, QUICK_SIZE = {"width": 2600, "height": 2000}, {"width": 400, "height": 300}
#: A mutant that has lost something never comes to rest: it is waited for no longer than this.
REST_S_MAX, MUTANT_REST_S_MAX = 45.0, 12.0
BUCKET_S_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Some words of one place that are exchanged: a file of the sources, or a function of the database."""

    place: str
    words: str
    by: str

    def applied(self, text: str) -> str:
        """Return the text with the words exchanged, all of them; they must be there."""
        assert self.words in text, f"{self.place} no longer says {self.words!r}: the mutant must be written anew"
        return text.replace(self.words, self.by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong version; the right one has no patches."""

    sources: tuple[Patch, ...] = ()
    functions: tuple[Patch, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.sources and not self.functions


RIGHT = Mutant()


@contextmanager
def sources_of(mutant: Mutant) -> Iterator[dict[str, str]]:
    """Lend the variables with which roles run the mutant's sources."""
    if not mutant.sources:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="spillway-mutant-") as made:
        folder = Path(made)
        folder.chmod(0o755)  # roles run as another user
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package)
        for patch in mutant.sources:
            path = folder / patch.place
            path.write_text(patch.applied(path.read_text(encoding="utf-8")), encoding="utf-8")
        # Without the safe path the folder they start in, which is the right version's, would come first.
        yield {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


async def exchange_functions(url: str, patches: Sequence[Patch]) -> None:
    """Replace functions of a scratch database by wrong ones, made from what is there."""
    connection = await asyncpg.connect(url)
    try:
        for patch in patches:
            definition = await connection.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", patch.place)
            await connection.execute(patch.applied(definition))
    finally:
        await connection.close()


@dataclass(slots=True)
class Story:
    """One short run: what it works with, and what was done in it."""

    rig: Rig
    watch: Watch
    clients: Clients
    pictures: list[Picture] = field(default_factory=list)
    spans: list[FaultSpan] = field(default_factory=list)

    async def uploaded(self, *seeds: int, width: int, height: int) -> list[str]:
        """Upload valid pictures, each of which must be accepted; returns the jobs."""
        uploads = await pictures_of(seeds, width=width, height=height)
        self.pictures += [upload.picture for upload in uploads]
        return [await self.accepted(upload) for upload in uploads]

    async def accepted(self, upload: Upload) -> str:
        """Send one file as often as it takes until it is accepted; returns its job."""

        async def taken() -> str:
            answer = await self.clients.upload(upload, owner=OWNER)
            assert answer.call.status in (202, 503), answer.call
            return answer.call.job_id if answer.call.status == 202 else ""

        return str(await until(taken, what="the upload is accepted"))

    async def step(self, job_id: str, *, after: JobState, token: int | None = None) -> Step:
        """Wait for a step of a job into this state, under this token."""

        async def seen() -> Step | None:
            for step in await self.watch.steps():
                if str(step.job_id) == job_id and step.state_after == after and token in (None, step.claim_token):
                    return step
            return None

        found = await until(seen, what=f"{job_id} is {after}")
        assert isinstance(found, Step)
        return found

    async def said(self, process: str, job_id: str) -> Settle:
        """Wait until a worker has said what became of its attempt at a job."""
        job_ids = {job.job_id for job in await self.watch.jobs() if str(job.job_id) == job_id}

        async def seen() -> Settle | None:
            settles = settles_of(self.rig.servers.folder / LOG_FOLDER, job_ids)
            return next((settle for settle in settles if settle.process == process), None)

        found = await until(seen, what=f"{process} has settled {job_id}, or tried to")
        assert isinstance(found, Settle)
        return found

    @asynccontextmanager
    async def line_down(self, process: str, server: str, mode: LineMode) -> AsyncIterator[None]:
        """Disturb one line for the block, and remember that it was."""
        begun_s = wall_s()
        self.rig.line(process, server).set_mode(mode)
        try:
            yield
        finally:
            back_s = wall_s()
            self.rig.line(process, server).set_mode(LineMode.OPEN)
            action = "refuse" if mode is LineMode.REFUSED else "hold"
            span = FaultSpan(
                kind=f"{action}-{server}",
                action=action,
                target=server,
                begun_s=begun_s,
                back_s=back_s,
                ended_s=wall_s(),
            )
            self.spans.append(span)

    async def judged(self, *, rest_s_max: float) -> Verdict:
        """Wait for rest and judge."""
        ended_s = wall_s()
        await self.watch.at_rest(timeout_s=rest_s_max)
        seen = Seen(
            jobs_bound=JOBS_BOUND,
            load_ended_s=ended_s,
            pictures=tuple(self.pictures),
            calls=tuple(self.clients.calls),
            faults=tuple(self.spans),
            whole_store=False,
        )
        return judge(await gather(self.watch, self.rig, seen))


async def pictures_of(seeds: Sequence[int], *, width: int, height: int) -> list[Upload]:
    """Return valid pictures with what a single run makes of them."""
    files = [photo(seed, width=width, height=height) for seed in seeds]
    return [Upload(data, picture) for data, picture in zip(files, await references(files), strict=True)]


@asynccontextmanager
async def open_story(
    servers: Servers, environment: Mapping[str, str], env: Mapping[str, str], *, mutant: Mutant
) -> AsyncIterator[Story]:
    """Open a story about a mutant on a database of its own; no role runs yet."""
    await exchange_functions(env[DATABASE_VARIABLE], mutant.functions)
    with sources_of(mutant) as variables:
        rig = Rig(servers, Roles(servers, environment, env={**env, **variables}), env=env, settings=SETTINGS)
        try:
            async with open_watch(env) as watch:
                await watch.begin()
                await watch.bucket_there(timeout_s=BUCKET_S_MAX)
                token = await _token(env)
                await rig.start("api")
                clients = Clients(port=rig.process("api").port, tokens={OWNER: token})
                try:
                    yield Story(rig, watch, clients)
                finally:
                    clients.close()
        finally:
            await rig.close()


async def _token(env: Mapping[str, str]) -> str:
    async with token_store(env) as tokens:
        return (await tokens.create(owner=OWNER))[1]
