"""The only module that speaks to RabbitMQ: sessions that end when anything is wrong, and start anew with jitter.

A session is one connection with one channel; queues are declared at its start, so a deleted queue comes back. Whatever
closes (connection, channel, the consumer by the broker's hand) ends the session; the caller opens the next one.
Publisher and consumer are different processes, hence different connections: an alarm that stops the broker from
reading publishers cannot hold back acks.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import AMQPException, QueueEmpty
from aiormq.exceptions import AMQPException as AiormqException
from pydantic import ValidationError
from yarl import URL

from app.core.settings import Settings
from contracts.limits import DELIVERIES_MAX
from contracts.messages import JobMessage, dead_letter_exchange, dead_letter_queue, jobs_queue

#: The pause before a new session is drawn from this range, so that a fleet does not return in step.
RECONNECT_S_MIN = 0.5
RECONNECT_S_MAX = 3.0

_ERRORS = (AMQPException, AiormqException, OSError, TimeoutError, asyncio.InvalidStateError, RuntimeError)


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

    async def _settle(self, answer: Callable[[], Awaitable[None]]) -> None:
        if not self.live:
            return
        try:
            async with asyncio.timeout(self._session.timeout_s):
                await answer()
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
            async with asyncio.timeout(settings.timeout_s):
                connection = await aio_pika.connect(url, timeout=settings.timeout_s)
        except _ERRORS as error:
            raise BrokerUnavailableError("no connection to the broker") from error
        try:
            yield await cls._start(connection, settings)
        finally:
            await _close(connection, timeout_s=settings.timeout_s)

    @classmethod
    async def _start(cls, connection: AbstractConnection, settings: BrokerSettings) -> Self:
        try:
            async with asyncio.timeout(settings.timeout_s):
                channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                session = cls(connection, channel, settings)
                connection.close_callbacks.add(session._on_close)
                channel.close_callbacks.add(session._on_close)
                underlay: Any = await channel.get_underlay_channel()
                underlay.on_consumer_cancel_callbacks.add(session._on_close)
                session._queue = await _declare(channel, settings.prefix)
        except _ERRORS as error:
            raise BrokerUnavailableError("the broker does not serve") from error
        return session

    async def publish(self, job_ids: Sequence[UUID]) -> list[bool]:
        """Publish one persistent, mandatory message for each job; True where the broker confirmed it in time.

        False means unknown: it may still arrive, which the claim makes harmless.
        """
        return list(await asyncio.gather(*(self._publish_one(job_id) for job_id in job_ids)))

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

    async def _publish_one(self, job_id: UUID) -> bool:
        body = JobMessage(job_id=job_id).model_dump_json().encode()
        message = aio_pika.Message(
            body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, content_type="application/json"
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._channel.default_exchange.publish(message, jobs_queue(self._settings.prefix))
        except _ERRORS:
            return False
        return True

    async def _within_timeout(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await call
        except QueueEmpty:
            raise
        except _ERRORS as error:
            self.closed.set()
            raise BrokerUnavailableError("the broker did not answer") from error

    def _on_close(self, *_: object) -> None:
        self.closed.set()


async def pause_before_reconnect(stop: asyncio.Event) -> None:
    """Wait the random pause between two sessions, or until `stop` is set."""
    pause_s = random.uniform(RECONNECT_S_MIN, RECONNECT_S_MAX)  # noqa: S311 - jitter, not a secret
    try:
        async with asyncio.timeout(pause_s):
            await stop.wait()
    except TimeoutError:
        return


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
        async with asyncio.timeout(timeout_s):
            await connection.close()
    except _ERRORS:
        return


def _parse(body: bytes) -> JobMessage | None:
    try:
        return JobMessage.model_validate_json(body)
    except ValidationError:
        return None
