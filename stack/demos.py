"""The demonstrations: each breaks one thing of a running line, and shows what it leaves behind and who puts it right.

Invariant: what is told is looked at when it is told; a sentence that does not hold ends the demonstration.
"""

import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stack.demo_stage import Row, Sent, Stage
from stack.roles import RoleProcess

#: Work for a worker of a second or more, at any speed of this machine enough to be caught in the act.
_SLOW_PX = (3000, 2000)
_SLOW_UPLOADS = 3
_COMMAND_S_MAX = 30.0
_PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Demo:
    """One demonstration: its title, and what happens on the stage."""

    title: str
    play: Callable[[Stage], None]


def _worker_away(stage: Stage) -> None:
    api, _, _, worker = stage.start("api", "relay", "janitor", "worker")
    stage.does("the worker is stopped")
    stage.sees("it stops with code 0", worker.stop() == 0)
    sent = stage.upload()
    stage.does("a message is written that names the attachment")
    body = json.dumps({"text": "a photo", "attachment_ids": [sent.attachment_id]}).encode()
    status, answer = stage.call("POST", "/api/v1/messages", body)
    stage.sees(f"it is answered {status}", status == http.client.CREATED)
    message_path = f"/api/v1/messages/{json.loads(answer)['message_id']}"
    stage.does("the API is stopped and another one started")
    stage.sees("it stops with code 0", api.stop() == 0)
    stage.start("api", name="api-again")
    (waiting,) = json.loads(stage.call("GET", message_path)[1])["attachments"]
    stage.sees("the message is there and its attachment is queued", waiting["status"] == "queued")
    stage.does("a worker is started")
    stage.start("worker", name="worker-again")
    stage.until_ready(sent)
    (shown,) = json.loads(stage.call("GET", message_path)[1])["attachments"]
    stage.sees("the message shows it", shown["status"] == "ready")


def _broker_restart(stage: Stage) -> None:
    stage.start("api", "relay", "janitor")
    uploads = [stage.upload() for _ in range(3)]
    stage.until(lambda: all(stage.row(sent).published for sent in uploads), "the broker has confirmed all messages")
    stage.does("RabbitMQ is stopped and started again with its data")
    broker = stage.servers.server("rabbit")
    broker.restart()
    stage.sees("it serves again", broker.answers())
    stage.does("a worker is started")
    stage.start("worker")
    for sent in uploads:
        stage.until_ready(sent)
    claims = [stage.row(sent).claim_token for sent in uploads]
    stage.sees("each job was claimed once", claims == [1, 1, 1])


def _crash_after_commit(stage: Stage) -> None:
    stage.start("api", "janitor", "worker")
    stage.does("a relay is started that will kill itself between taking an announcement and publishing it")
    (relay,) = stage.start("relay", CRASH_POINT="relay.leased")
    sent = stage.upload()
    stage.until(lambda: not relay.alive, "the relay is dead")
    row = stage.row(sent)
    stage.sees(
        "the job is committed and queued, and no message was published", row.state == "queued" and not row.published
    )
    stage.sees("its announcement is still in the outbox", row.announcements == 1)
    stage.does("another relay is started")
    stage.start("relay", name="relay-again")
    stage.until_ready(sent)
    stage.sees("the job was claimed once", _effort(stage.row(sent)) == (1, 0, 0))
    stage.until(lambda: stage.row(sent).announcements == 0, "the outbox is empty")


def _crash_before_ack(stage: Stage) -> None:
    stage.start("api", "relay", "janitor")
    stage.does("a worker is started that will kill itself when it has stored the results, before it says so")
    (worker,) = stage.start("worker", CRASH_POINT="worker.stored")
    sent = stage.upload()
    stage.until(lambda: not worker.alive, "the worker is dead")
    stage.sees(
        "its job is still in work, and nobody else's before the lease ends", stage.row(sent).state == "processing"
    )
    stage.does("another worker is started")
    (second,) = stage.start("worker", name="worker-second")
    stage.until_ready(sent)
    stage.sees("it was claimed twice, a death is counted, no attempt is", _effort(stage.row(sent)) == (2, 1, 0))
    stage.does("that worker is stopped; the next one will kill itself when it has settled a job, before its ack")
    second.stop()
    (third,) = stage.start("worker", name="worker-third", CRASH_POINT="worker.settled")
    sent = stage.upload()
    stage.until(lambda: not third.alive, "the worker is dead")
    stage.sees("its job is ready", stage.row(sent).state == "ready")
    stage.does("another worker is started, to which the message comes again")
    (fourth,) = stage.start("worker", name="worker-fourth")
    stage.until(lambda: _count(fourth, "empty_claims") >= 1, "it has claimed, and found nothing to do")
    stage.until_ready(sent)
    stage.sees("the job was claimed once", _effort(stage.row(sent)) == (1, 0, 0))


def _lease_expiry(stage: Stage) -> None:
    stage.start("api", "relay", "janitor")
    (first,) = stage.start("worker")
    uploads = [stage.upload(size_px=_SLOW_PX) for _ in range(_SLOW_UPLOADS)]
    frozen = stage.until(lambda: _frozen_in_work(stage, first, uploads), "the worker is frozen (SIGSTOP) in mid job")
    stage.until(lambda: stage.row(frozen).deaths == 1, "its lease has run out, and the job waits again")
    stage.does("another worker is started")
    stage.start("worker", name="worker-second")
    stage.until_ready(frozen)
    row = stage.row(frozen)
    stage.sees("the second attempt did it", _effort(row) == (2, 1, 0))
    stage.does("the first worker goes on (SIGCONT), and would settle the job as if nothing had been")
    first.thaw()
    stage.until(lambda: _count(first, "fenced_writes") >= 1, "that is refused and counted: its token is an old one")
    stage.sees("the row has not changed", stage.row(frozen) == row)
    for sent in uploads:
        stage.until_ready(sent)


def _failed_and_replayed(stage: Stage) -> None:
    stage.start("api", "relay", "janitor")
    stage.does("a worker is started that somebody configured wrongly: it takes images of 10,000 pixels at most")
    (worker,) = stage.start("worker", IMAGE_PIXELS_MAX="10000")
    sent = stage.upload()
    stage.until(lambda: stage.row(sent).state == "failed", "the job has failed")
    error = stage.attachment(sent)["error"]
    stage.sees(f"its owner is told why: {error['code']}", error["code"] == "too_many_pixels")
    stage.does("the worker is stopped, and one with the right settings started")
    worker.stop()
    stage.start("worker", name="worker-again")
    stage.does("the job is replayed: spillway jobs replay JOB")
    stage.sees("the command says that it is queued", _replay(stage, sent) == 0)
    stage.until_ready(sent)
    stage.does("it is replayed once more")
    stage.sees("that is refused: it has not failed", _replay(stage, sent) == 1)


def _effort(row: Row) -> tuple[int, int, int]:
    """Return claims, deaths and attempts spent."""
    return row.claim_token, row.deaths, row.attempts_spent


def _frozen_in_work(stage: Stage, worker: RoleProcess, uploads: Sequence[Sent]) -> Sent | None:
    """Freeze the worker when it is seen at work; return the upload whose job it then holds, None to try again."""
    if not any(stage.row(sent).state == "processing" for sent in uploads):
        return None
    worker.freeze()
    for sent in uploads:
        if stage.row(sent).state == "processing":
            return sent
    worker.thaw()
    return None


def _count(worker: RoleProcess, name: str) -> float:
    """Return one of the worker's counters; 0 while it does not answer."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        found = re.search(rf"^spillway_worker_{name}_total (\S+)$", worker.get("/metrics")[1].decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0
    return 0.0


def _replay(stage: Stage, sent: Sent) -> int:
    """Return the exit code of the command, as a person would run it."""
    command = [sys.executable, "-m", "stack.cli", "jobs", "replay", str(sent.job_id), "--wait-s=10"]
    ended = subprocess.run(
        command, cwd=_PROJECT, env=stage.command_env, capture_output=True, timeout=_COMMAND_S_MAX, check=False
    )
    return ended.returncode


DEMOS: dict[str, Demo] = {
    "worker-away": Demo("no worker is there, the API restarts, and nothing is lost", _worker_away),
    "broker-restart": Demo("the broker restarts with jobs waiting in it", _broker_restart),
    "crash-after-commit": Demo("a crash between the commit and the publish", _crash_after_commit),
    "crash-before-ack": Demo("a worker dies after storing, and another one before its ack", _crash_before_ack),
    "lease-expiry": Demo("a worker freezes past its lease and comes back", _lease_expiry),
    "failed-and-replayed": Demo("a job fails and is replayed", _failed_and_replayed),
}
