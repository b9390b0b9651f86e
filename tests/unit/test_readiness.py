"""Readiness says what uploads meet with: a store or a database that answers and takes no writes is away."""

from dataclasses import dataclass, field, replace

import pytest

from app.api.health import StoreWatch, readiness
from app.core.processes import Snapshot

ALIVE = Snapshot(
    jobs_held=0, staging_bytes=0, failed_source_bytes=0, slots=2, jobs_per_s=1.0, workers=1, relays=1, janitors=1
)


@dataclass(slots=True)
class Store:
    """A store that answers as it is told, and what it was asked."""

    answers: bool = True
    works: bool = True
    asked: list[str] = field(default_factory=list)

    async def probe(self) -> bool:
        self.asked.append("probe")
        return self.answers

    async def probe_work(self) -> bool:
        self.asked.append("probe_work")
        return self.works


async def watched(store: Store, *, failed: int = 0) -> StoreWatch:
    """Return a watch that has seen the store up, and then so many uploads that it did not take."""
    watch = StoreWatch()
    assert not watch.up, "nothing is known before the first probe"
    assert await watch.probe(store)
    counted: list[tuple[str, str]] = []
    count_failure = watch.noting(lambda server, call: counted.append((server, call)))
    for _ in range(failed):
        count_failure("store", "stage")
    assert counted == [("store", "stage")] * failed
    store.asked.clear()
    return watch


async def test_while_all_is_well_nothing_is_written() -> None:
    store = Store()
    watch = await watched(store)
    watch.note_write()
    assert await watch.probe(store)
    assert store.asked == ["probe"]


async def test_a_store_that_did_not_take_an_upload_is_away_until_it_takes_a_small_write() -> None:
    store = Store(works=False)
    watch = await watched(store, failed=2)
    assert not watch.up
    assert not await watch.probe(store)
    assert not await watch.probe(store)
    assert store.asked == ["probe", "probe_work"] * 2
    store.works = True
    assert await watch.probe(store)
    store.asked.clear()
    assert await watch.probe(store)
    assert store.asked == ["probe"]


async def test_an_upload_that_it_takes_is_proof_enough() -> None:
    store = Store(works=False)
    watch = await watched(store, failed=3)
    watch.note_write()
    assert watch.up
    assert await watch.probe(store)
    assert store.asked == ["probe"]


async def test_a_store_that_does_not_answer_is_asked_for_nothing_more() -> None:
    store = Store(answers=False)
    watch = await watched(Store(), failed=1)
    assert not await watch.probe(store)
    assert store.asked == ["probe"]


async def test_an_upload_that_fails_during_the_small_write_is_newer_than_it() -> None:
    store = Store()
    watch = await watched(store, failed=1)

    class Failing(Store):
        async def probe_work(self) -> bool:
            watch.noting(lambda _server, _call: None)("store", "stage")
            return True

    assert not await watch.probe(Failing())
    assert await watch.probe(store)


@pytest.mark.parametrize(("server", "call"), [("store", "content"), ("store", "probe"), ("database", "stage")])
async def test_other_calls_that_fail_say_nothing_of_writes(server: str, call: str) -> None:
    watch = await watched(Store())
    watch.noting(lambda _server, _call: None)(server, call)
    assert watch.up


def test_a_database_that_takes_no_writes_is_away_and_what_is_known_from_it_still_holds() -> None:
    assert readiness(ALIVE, store_up=True).status == "ready"
    found = readiness(replace(ALIVE, read_only=True), store_up=True)
    assert found.status == "unavailable"
    assert [name for name, said in found.components.items() if said == "away"] == ["database"]
