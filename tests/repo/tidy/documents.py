"""Rules on every text of the repository: nothing of one machine, nothing secret, no dead links, a whole lock.

The patterns are written so that they do not match their own source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from tests.repo.tidy.sources import Finding

FORBIDDEN = {
    "registry-host": re.compile(
        r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|crates\.io|proxy\.golang\.org|rubygems\.org"
        r"|deb\.debian\.org|archive\.ubuntu\.com|docker\.io|ghcr\.io|quay\.io|conda\.anaconda\.org)\b"
    ),
    "machine-path": re.compile(r"(?<![\w.~/*-])/(?:(?:root|work)\b(?!\w)(?=/|\W|$)|(?:home|Users)/[\w.-]+)"),
    "secret": re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_\w{36}|\bglpat-[\w-]{20}"
        r"|\bxox[abprs]-[\w-]{10}|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\."
    ),
}
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)", re.MULTILINE)
ADDRESS = re.compile(r"://|--(?:extra-)?index-url|--find-links|--trusted-host| @ ")


def forbidden_text(path: str, text: str) -> Iterator[Finding]:
    """Yield names of package registries, paths of somebody's machine and secrets."""
    for number, line in enumerate(text.splitlines(), start=1):
        for rule, pattern in FORBIDDEN.items():
            match = pattern.search(line)
            if match:
                yield Finding(path, number, rule, f"`{match[0]}`")


def dead_link(path: str, text: str, exists: Callable[[str], bool]) -> Iterator[Finding]:
    """Yield links of a Markdown file to files of the repository that are not there."""
    prose = CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for match in LINK.finditer(prose):
        target = match["target"].split("#")[0]
        local = target and not re.match(r"[a-z]+:", target)
        if local and not exists((Path(path).parent / target).as_posix()):
            yield Finding(path, prose.count("\n", 0, match.start()) + 1, "dead-link", f"`{target}`")


def loose_lock(path: str, text: str) -> Iterator[Finding]:
    """Yield locked packages without a hash, and any address in the lock."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("#") and ADDRESS.search(line):
            yield Finding(path, number, "lock-address", line.strip())
    pins = list(REQUIREMENT.finditer(text))
    ends = [match.start() for match in pins[1:]] + [len(text)]
    for index, match in enumerate(pins):
        if "--hash=sha256:" not in text[match.start() : ends[index]]:
            yield Finding(path, text.count("\n", 0, match.start()) + 1, "lock-hash", f"{match['name']} has none")
