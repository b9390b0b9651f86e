"""Under which user children run.

Invariant: a child is never root. Where we are root it becomes `nobody`; where the way to its files leads through
a folder closed to others (a clone under a home of mode 700), it gets the one capability that lets it read its way
through, instead of being left root. Nothing is copied and no folder's mode is changed.
"""

import os
import pwd
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stack.errors import EnvironmentUnfitError

#: The user must be in the user database: PostgreSQL refuses a bare number.
UNPRIVILEGED_USER = "nobody"

#: Linux capability numbers (capability.h), the weaker one first.
_CAPABILITIES = (("dac_read_search", 2), ("dac_override", 1))

_OTHERS_MAY_PASS = 0o001


@dataclass(frozen=True, slots=True)
class Account:
    """Whom children run as, and the tool that makes it so.

    `user` is None where they run as we do. `setpriv` (util-linux) is None where there is none, on macOS for one.
    """

    user: str | None = None
    uid: int = -1
    gid: int = -1
    capability: str | None = None
    setpriv: str | None = None

    def command(self, args: list[str], *, death_signal: str) -> list[str]:
        """Return the command that runs `args` as this account and dies with the thread that spawned it."""
        if self.setpriv is None:
            return args
        switch = [self.setpriv, f"--pdeathsig={death_signal}"]
        if self.user is not None:
            switch += [f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"]
        if self.capability is not None:
            switch += [f"--inh-caps=+{self.capability}", f"--ambient-caps=+{self.capability}"]
            # access(2), which Erlang asks before it writes, would otherwise leave the capability out of account.
            switch += ["--securebits=+no_setuid_fixup"]
        return [*switch, "--", *args]

    def give(self, path: Path) -> None:
        """Make this account the owner of one file or folder."""
        if self.user is not None:
            os.chown(path, self.uid, self.gid)

    def make_folder(self, path: Path, *, mode: int = 0o700) -> Path:
        """Return the folder, made when missing, owned by this account."""
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        self.give(path)
        return path

    def write_secret(self, path: Path, text: str) -> None:
        """Write a file that only this account (and root) can read."""
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        self.give(path)


def closed_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the folders on the way to these paths that other users may not pass through."""
    closed = set()
    for path in paths:
        for place in (path.absolute(), path.resolve()):
            closed |= {folder for folder in place.parents if not _open_to_others(folder)}
    return sorted(closed)


def choose_account(paths: Iterable[Path], *, search_path: str) -> Account:
    """Return the account for children that must reach all of `paths`.

    Raises:
        EnvironmentUnfitError: we are root and cannot step down, or a folder is closed and we may not open it.
    """
    setpriv = shutil.which("setpriv", path=search_path) if sys.platform == "linux" else None
    if os.geteuid() != 0:
        return Account(setpriv=setpriv)
    if setpriv is None:
        raise EnvironmentUnfitError(
            "Running as root needs `setpriv` (package util-linux), since PostgreSQL refuses root. "
            "Install it, or run as an ordinary user."
        )
    try:
        entry = pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError:
        raise EnvironmentUnfitError(f"Running as root needs the user `{UNPRIVILEGED_USER}`: add it.") from None
    capability = _capability_for(closed_folders(paths))
    return Account(UNPRIVILEGED_USER, entry.pw_uid, entry.pw_gid, capability, setpriv)


def _open_to_others(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & _OTHERS_MAY_PASS)
    except FileNotFoundError:
        return True


def _capability_for(closed: list[Path]) -> str | None:
    if not closed:
        return None
    held = _held_capabilities()
    for name, number in _CAPABILITIES:
        if held >> number & 1:
            return name
    raise EnvironmentUnfitError(
        f"The user `{UNPRIVILEGED_USER}` cannot pass through {closed[0]}: move the project or the data folder "
        f"(--data) elsewhere, run as an ordinary user, or `chmod o+x {closed[0]}`."
    )


def _held_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0
