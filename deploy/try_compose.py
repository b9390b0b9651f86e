"""Tries Dockerfile and compose.yaml, unchanged, from nothing to finished uploads: `python -m deploy.try_compose`.

Where a Docker engine answers, it pulls and builds as anybody would. Where none does and we are root, a private one
is started, with stand-ins for images that cannot be pulled; a second run finds them made. Everything that it starts
it stops, volumes included. Exit codes: 0 it holds, 1 a step failed, 3 the machine is unfit.
"""

import contextlib
import os
import random
import re
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.engine import Engine, TrialError, UnfitError, open_engine, run
from deploy.journey import Journey, photo, wait_until
from deploy.stand_ins import Workshop, build_stand_ins
from stack.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
EXIT_FAILED = 1
EXIT_UNFIT = 3
EXIT_TERMINATED = 128 + signal.SIGTERM

_PROJECT = "spillway-try"
_IMAGE = "spillway:local"
_SECRETS = (
    "SPILLWAY_COMPOSE_POSTGRES_PASSWORD",
    "SPILLWAY_COMPOSE_RABBITMQ_PASSWORD",
    "SPILLWAY_S3_ACCESS_KEY",
    "SPILLWAY_S3_SECRET_KEY",
)
_UP_S_MAX = 300.0
_BACK_S_MAX = 90.0
_WORKERS = 2
_UPLOADS_WHILE_AWAY = 3
_UPLOADS_FOR_TWO = 8
_LOG_LINES = "30"
_LOG_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Trial:
    """One project of compose.yaml on an engine."""

    engine: Engine
    env_file: Path
    journey: Journey
    api_url: str

    def compose(self, *args: str, timeout_s: float = _UP_S_MAX) -> str:
        """Return what one command of Compose printed."""
        return _compose(self.engine, self.env_file, *args, timeout_s=timeout_s)

    def containers(self, service: str) -> list[str]:
        """Return the ids of a service's containers."""
        return self.compose("ps", "--all", "-q", service).split()

    def state(self, service: str, field: str) -> set[str]:
        """Return the values of one field of a service's containers."""
        ids = self.containers(service)
        return {self.engine.docker("inspect", "--format", f"{{{{{field}}}}}", container) for container in ids}


def _compose(engine: Engine, env_file: Path, *args: str, timeout_s: float = _UP_S_MAX) -> str:
    where = ["--project-name", _PROJECT, "--file", str(ROOT / "compose.yaml"), "--project-directory", str(ROOT)]
    command = [*engine.compose_command, "--env-file", str(env_file), *where, *args]
    return run(command, engine.environment, timeout_s=timeout_s)


def write_env(path: Path, example: str, values: dict[str, str]) -> None:
    """Write `.env` as a person would: the example, with some values filled in.

    Raises:
        TrialError: the example does not have one of them.
    """
    text = example
    for name, value in values.items():
        text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        if count != 1:
            raise TrialError(f".env.example has {count} lines for {name}")
    path.write_text(text, encoding="utf-8")


def check_refusal(engine: Engine) -> None:
    """Check that compose.yaml is refused with the example as it is, without secrets."""
    try:
        _compose(engine, ROOT / ".env.example", "config", "--quiet")
    except TrialError as refusal:
        if "must be set in .env" in str(refusal):
            return
        raise
    raise TrialError("compose.yaml was accepted without secrets")


def bring_up(trial: Trial) -> None:
    """Start everything and wait until all of it is up."""
    trial.compose("config", "--quiet")
    if not trial.engine.private:
        trial.compose("up", "-d", "--build", timeout_s=_UP_S_MAX * 3)
    else:
        trial.engine.docker("build", "--network=none", f"--tag={_IMAGE}", str(ROOT))
        trial.compose("up", "-d")
    trial.journey.wait_health("ready")


def use_it(trial: Trial) -> None:
    """Upload, wait, look at the results and at who is running."""
    trial.journey.use_token(trial.compose("exec", "-T", "api", "spillway", "token", "create", "--owner", "trial"))
    (document,) = trial.journey.wait_ready([trial.journey.upload(photo())])
    trial.journey.check_results(document)
    trial.journey.check_store_is_closed(document)
    for service in ("api", "relay", "worker", "janitor"):
        if trial.compose("exec", "-T", service, "id", "-u") != "10001":
            raise TrialError(f"{service} runs under another user")
        _wait_state(trial, service, ".State.Health.Status", "healthy")


def lose_and_return(trial: Trial) -> None:
    """Accept uploads without a worker, restart broker and API, and finish them with two workers."""
    trial.compose("stop", "worker")
    jobs = [trial.journey.upload(photo()) for _ in range(_UPLOADS_WHILE_AWAY)]
    _wait_messages(trial, _UPLOADS_WHILE_AWAY)
    trial.compose("restart", "rabbitmq", "api")
    _wait_state(trial, "rabbitmq", ".State.Health.Status", "healthy")
    _wait_messages(trial, _UPLOADS_WHILE_AWAY)
    trial.journey.wait_health("degraded")
    trial.compose("up", "-d", "--no-recreate", "--scale", f"worker={_WORKERS}")
    trial.journey.wait_health("ready")
    if len(trial.containers("worker")) != _WORKERS:
        raise TrialError(f"{len(trial.containers('worker'))} workers run instead of {_WORKERS}")
    jobs += [trial.journey.upload(photo()) for _ in range(_UPLOADS_FOR_TWO)]
    for document in trial.journey.wait_ready(jobs):
        trial.journey.check_results(document)


def smoke(trial: Trial) -> None:
    """Run the public smoke against the published address."""
    token = trial.compose("exec", "-T", "api", "spillway", "token", "create", "--owner", "smoke")
    run([sys.executable, "-m", "tests.smoke", trial.api_url], {**trial.engine.environment, "SPILLWAY_TOKEN": token})


def stop_well(trial: Trial) -> None:
    """Stop our processes and check that each left by itself, and none had died before."""
    services = ("api", "relay", "worker", "janitor")
    restarts = {service: trial.state(service, ".RestartCount") for service in services}
    trial.compose("stop", *services)
    for service in services:
        if (codes := trial.state(service, ".State.ExitCode")) != {"0"}:
            raise TrialError(f"{service} was stopped with {codes}")
        if restarts[service] != {"0"}:
            raise TrialError(f"{service} was restarted: {restarts[service]}")


def _wait_state(trial: Trial, service: str, field: str, wanted: str) -> None:
    def reached() -> bool | None:
        return trial.state(service, field) == {wanted} or None

    wait_until(reached, timeout_s=_BACK_S_MAX, what=f"{service} is {wanted}")


def _wait_messages(trial: Trial, wanted: int) -> None:
    def there() -> bool | None:
        listed = trial.compose("exec", "-T", "rabbitmq", "rabbitmqctl", "-q", "list_queues", "name", "messages")
        counts = [int(line.split()[-1]) for line in listed.splitlines() if line.split()[-1].isdigit()]
        return sum(counts) >= wanted or None  # more where a lost confirm made the relay say it twice

    wait_until(there, timeout_s=_BACK_S_MAX, what=f"the broker holds {wanted} messages")


STEPS: tuple[tuple[str, Callable[[Trial], None]], ...] = (
    ("image built, everything up and ready", bring_up),
    ("upload accepted, results right, store closed, nobody is root, all healthy", use_it),
    ("accepted without workers, broker and API restarted, two workers finished all", lose_and_return),
    ("public smoke", smoke),
    ("all left by themselves, none had died", stop_well),
)


def show(trial: Trial) -> None:
    """Print what runs and the last words of each, as far as they can be had."""
    with contextlib.suppress(TrialError):
        sys.stderr.write(f"{trial.compose('ps', '--all')}\n")
        for service in trial.compose("config", "--services").split():
            logs = trial.compose("logs", "--no-color", "--tail", _LOG_LINES, service)
            sys.stderr.write(f"{logs[-_LOG_CHARS:]}\n")


def try_it(engine: Engine, folder: Path, say: Callable[[str], None]) -> None:
    """Run all steps, and take the project down whatever comes of them.

    Raises:
        TrialError: a step failed.
    """
    rng = random.SystemRandom()
    api_port, s3_port = free_port((), rng), free_port((), rng)
    values = {name: secrets.token_hex(20) for name in _SECRETS} | {
        "SPILLWAY_API_PORT": str(api_port),
        "SPILLWAY_COMPOSE_S3_PORT": str(s3_port),
        "SPILLWAY_S3_PUBLIC_URL": f"http://127.0.0.1:{s3_port}",
    }
    check_refusal(engine)
    say("refused without secrets")
    write_env(folder / ".env", (ROOT / ".env.example").read_text(encoding="utf-8"), values)
    api_url = f"http://127.0.0.1:{api_port}"
    trial = Trial(engine, folder / ".env", Journey(api_url), api_url)
    try:
        for name, step in STEPS:
            step(trial)
            say(name)
    except Exception:
        show(trial)
        raise
    finally:
        trial.journey.close()
        trial.compose("down", "--volumes", "--timeout", "30")


def main() -> int:
    """Try it here; return the exit code."""
    environment = os.environ  # noqa: TID251 - a program of its own
    started_s = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that everything is taken down first

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - started_s:6.1f} s  {text}\n")

    cache = ROOT / ".cache" / "containers"
    try:
        with open_engine(environment, data=cache / "engine") as engine, tempfile.TemporaryDirectory() as folder:
            say(f"engine {'of our own' if engine.private else 'found'}, {' '.join(engine.compose_command)}")
            if engine.private:
                build_stand_ins(Workshop(engine=engine, root=ROOT, cache=cache, say=say))
                say("stand-ins are there")
            try_it(engine, Path(folder), say)
            if engine.private:
                engine.docker("image", "prune", "--force")  # what earlier trials built
    except UnfitError as error:
        sys.stderr.write(f"try-compose: {error}\n")
        return EXIT_UNFIT
    except TrialError as error:
        sys.stderr.write(f"try-compose: {error}\n")
        return EXIT_FAILED
    say("the trial holds; everything is taken down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
