"""The container engine of a trial: the one that answers here, or a private one that is started and stopped again.

Invariant: a private engine has its own data folder, socket and state and no bridge, so that no other engine ever
sees its images; whoever starts it ends it, by its own process.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COMMAND_S_MAX = 600.0
_START_S_MAX = 60.0
_STOP_S_MAX = 60.0
_POLL_S = 0.2
_OUTPUT_CHARS_SHOWN = 4000


class TrialError(Exception):
    """A step of the trial did not go as it must; the message says which and what was seen."""


class UnfitError(Exception):
    """This machine lacks something that the trial needs."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Runs commands against one engine."""

    environment: Mapping[str, str]
    private: bool
    compose_command: tuple[str, ...]

    def docker(self, *args: str, timeout_s: float = COMMAND_S_MAX) -> str:
        """Return what one `docker` command printed.

        Raises:
            TrialError: it failed or took too long.
        """
        return run(["docker", *args], self.environment, timeout_s=timeout_s)


def run(args: list[str], environment: Mapping[str, str], *, timeout_s: float = COMMAND_S_MAX) -> str:
    """Return what a command printed on standard output.

    Raises:
        TrialError: it failed or took too long; the message ends with the last of its output.
    """
    try:
        done = subprocess.run(args, env=dict(environment), capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise TrialError(f"`{' '.join(args)}` took more than {timeout_s:.0f} s") from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).decode(errors="replace")[-_OUTPUT_CHARS_SHOWN:]
        raise TrialError(f"`{' '.join(args)}` ended with {done.returncode}:\n{output}")
    return done.stdout.decode(errors="replace").strip()


@contextmanager
def open_engine(environment: Mapping[str, str], *, data: Path) -> Iterator[Engine]:
    """Give the engine that answers, or a private one with its images under `data` while the block runs.

    Raises:
        UnfitError: there is neither an engine nor what a private one needs.
    """
    compose = _compose_command(environment)
    if _answers(environment):
        yield Engine(environment, private=False, compose_command=compose)
        return
    need(environment, "dockerd", "docker", why="to start a container engine")
    with tempfile.TemporaryDirectory(prefix="spillway-engine-", ignore_cleanup_errors=True) as folder:
        state = Path(folder)
        # Without buildx the client has its own builder only.
        own = {**environment, "DOCKER_HOST": f"unix://{state}/docker.sock", "DOCKER_BUILDKIT": "0"}
        with (state / "log").open("wb") as log:
            # In a session of its own: Ctrl-C is ours to handle, while the engine is still needed to take things down.
            process = subprocess.Popen(
                _dockerd(state, data), env=own, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            _wait_until_it_answers(process, own, log=state / "log")
            yield Engine(own, private=True, compose_command=compose)
        finally:
            _stop(process, state)


def need(environment: Mapping[str, str], *programs: str, why: str) -> None:
    """Make sure that programs are on the path.

    Raises:
        UnfitError: one is not.
    """
    missing = [name for name in programs if shutil.which(name, path=environment["PATH"]) is None]
    if missing:
        raise UnfitError(
            f"{', '.join(missing)} missing, needed {why}. Install a Docker engine, Compose and debootstrap"
        )


def _dockerd(state: Path, data: Path) -> list[str]:
    data.mkdir(parents=True, exist_ok=True)
    return [
        "dockerd",
        f"--host=unix://{state}/docker.sock",
        f"--data-root={data}",
        f"--exec-root={state}/exec",
        f"--pidfile={state}/pid",
        "--bridge=none",
        "--iptables=false",
    ]


def _stop(process: subprocess.Popen[bytes], state: Path) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # The name space of the containers without a network stays mounted; its folder could not be removed.
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        unmount = ["umount", "--lazy", line.split()[1]]
        if unmount[-1].startswith(f"{state}/"):
            subprocess.run(unmount, check=False)


def _compose_command(environment: Mapping[str, str]) -> tuple[str, ...]:
    try:
        run(["docker", "compose", "version"], environment)
    except (TrialError, OSError):
        need(environment, "docker-compose", why="where the plugin `docker compose` is not installed")
        return ("docker-compose",)
    return ("docker", "compose")


def _answers(environment: Mapping[str, str]) -> bool:
    try:
        run(["docker", "version", "--format", "{{.Server.Version}}"], environment)
    except (TrialError, OSError):
        return False
    return True


def _wait_until_it_answers(process: subprocess.Popen[bytes], environment: Mapping[str, str], *, log: Path) -> None:
    deadline_s = time.monotonic() + _START_S_MAX
    while not _answers(environment):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise UnfitError(f"no engine could be started:\n{log.read_text(errors='replace')[-_OUTPUT_CHARS_SHOWN:]}")
        time.sleep(_POLL_S)
