"""The product's own processes (api, relay, worker, janitor) as children beside the servers.

Invariant: a role is given everything by its environment; the same command by hand, with the same variables, is the
same role. Where we are root they run as the unprivileged user too, also from a clone in a closed folder.
"""

import compileall
import contextlib
import http.client
import json
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import SystemRandom
from typing import Any, Literal

from stack.account import choose_account
from stack.children import Child, ChildSpec, log_bytes, log_tail, run_once, spawn
from stack.errors import EnvironmentUnfitError
from stack.ports import LOOPBACK, settle_ports
from stack.servers import Servers
from stack.state import STACK_VARIABLE, ProcessRecord

Role = Literal["api", "relay", "worker", "janitor"]

#: The roles that are stopped after the API, together.
BACKGROUND_ROLES: tuple[Role, ...] = ("relay", "janitor", "worker")

#: A little more than the roles' own bounds (SPILLWAY_STOP_GRACE_S, SPILLWAY_WORKER_STOP_GRACE_S).
STOP_S_MAX = 30.0
LIVE_S_MAX = 30.0
MIGRATE_S_MAX = 600.0
RUN_FOLDER = "run"

_PROBE_S_MAX = 2.0
_POLL_S = 0.05
_PROJECT = Path(__file__).resolve().parents[1]
_PACKAGES = ("contracts", "app", "worker", "stack", "migrations")


class RoleProcess:
    """One process of a role, with the port on which it answers."""

    def __init__(self, role: Role, child: Child, *, port: int) -> None:
        self.role = role
        self.name = child.name
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}"
        self.child = child

    @property
    def pid(self) -> int:
        """Process id; of the master, for an API of several processes."""
        return self.child.pid

    @property
    def alive(self) -> bool:
        """Tell whether the process runs (a frozen one does)."""
        return self.child.alive

    def stop(self, grace_s: float = STOP_S_MAX) -> int:
        """End the process: SIGTERM, up to `grace_s`, SIGKILL; return the exit code."""
        return self.child.stop(grace_s)

    def kill(self) -> int:
        """End the process and its group with SIGKILL; return the exit code."""
        return self.child.kill()

    def freeze(self) -> None:
        """Stop the process and its descendants in their tracks (SIGSTOP)."""
        self.child.freeze()

    def thaw(self) -> None:
        """Let them go on (SIGCONT)."""
        self.child.thaw()

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET on the role's own port.

        Raises:
            OSError: no answer in time.
            http.client.HTTPException: the answer is not HTTP.
        """
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=_PROBE_S_MAX)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def is_live(self) -> bool:
        """Tell whether the process says that it lives."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/health/live")[0] == http.client.OK
        return False

    def readiness(self) -> str:
        """Return what the API says of the whole: `ready`, `degraded` or else; empty without an answer."""
        status = self._ask_ready().get("status", "")
        # A problem document has the number of the answer there, and is given only when nothing can be accepted.
        return status if isinstance(status, str) else "unavailable"

    def lacking(self) -> str:
        """Return in words what the API says is not up: names of components, or else its own word for it."""
        return lacking_in(self._ask_ready())

    def _ask_ready(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            answer: Any = json.loads(self.get("/health/ready")[1])
            return answer if isinstance(answer, dict) else {}
        return {}

    def wait_live(self, timeout_s: float = LIVE_S_MAX) -> None:
        """Return when the process answers.

        Raises:
            EnvironmentUnfitError: it ended, or did not answer in time; the message holds the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_live():
            if not self.alive:
                raise self.failure(f"ended at its start with code {self.child.returncode}")
            if time.monotonic() > deadline:
                raise self.failure(f"gives no answer within {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def failure(self, what: str) -> EnvironmentUnfitError:
        """Return the error that says what went wrong, with the end of the log."""
        return EnvironmentUnfitError(f"{self.name}: {what}\n{self.child.log_tail()}".rstrip())


class Roles:
    """Spawns roles that use one set of servers and ends them again."""

    def __init__(
        self, servers: Servers, environment: Mapping[str, str], *, env: Mapping[str, str] | None = None
    ) -> None:
        """`environment` is the caller's; `env` overrides variables of all roles spawned here."""
        self._servers = servers
        self._overrides = dict(env or {})
        self._site = servers.site
        self._environment = environment
        self._lock = threading.Lock()
        # The interpreter may be in a folder that the servers need not pass through.
        code = [Path(sys.executable), Path(sys.base_prefix) / "lib", _PROJECT / "stack", self._site.folder / RUN_FOLDER]
        self._account = choose_account(code, search_path=self._site.search_path)
        self.processes: list[RoleProcess] = []
        self.home = self._account.make_folder(self._site.folder / RUN_FOLDER)
        if self._account.user is not None:
            _compile_packages()

    def spawn(
        self, role: Role, *, name: str | None = None, port: int | None = None, env: Mapping[str, str] | None = None
    ) -> RoleProcess:
        """Start a process of a role and return at once; `env` overrides single variables.

        `name` (the role's own by default) names the log, the kept port and the record: give each worker another.
        An earlier process of the same name must have ended. See `RoleProcess.wait_live`.
        """
        name = name or role
        with self._lock:
            port = port or self._port(name)
            child = spawn(self._spec(name, [role], {**_own_port(role, port), **self._own_folder(name), **(env or {})}))
            self._site.state.record(ProcessRecord(name, child.identity, port))
            process = RoleProcess(role, child, port=port)
            self.processes = [other for other in self.processes if other.name != name] + [process]
        return process

    def migrate(self) -> None:
        """Bring the database to the newest schema.

        Raises:
            EnvironmentUnfitError: it could not be done; the message holds the end of the log.
        """
        spec = self._spec("migrate", ["migrate"], {})
        start_bytes = log_bytes(spec.log_path)
        child_code = run_once(spec, timeout_s=MIGRATE_S_MAX)
        if child_code != 0:
            tail = log_tail(spec.log_path, since_bytes=start_bytes)
            raise EnvironmentUnfitError(f"the migrations failed with code {child_code}\n{tail}")

    def forget(self, process: RoleProcess) -> None:
        """Strike out a process that has ended."""
        with self._lock:
            self.processes = [other for other in self.processes if other is not process]
            self._site.state.forget(process.name)

    def stop(self) -> None:
        """Stop all processes: the API first, so that nothing new is accepted, then the others together."""
        background = [process for process in self.processes if process.role in BACKGROUND_ROLES]
        with contextlib.ExitStack() as end:  # one that cannot be ended keeps none of the others
            end.callback(self._stop_together, background)
            self._stop_together([process for process in self.processes if process.role == "api"])

    def kill(self) -> None:
        """End all processes at once (SIGKILL)."""
        for process in list(self.processes):
            process.kill()
            self.forget(process)

    def _stop_together(self, processes: list[RoleProcess]) -> None:
        if not processes:
            return
        with ThreadPoolExecutor(max_workers=len(processes)) as threads:
            for stopped in [threads.submit(process.stop) for process in processes]:
                stopped.result()
        for process in processes:
            self.forget(process)

    def _port(self, name: str) -> int:
        ports = settle_ports(self._site.state.load().ports, [name], rng=SystemRandom())
        self._site.state.change(ports=ports)
        return ports[name]

    def _own_folder(self, name: str) -> dict[str, str]:
        folder = self._account.make_folder(self.home / f"{name}-metrics")
        return {"SPILLWAY_API_METRICS_DIR": str(folder)}

    def _spec(self, name: str, args: list[str], env: Mapping[str, str]) -> ChildSpec:
        return ChildSpec(
            name=name,
            args=[sys.executable, "-m", "stack.cli", *args],
            cwd=_PROJECT,
            env={**self._base_env(), **self._servers.env(), **self._overrides, **env},
            log_path=self._site.log_path(name),
            account=self._account,
        )

    def _base_env(self) -> dict[str, str]:
        # Cloud settings of the person's own would be picked up by the S3 library behind our back.
        own = {name: value for name, value in self._environment.items() if not name.startswith("AWS_")}
        own |= {STACK_VARIABLE: self._site.state.load().stack_id, "PYTHONUNBUFFERED": "1"}
        return own if self._account.user is None else {**own, "HOME": str(self.home)}


def lacking_in(answer: Mapping[str, Any]) -> str:
    """Return in words what is not up by an answer of /health/ready; pure."""
    components = answer.get("components")
    if isinstance(components, dict):
        away = [f"{name} is {part}" for name, part in components.items() if part != "up"]
        if away:
            return ", ".join(away)
    said = answer.get("detail") or answer.get("code") or answer.get("status")
    return f"/health/ready says `{said}`" if said else "/health/ready gives no answer"


def _own_port(role: Role, port: int) -> dict[str, str]:
    if role == "api":
        return {"SPILLWAY_API_HOST": LOOPBACK, "SPILLWAY_API_PORT": str(port)}
    return {"SPILLWAY_METRICS_HOST": LOOPBACK, "SPILLWAY_METRICS_PORT": str(port)}


def _compile_packages() -> None:
    # The unprivileged user cannot keep bytecode beside the sources, and would compile them at every start.
    for package in _PACKAGES:
        compileall.compile_dir(_PROJECT / package, quiet=2, maxlevels=3)
