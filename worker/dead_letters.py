"""What the broker gave up on: written down, and its job announced again where the row says that it still waits.

Invariant: a dead letter is acknowledged only when the database has noted it, and one is in hand at a time; when the
database does not answer, it goes back to its queue instead of staying in hand for as long as the session lives.
"""

from app.core import telemetry
from app.core.backlog import Backlog
from app.core.rabbit import BrokerSession, Delivery
from app.core.registry import DeadReason

log = telemetry.logger()

DEAD_LETTERS = telemetry.counter("janitor_dead_letters", "Messages taken from the dead-letter queue.", "kind")

_BROKERS_REASONS = frozenset(reason.value for reason in DeadReason) - {DeadReason.UNREADABLE.value}


async def take_dead_letters(session: BrokerSession, *, backlog: Backlog, letters_max: int) -> None:
    """Take in up to `letters_max` dead letters: the row decides, so no innocent job fails by the broker's limit.

    Raises:
        BrokerUnavailableError: the broker does not answer.
        DatabaseUnavailableError: the database does not; what was in hand is in its queue again.
    """
    for _ in range(letters_max):
        letters = await session.take_dead_letters(messages_max=1)
        if not letters:
            return
        await _take(letters[0], backlog)


async def _take(letter: Delivery, backlog: Backlog) -> None:
    try:
        await _note(letter, backlog)
    except Exception:
        await letter.put_back()
        raise
    await letter.ack()


async def _note(letter: Delivery, backlog: Backlog) -> None:
    reason = reason_of(letter.death_reason, readable=letter.message is not None)
    job_id = None if letter.message is None else letter.message.job_id
    await backlog.note_dead_letter(
        body_sha256=letter.body_sha256, body_bytes=letter.body_bytes, reason=reason, job_id=job_id
    )
    if job_id is None:
        # Nothing more to do for it: every job is a row, and a row without a message is found by the census.
        DEAD_LETTERS.labels("unreadable").inc()
        log.error("dead_letter.unreadable", body_bytes=letter.body_bytes, body_sha256=letter.body_sha256)
        return
    announced = await backlog.announce_one(job_id)
    DEAD_LETTERS.labels("announced" if announced else "settled").inc()
    log.warning("dead_letter.taken", job_id=str(job_id), reason=reason.value, announced=announced)


def reason_of(brokers_word: str | None, *, readable: bool) -> DeadReason:
    """Return why a message is a dead letter; a word of the broker's that we do not know is `unknown`."""
    if not readable:
        return DeadReason.UNREADABLE
    return DeadReason(brokers_word) if brokers_word in _BROKERS_REASONS else DeadReason.UNKNOWN
