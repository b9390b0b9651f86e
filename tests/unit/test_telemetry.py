"""What a log line of an unexpected error says, and what it never says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.telemetry import OUTAGE_TOLD_EVERY_S, ServerWatch, configure_logs

SCRIPT = """
from app.core.telemetry import configure_logs, logger

def look_up(token):
    raise RuntimeError("unexpected")

configure_logs(role="api", level="info")
try:
    look_up("spw_" + "secret")
except RuntimeError:
    logger().exception("http.unexpected", path="/")
"""


def test_the_traceback_of_an_error_is_logged_without_the_values_in_its_frames() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    line = json.loads(done.stderr)
    (raised,) = line["exception"]
    assert (raised["exc_type"], raised["frames"][-1]["name"]) == ("RuntimeError", "look_up")
    assert "spw_secret" not in done.stderr


def test_a_line_that_cannot_be_written_is_lost_and_harms_nobody() -> None:
    """A full disk, or a reader of the log that is gone: what was being done goes on."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", f"{SCRIPT}\nprint('went on')"], stdout=subprocess.PIPE, stderr=full, check=True
        )
    assert done.stdout == b"went on\n"


def test_a_reader_of_the_log_that_does_not_read_holds_up_nobody() -> None:
    """More than any pipe holds, and nobody takes it."""
    lines = f"{SCRIPT}\nfor _ in range(20_000): logger().info('job.ready', number=1)"
    with subprocess.Popen([sys.executable, "-c", lines], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=60.0) == 0
        finally:
            process.kill()


def test_an_outage_is_told_once_again_when_its_reason_changes_and_when_it_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 0.0
    configure_logs(role="relay", level="info")
    watch = ServerWatch("broker", clock=lambda: now_s)
    watch.answered()
    refused = ConnectionRefusedError("amqp://user:secret@host:5672 refused")
    for _ in range(3):
        watch.failed(refused)
    watch.failed(TimeoutError())
    now_s += OUTAGE_TOLD_EVERY_S
    watch.failed(TimeoutError())
    watch.answered()
    watch.answered()
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line.get("reason")) for line in said] == [
        ("server.away", "ConnectionRefusedError: amqp://***@host:5672 refused"),
        ("server.away", "TimeoutError"),
        ("server.away", "TimeoutError"),
        ("server.back", None),
    ]
    assert said[-1]["away_s"] == OUTAGE_TOLD_EVERY_S
