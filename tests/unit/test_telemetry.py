"""What a log line of an unexpected error says, and what it never says."""

import json
import subprocess
import sys

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
