"""Finds RabbitMQ on this machine, or fetches it from the distribution's packages.

Invariant: packages come through apt, which checks them against the distribution's own signatures; a half-unpacked
tree is never used; nothing outside the cache is touched without root, and with root only by apt-get itself.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack.errors import EnvironmentUnfitError

PACKAGE = "rabbitmq-server"

_PROJECT = Path(__file__).resolve().parents[1]

_APT_S_MAX = 600.0
_UNPACK_S_MAX = 120.0

#: Where packages put the server's own scripts; wrappers in /usr/sbin insist on root and `su`.
_SBIN_PATTERNS = (
    "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
    "usr/lib64/rabbitmq/lib/rabbitmq_server-*/sbin",
    "opt/rabbitmq/sbin",
    "opt/homebrew/opt/rabbitmq/sbin",
    "usr/local/opt/rabbitmq/sbin",
)
_ERLANG_PATTERNS = (
    "usr/lib/erlang/bin",
    "usr/lib64/erlang/bin",
    "opt/erlang/lib/erlang/bin",
    "usr/local/lib/erlang/bin",
    "opt/homebrew/opt/erlang/lib/erlang/bin",
)

#: Never unpacked: a C library of another build than the running loader's breaks every program.
_LEFT_OUT = ("libc6_", "libc-bin_")

_HELP = """\
RabbitMQ is missing and could not be fetched ({reason}). Install it:
  Debian, Ubuntu  apt-get install --no-install-recommends rabbitmq-server
  Fedora          dnf install rabbitmq-server
  Arch            pacman -S rabbitmq
  macOS           brew install rabbitmq
or set SPILLWAY_BROKER_URL=amqp://user:password@host:5672/ to an existing server."""


@dataclass(frozen=True, slots=True)
class RabbitHome:
    """Where a usable RabbitMQ is: its scripts, its Erlang, and what both need in their environment."""

    sbin: Path
    erlang_bin: Path
    epmd: Path
    env: Mapping[str, str] = field(default_factory=dict)


def ensure_rabbit(*, cache: Path, search_path: str, progress: Callable[[str], None]) -> RabbitHome:
    """Return RabbitMQ from this machine, else from the cache, else fetched.

    Raises:
        EnvironmentUnfitError: it can't be had; the message says what to install.
    """
    tree = cache / "rabbitmq"
    found = find_rabbit(search_path) or find_in_tree(tree)
    if found is not None:
        return found
    if shutil.which("apt-get", path=search_path) is None:
        raise EnvironmentUnfitError(_HELP.format(reason="there is no apt-get here"))
    if _may_install():
        progress("installing from the distribution's packages")
        _apt_install(search_path)
        found = find_rabbit(search_path)
    else:
        progress("fetching from the distribution's packages")
        with _cache_lock(cache):
            if find_in_tree(tree) is None:
                _fetch(tree, cache / "rabbitmq-packages", search_path)
        found = find_in_tree(tree)
    if found is None:
        raise EnvironmentUnfitError(_HELP.format(reason="the packages hold no usable server"))
    return found


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where fetched programs are kept: `.cache` of a checkout, else the user's cache."""
    if (_PROJECT / "pyproject.toml").exists() and os.access(_PROJECT, os.W_OK):
        return _PROJECT / ".cache"
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "spillway"


def find_rabbit(search_path: str) -> RabbitHome | None:
    """Return the RabbitMQ that is installed on this machine, None when there is none or Erlang is missing."""
    on_path = shutil.which(PACKAGE, path=search_path)
    candidates = [Path(on_path).resolve().parent] if on_path else []
    sbin = next((path for path in [*candidates, *_newest(Path("/"), _SBIN_PATTERNS)] if _is_sbin(path)), None)
    erl = shutil.which("erl", path=search_path)
    erlang_bin = Path(erl).parent if erl else next(iter(_newest(Path("/"), _ERLANG_PATTERNS)), None)
    if sbin is None or erlang_bin is None:
        return None
    epmd = find_epmd(erlang_bin.resolve(), search_path)
    return None if epmd is None else RabbitHome(sbin, erlang_bin, epmd)


def find_in_tree(tree: Path) -> RabbitHome | None:
    """Return the RabbitMQ that was unpacked under `tree`, None when there is none."""
    sbin = next((path for path in _newest(tree, _SBIN_PATTERNS) if _is_sbin(path)), None)
    erlang_bin = next(iter(_newest(tree, _ERLANG_PATTERNS)), None)
    if sbin is None or erlang_bin is None:
        return None
    epmd = find_epmd(erlang_bin, "")
    if epmd is None:
        return None
    libraries = [str(path) for path in sorted([*tree.glob("usr/lib/*-linux-*"), *tree.glob("lib/*-linux-*")])]
    env = {"ERL_ROOTDIR": str(erlang_bin.parent), "LD_LIBRARY_PATH": ":".join(libraries)}
    return RabbitHome(sbin, erlang_bin, epmd, env)


def find_epmd(erlang_bin: Path, search_path: str) -> Path | None:
    """Return the Erlang name server beside this `erl`, or on the path."""
    near = [erlang_bin / "epmd", *sorted(erlang_bin.parent.glob("erts-*/bin/epmd"), reverse=True)]
    on_path = shutil.which("epmd", path=search_path) if search_path else None
    return next((path for path in [*near, *([Path(on_path)] if on_path else [])] if path.exists()), None)


def patch_erl(erlang_bin: Path) -> None:
    """Let the unpacked `erl` live elsewhere than where its package says: under ERL_ROOTDIR."""
    erl = erlang_bin / "erl"
    text = erl.read_text()
    # A link into the package's place would lead out of the tree.
    erl.unlink()
    erl.write_text(
        re.sub(r'ROOTDIR="?(/usr/lib(?:64)?/erlang)"?$', r'ROOTDIR="${ERL_ROOTDIR:-\1}"', text, flags=re.MULTILINE)
    )
    erl.chmod(0o755)


def _newest(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    found = [path for pattern in patterns for path in root.glob(pattern)]
    return sorted(
        found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.parent.name)], reverse=True
    )


def _is_sbin(path: Path) -> bool:
    # Only the distribution's own scripts stand beside their environment file; wrappers do not.
    return (path / "rabbitmq-server").exists() and (path / "rabbitmq-env").exists()


def _may_install() -> bool:
    # Where a service manager runs, installing would also start a broker that nobody asked for: unpack instead.
    return os.geteuid() == 0 and not Path("/run/systemd/system").exists()


def _apt_install(search_path: str) -> None:
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", PACKAGE]
    env = {"PATH": search_path, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    if _run(install, env).returncode == 0:
        return
    _run(["apt-get", "update", "-q"], env)  # the package lists may be missing or old
    result = _run(install, env)
    if result.returncode != 0:
        raise EnvironmentUnfitError(_HELP.format(reason=_reason(result)))


def _fetch(tree: Path, packages: Path, search_path: str) -> None:
    env = {"PATH": search_path, "LC_ALL": "C.UTF-8", "HOME": str(packages)}
    archives, lists = packages / "archives", packages / "lists"
    for folder in (archives / "partial", lists / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"-oDir::Cache={packages}", f"-oDir::Cache::archives={archives}", "-oDebug::NoLocking=1"]
    # An apt run as root would otherwise step down to a user that may not write to the cache.
    options += ["-oAPT::Sandbox::User=root"]
    install = ["install", "-y", "-q", "--download-only", "--no-install-recommends", PACKAGE]
    result = _run(["apt-get", *options, *install], env)
    if result.returncode != 0:
        options += [f"-oDir::State::lists={lists}"]
        _run(["apt-get", *options, "update", "-q"], env)
        result = _run(["apt-get", *options, *install], env)
    if result.returncode != 0:
        raise EnvironmentUnfitError(_HELP.format(reason=_reason(result)))
    _unpack(archives, tree, env)
    shutil.rmtree(packages)


def _unpack(archives: Path, tree: Path, env: Mapping[str, str]) -> None:
    half_made = tree.with_suffix(".new")
    shutil.rmtree(half_made, ignore_errors=True)
    half_made.mkdir(parents=True)
    for package in sorted(archives.glob("*.deb")):
        if not package.name.startswith(_LEFT_OUT):
            result = _run(["dpkg", "-x", str(package), str(half_made)], env, timeout_s=_UNPACK_S_MAX)
            if result.returncode != 0:
                raise EnvironmentUnfitError(_HELP.format(reason=_reason(result)))
    for erlang_bin in _newest(half_made, _ERLANG_PATTERNS):
        patch_erl(erlang_bin)
    half_made.rename(tree)


def _run(
    args: list[str], env: Mapping[str, str], *, timeout_s: float = _APT_S_MAX
) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            args,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnfitError(_HELP.format(reason=f"{args[0]} took more than {timeout_s:.0f} s")) from error


def _reason(result: "subprocess.CompletedProcess[str]") -> str:
    errors = [line for line in result.stdout.splitlines() if line.startswith("E:")]
    return errors[-1] if errors else f"{result.args[0]} ended with code {result.returncode}"


@contextlib.contextmanager
def _cache_lock(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "rabbitmq.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # bounded by the holder's own time limits
        yield


def main() -> int:
    """Find or fetch RabbitMQ, as `make setup` does; return the exit code."""
    environment = os.environ  # noqa: TID251 - a program of its own
    try:
        if not environment.get("SPILLWAY_BROKER_URL"):
            ensure_rabbit(cache=cache_folder(environment), search_path=environment["PATH"], progress=_say)
    except EnvironmentUnfitError as error:
        _say(str(error))
        return 3
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"rabbitmq: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
