"""Every call to the object store and to RabbitMQ stands inside a deadline of our own; PostgreSQL has one way in."""

import ast
from collections.abc import Iterator

from tests.repo.tidy.sources import ROOT

CORE = ROOT / "app" / "core"
#: Called on these, everything is a round trip.
CLIENTS = frozenset({"_client", "_part_client", "_health", "client"})
#: What bounds a block of calls in time.
BOUNDS = frozenset({"_call", "timeout"})
#: Functions that bound the call they are given.
BOUNDING = frozenset({"_within_timeout", "in_time"})
CHANNELS = frozenset({"_channel", "channel", "queue", "_queue", "connection", "_connection", "aio_pika", "exchange"})
#: Bounded as a whole by their caller, which the second test looks at.
BOUNDED_WHOLE = frozenset({"_declared", "_declare"})


def receiver(call: ast.Call) -> str:
    """Return the last name before the called method: `_client` of `self._client.put_object()`."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""


def called(node: ast.AST) -> str:
    """Return the name of what is called, without its receiver."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def unbounded_store_calls(text: str) -> Iterator[int]:
    """Yield the lines of awaited calls on a store's client outside any deadline."""

    def walk(node: ast.AST, *, bounded: bool) -> Iterator[int]:
        if isinstance(node, ast.AsyncWith):
            bounded = bounded or any(called(item.context_expr) in BOUNDS for item in node.items)
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            call = node.value
            local = called(call).startswith("generate_presigned")
            if receiver(call) in CLIENTS and not local and not bounded:
                yield node.lineno
        for child in ast.iter_child_nodes(node):
            yield from walk(child, bounded=bounded)

    yield from walk(ast.parse(text), bounded=False)


def unbounded_broker_calls(text: str) -> Iterator[int]:
    """Yield the lines of awaited calls on connection, channel or queue that no bounding function was given."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.AsyncFunctionDef) or function.name in BOUNDED_WHOLE:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Await) and isinstance(node.value, ast.Call) and receiver(node.value) in CHANNELS:
                yield node.lineno


def test_every_call_to_the_store_has_a_deadline_around_it() -> None:
    text = (CORE / "objects.py").read_text(encoding="utf-8")
    assert text.count("await self._client.") > 5
    assert list(unbounded_store_calls(text)) == []


def test_every_call_to_the_broker_has_a_deadline_around_it() -> None:
    text = (CORE / "rabbit.py").read_text(encoding="utf-8")
    assert list(unbounded_broker_calls(text)) == []
    bounded = [node for node in ast.walk(ast.parse(text)) if called(node) in BOUNDING]
    assert {called(argument) for call in bounded for argument in ast.walk(call)} >= {"_declared"}


def test_every_statement_goes_through_the_one_bounded_way_to_the_database() -> None:
    text = (CORE / "postgres.py").read_text(encoding="utf-8")
    assert [called(node) for node in ast.walk(ast.parse(text))].count("acquire") == 1
    (way,) = [node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == "_connection"]
    assert "self._pool.acquire(timeout=" in ast.unparse(way)
    assert "asyncio.timeout(self._answer_timeout_s)" in ast.unparse(way)


def test_a_call_without_a_deadline_is_seen() -> None:
    inside = "    async with self._call():\n        await self._client.a()\n"
    store = f"async def get(self):\n{inside}    await self._client.b()\n"
    assert list(unbounded_store_calls(store)) == [4]
    broker = "async def go(self):\n    await self._within_timeout(self._channel.a())\n    await self._channel.b()\n"
    assert list(unbounded_broker_calls(broker)) == [3]
