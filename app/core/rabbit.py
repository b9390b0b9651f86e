"""The only module that speaks to RabbitMQ: sessions that end when anything is wrong, and start anew with jitter.

A session is one connection with one channel; queues are declared at its start, so a deleted queue comes back. Whatever
closes (connection, channel, the consumer by the broker's hand), and a publish without a confirm, ends the session; the
caller opens the next one.
Publisher and consumer are different processes, hence different connections: an alarm that stops the broker from
reading publishers cannot hold back acks.
"""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import AMQPException, QueueEmpty
from aiormq.exceptions import AMQPException as AiormqException
from pydantic import ValidationError
from yarl import URL

from app.core.cancels import is_cancelled
from app.core.settings import Settings
from app.core.telemetry import ServerWatch
from contracts.limits import DELIVERIES_MAX
from contracts.messages import JobMessage, dead_letter_exchange, dead_letter_queue, jobs_queue

#: The pause before a new session is drawn from this range.
RECONNECT_S_MIN = 0.5
RECONNECT_S_MAX = 3.0
#: To delete a queue that is lost the broker first waits 5 s for it.
DELETE_QUEUE_S_MAX = 15.0
#: A queue is taken for lost when it was said to be empty and unused at so many looks, so far apart.
LOST_QUEUE_LOOKS = 4
LOST_QUEUE_PAUSE_S = 1.0

_T = TypeVar("_T")

_watch = ServerWatch("broker")

_ERRORS = (
    AMQPException,
    AiormqException,
    OSError,
    TimeoutError,
    asyncio.InvalidStateError,
    RuntimeError,
    StopAsyncIteration,  # what the library says of a connection that is closed in the middle of its handshake
)


class BrokerUnavailableError(Exception):
    """The broker did not answer in time or closed on us. A publish may have been done all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How one process reaches the broker."""

    url: str
    prefix: str
    timeout_s: float
    heartbeat_s: int


def broker_settings(settings: Settings) -> BrokerSettings:
    """Return the broker's part of the settings."""
    return BrokerSettings(
        url=settings.broker_url.get_secret_value(),
        prefix=settings.broker_prefix,
        timeout_s=settings.broker_timeout_s,
        heartbeat_s=settings.broker_heartbeat_s,
    )


class Delivery:
    """One message in this worker's hands; `message` is None when its body cannot be read."""

    def __init__(self, incoming: AbstractIncomingMessage, session: "BrokerSession") -> None:
        self._incoming = incoming
        self._session = session
        self.message = _parse(incoming.body)
        self.body_bytes = len(incoming.body)
        self.redelivered = bool(incoming.redelivered)

    @property
    def live(self) -> bool:
        """Whether its session is still open: an older one's deliveries have gone back to the queue."""
        return not self._session.closed.is_set()

    async def ack(self) -> None:
        """Acknowledge; on a closed session nothing is left to do, since the row already tells that the work is done."""
        await self._settle(self._incoming.ack)

    async def reject(self) -> None:
        """Send it to the dead-letter queue."""
        await self._settle(self._incoming.reject)

    async def put_back(self) -> None:
        """Return it to the queue that it came from, to be taken again."""

        async def requeue() -> None:
            await self._incoming.reject(requeue=True)

        await self._settle(requeue)

    @property
    def body_sha256(self) -> str:
        """The body's SHA-256, lower-case hexadecimal."""
        return hashlib.sha256(self._incoming.body).hexdigest()

    @property
    def death_reason(self) -> str | None:
        """Why the broker gave up on it first, in the broker's word; None when it did not, or does not say."""
        reason = self._incoming.headers.get("x-first-death-reason")
        return reason if isinstance(reason, str) else None

    async def _settle(self, answer: Callable[[], Awaitable[None]]) -> None:
        if not self.live:
            return
        try:
            await in_time(answer(), timeout_s=self._session.timeout_s)
        except _ERRORS:
            self._session.closed.set()


class BrokerSession:
    """One connection and channel. `closed` is set as soon as either is gone, or the broker cancels the consumer."""

    def __init__(self, connection: AbstractConnection, channel: AbstractChannel, settings: BrokerSettings) -> None:
        self._connection = connection
        self._channel = channel
        self._settings = settings
        self._queue: AbstractQueue | None = None
        self._consumer_tag: str | None = None
        self.timeout_s = settings.timeout_s
        self.closed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: BrokerSettings) -> AsyncIterator[Self]:
        """Connect and declare.

        Raises:
            BrokerUnavailableError: the broker cannot be reached, or answers too late.
        """
        url = str(URL(settings.url).update_query(heartbeat=str(settings.heartbeat_s)))
        try:
            connecting = aio_pika.connect(url, timeout=settings.timeout_s)
            connection = await in_time(connecting, timeout_s=settings.timeout_s)
        except _ERRORS as error:
            _watch.failed(error)
            raise BrokerUnavailableError("no connection to the broker") from error
        try:
            yield await cls._start(connection, settings)
        finally:
            await _close(connection, timeout_s=settings.timeout_s)

    @classmethod
    async def _start(cls, connection: AbstractConnection, settings: BrokerSettings) -> Self:
        try:
            session = await in_time(cls._declared(connection, settings), timeout_s=settings.timeout_s)
        except _ERRORS as error:
            _watch.failed(error)
            raise BrokerUnavailableError("the broker does not serve") from error
        _watch.answered()
        return session

    @classmethod
    async def _declared(cls, connection: AbstractConnection, settings: BrokerSettings) -> Self:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        session = cls(connection, channel, settings)
        connection.close_callbacks.add(session._on_close)
        channel.close_callbacks.add(session._on_close)
        underlay: Any = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(session._on_close)
        session._queue = await _declare(channel, settings.prefix)
        return session

    async def assure_publishing(self) -> None:
        """Return once the broker has confirmed a message to nobody: under an alarm it takes none and answers the rest.

        Raises:
            BrokerUnavailableError: it takes no messages now.
        """
        message = aio_pika.Message(b"", delivery_mode=aio_pika.DeliveryMode.NOT_PERSISTENT)
        nobody = f"{self._settings.prefix}.nobody"
        await self._within_timeout(self._channel.default_exchange.publish(message, nobody, mandatory=False))

    async def remake_lost_queues(self) -> None:
        """Delete our queues that hold nothing and that nobody consumes: the session ends, and the next one declares.

        RabbitMQ 3.10 can lose a quorum queue whose node is killed within half a second of the declaration: it goes on
        to say that the queue is there and empty, and takes and gives no message ever after. A busy broker says the same
        of an intact queue whose leader is late with its answer, so it must say so at every one of several looks. Should
        an intact queue be deleted all the same, the janitor's census finds what was published.

        Raises:
            BrokerUnavailableError: the broker did not answer in time.
        """
        lost = {jobs_queue(self._settings.prefix), dead_letter_queue(self._settings.prefix)}
        for _ in range(LOST_QUEUE_LOOKS):
            for name in sorted(lost):
                queue = await self._within_timeout(self._channel.declare_queue(name, passive=True))
                said = queue.declaration_result
                if said.message_count or said.consumer_count:
                    lost.discard(name)
            if lost:
                await asyncio.sleep(LOST_QUEUE_PAUSE_S)
        for name in lost:
            await self._within_timeout(self._channel.queue_delete(name), timeout_s=DELETE_QUEUE_S_MAX)
            self.closed.set()

    async def publish(self, messages: Sequence[JobMessage]) -> list[bool]:
        """Publish persistent, mandatory messages; True where the broker confirmed one in time.

        False means unknown: it may still arrive, which the claim makes harmless. The session then ends, since the queue
        may be gone and is declared by the next one.
        """
        bodies = (message.model_dump_json().encode() for message in messages)
        return list(await asyncio.gather(*(self.publish_body(body) for body in bodies)))

    async def publish_body(self, body: bytes) -> bool:
        """Publish one body as it is, readable or not; True when the broker confirmed it in time."""
        message = aio_pika.Message(
            body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, content_type="application/json"
        )
        publishing = self._channel.default_exchange.publish(message, jobs_queue(self._settings.prefix))
        try:
            await in_time(publishing, timeout_s=self.timeout_s)
        except _ERRORS:
            self.closed.set()
            return False
        return True

    async def consume(self, *, prefetch: int, on_delivery: Callable[[Delivery], None]) -> None:
        """Start to receive at most `prefetch` unacknowledged deliveries."""
        queue = self._queue
        if queue is None:
            raise BrokerUnavailableError("the session has not started")

        async def receive(incoming: AbstractIncomingMessage) -> None:
            on_delivery(Delivery(incoming, self))

        await self._within_timeout(self._channel.set_qos(prefetch_count=prefetch))
        self._consumer_tag = await self._within_timeout(queue.consume(receive, timeout=self.timeout_s))

    async def stop_consuming(self) -> None:
        """Ask for no more deliveries; those in hand stay ours."""
        if self._queue is not None and self._consumer_tag is not None and not self.closed.is_set():
            await self._within_timeout(self._queue.cancel(self._consumer_tag, timeout=self.timeout_s))
            self._consumer_tag = None

    async def ready_messages(self) -> int:
        """Return how many messages wait in the jobs queue, without those that workers hold."""
        name = jobs_queue(self._settings.prefix)
        queue = await self._within_timeout(self._channel.declare_queue(name, passive=True))
        return int(queue.declaration_result.message_count or 0)

    async def take_dead_letters(self, *, messages_max: int) -> list[Delivery]:
        """Return up to `messages_max` dead letters, unacknowledged."""
        name = dead_letter_queue(self._settings.prefix)
        queue = await self._within_timeout(self._channel.get_queue(name, ensure=False))
        letters: list[Delivery] = []
        while len(letters) < messages_max:
            try:
                incoming = await self._within_timeout(queue.get(timeout=self.timeout_s))
            except QueueEmpty:
                break
            letters.append(Delivery(incoming, self))
        return letters

    async def _within_timeout(self, call: Awaitable[Any], *, timeout_s: float | None = None) -> Any:
        try:
            return await in_time(call, timeout_s=timeout_s or self.timeout_s)
        except QueueEmpty:
            raise
        except _ERRORS as error:
            self.closed.set()
            raise BrokerUnavailableError("the broker did not answer") from error

    def _on_close(self, *_: object) -> None:
        self.closed.set()


def reconnect_pause_s(rng: random.Random) -> float:
    """Return the seconds between two sessions: another number each time, so that a fleet does not return in step."""
    return rng.uniform(RECONNECT_S_MIN, RECONNECT_S_MAX)


async def pause_before_reconnect(stop: asyncio.Event) -> None:
    """Wait the random pause between two sessions, or until `stop` is set."""
    try:
        async with asyncio.timeout(reconnect_pause_s(random.SystemRandom())):
            await stop.wait()
    except TimeoutError:
        return


async def in_time(call: Awaitable[_T], *, timeout_s: float) -> _T:
    """Return what a call to the broker answers, or raise one of `_ERRORS`.

    The library may swallow a cancel of ours, and may end its waiters with one of its own when it drops a connection
    that was silent too long. Whether we were cancelled is what the event loop counts.
    """
    try:
        async with asyncio.timeout(timeout_s):
            answer = await call
    except BaseException as error:
        _raise_if_cancelled(error)
        if isinstance(error, asyncio.CancelledError):
            raise TimeoutError("the connection was dropped") from error
        raise
    _raise_if_cancelled(None)
    return answer


def _raise_if_cancelled(cause: BaseException | None) -> None:
    if is_cancelled():
        raise asyncio.CancelledError from cause


async def _declare(channel: AbstractChannel, prefix: str) -> AbstractQueue:
    exchange = await channel.declare_exchange(dead_letter_exchange(prefix), aio_pika.ExchangeType.FANOUT, durable=True)
    dead = await channel.declare_queue(dead_letter_queue(prefix), durable=True, arguments={"x-queue-type": "quorum"})
    await dead.bind(exchange)
    return await channel.declare_queue(
        jobs_queue(prefix),
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": DELIVERIES_MAX,
            "x-dead-letter-exchange": dead_letter_exchange(prefix),
        },
    )


async def _close(connection: AbstractConnection, *, timeout_s: float) -> None:
    try:
        await in_time(connection.close(), timeout_s=timeout_s)
    except _ERRORS:
        return


def _parse(body: bytes) -> JobMessage | None:
    try:
        return JobMessage.model_validate_json(body)
    except ValidationError:
        return None
