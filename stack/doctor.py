"""The doctor: what database, object store and broker do not agree on, and its mending on request.

Invariant: only what two looks found alike counts, a lease apart unless the caller says how old is old enough; so what a
running upload, worker, relay or janitor is about to put right is left to them. Without `mend` nothing is changed but
that the broker's queues are declared, as every role does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from app.admission import bounds_of
from app.core.backlog import Backlog
from app.core.jobstore import JobStore
from app.core.objects import ObjectStore, StoreUnavailableError, store_settings
from app.core.postgres import Database, DatabaseUnavailableError, open_database, pool_settings
from app.core.processes import ProcessRegister
from app.core.rabbit import BrokerUnavailableError, broker_settings
from app.core.registry import COMMAND_LINE
from app.core.retention import Retention, keep_settings
from app.core.settings import Settings
from app.core.versions import ReprocessTerms, Versions
from contracts.messages import PIPELINE_VERSION
from stack.doctor_books import BooksLook
from stack.doctor_finds import Difference, Kind, Tally, lasting
from stack.doctor_mend import Hand, Tools
from stack.doctor_rows import DoctorRows
from stack.doctor_store import ASKED_AT_ONCE, StoreLook
from stack.errors import EnvironmentUnfitError
from worker.cleaner import Cleaner

#: More than this is not kept of one look: mend, and look again.
DIFFERENCES_MAX = 10_000
#: With at least so many objects without a row, and fewer with one, the rows are more likely those of another store.
DOUBT_OBJECTS_MIN = 20

#: Sums over all rows take longer than what a role asks; the most that the setting allows.
STATEMENT_TIMEOUT_S = 5.0
_CONNECTIONS = 2

#: Told what is being done.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the doctor is asked to do. With `older_than_s` the second look comes at once."""

    mend: bool = False
    older_than_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of it: differences in the order of their kinds, and those of them that were mended."""

    differences: tuple[Difference, ...]
    tally: Tally
    mended: frozenset[Difference] = field(default=frozenset())
    cut_short: bool = False  #: there were more than DIFFERENCES_MAX
    doubted: bool = False  #: objects without a row were left, since most objects are such
    janitors: int = 0  #: alive, which put right most of what goes wrong

    @property
    def left(self) -> list[Difference]:
        """What is still to be mended."""
        return [difference for difference in self.differences if difference not in self.mended]


class Doctor:
    """Looks at one system, whose settings are those of its roles."""

    def __init__(self, settings: Settings, *, database: Database, objects: ObjectStore, tell: Tell) -> None:
        self._settings = settings
        self._database = database
        self._objects = objects
        self._tell = tell
        self._rows = DoctorRows(database)
        self._backlog = Backlog(database, rows_max=settings.janitor_rows_max)
        # It only reads there, under no role's name.
        self._register = ProcessRegister(database, role="api", report_interval_s=settings.process_seen_s)
        self._lease_s = max(settings.upload_lease_s, settings.job_lease_s)

    async def run(self, order: Order) -> Finding:
        """Look, look again at what was found, and mend it when asked."""
        janitors = await self._rows.janitors(seen_s=self._register.seen_s)
        first, tally = await self._look(order)
        if not first:
            return Finding(differences=(), tally=tally, janitors=janitors)
        if order.older_than_s is None:
            self._tell(f"{len(first)} found; the second look comes in {self._lease_s:.0f} s")
            await asyncio.sleep(self._lease_s)
        second, tally = await self._look(order)
        finding = Finding(
            differences=tuple(lasting(first, second)),
            tally=tally,
            cut_short=len(second) >= DIFFERENCES_MAX,
            janitors=janitors,
        )
        return await self._mend(finding) if order.mend else finding

    async def _look(self, order: Order) -> tuple[list[Difference], Tally]:
        tally = Tally()
        age_s_min = max(self._lease_s, order.older_than_s or 0.0)
        store = StoreLook(self._objects, self._rows, age_s_min=age_s_min, tally=tally)
        books = BooksLook(
            self._rows,
            self._backlog,
            broker=broker_settings(self._settings),
            lease_s=self._settings.job_lease_s,
            seen_s=self._register.seen_s,
        )
        found: list[Difference] = []
        for name, look in (("books and messages", books), ("objects", store)):
            self._tell(f"looking at {name}")
            async for difference in look.differences():
                found.append(difference)
                if len(found) >= DIFFERENCES_MAX:
                    return found, tally
        return found, tally

    async def _mend(self, finding: Finding) -> Finding:
        rowless = sum(difference.kind is Kind.OBJECT_WITHOUT_ROW for difference in finding.differences)
        doubted = rowless >= DOUBT_OBJECTS_MIN and rowless > finding.tally.objects / 2
        self._tell("mending")
        hand = Hand(
            Tools(
                objects=self._objects,
                rows=self._rows,
                jobs=JobStore(self._database),
                backlog=self._backlog,
                versions=Versions(self._database),
                cleaner=self._cleaner(),
                terms=self._terms,
                params=self._settings.transform_params(),
                lease_s=self._settings.job_lease_s,
            )
        )
        mended = await hand.mend(
            [found for found in finding.differences if not (doubted and found.kind is Kind.OBJECT_WITHOUT_ROW)]
        )
        return replace(finding, mended=frozenset(mended), doubted=doubted)

    async def _terms(self) -> ReprocessTerms:
        """Return the terms of a new version: it takes a place within the bounds that uploads have now."""
        snapshot = await self._register.snapshot()
        bounds = bounds_of(self._settings.admission_policy, snapshot=snapshot, settings=self._settings)
        return ReprocessTerms(
            pipeline_version=PIPELINE_VERSION,
            jobs_max=bounds.jobs_max,
            owner_jobs_max=bounds.owner_jobs_max,
            job_deadline_s=self._settings.job_deadline_s,
            who=COMMAND_LINE,
        )

    def _cleaner(self) -> Cleaner:
        retention = Retention(
            self._database,
            keep=keep_settings(self._settings),
            lease_s=self._settings.job_lease_s,
            rows_max=self._settings.janitor_rows_max,
        )
        return Cleaner(retention=retention, backlog=self._backlog, objects=self._objects)


async def examine(settings: Settings, order: Order, *, tell: Tell) -> Finding:
    """Run a doctor on the system that the settings reach.

    Raises:
        EnvironmentUnfitError: database, object store or broker does not answer, so nothing can be said.
    """
    try:
        async with _doctor(settings, tell=tell) as doctor:
            return await doctor.run(order)
    except DatabaseUnavailableError as error:
        raise EnvironmentUnfitError(f"The database cannot be asked: {error}. Is the stack up?") from error
    except StoreUnavailableError as error:
        raise EnvironmentUnfitError(f"The object store cannot be asked: {error}. Is the stack up?") from error
    except BrokerUnavailableError as error:
        raise EnvironmentUnfitError(f"The broker cannot be asked: {error}. Is the stack up?") from error


@asynccontextmanager
async def _doctor(settings: Settings, *, tell: Tell) -> AsyncIterator[Doctor]:
    pool = replace(
        pool_settings(settings, role="doctor", connections_max=_CONNECTIONS), statement_timeout_s=STATEMENT_TIMEOUT_S
    )
    database = await open_database(pool)
    try:
        async with ObjectStore.open(store_settings(settings, connections_max=ASKED_AT_ONCE)) as objects:
            yield Doctor(settings, database=database, objects=objects, tell=tell)
    finally:
        await database.close()
