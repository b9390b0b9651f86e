"""requirements.lock pins what pyproject.toml asks for; its hashes and addresses are a rule of `tidy`."""

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo.tidy.documents import REQUIREMENT, loose_lock
from tests.repo.tidy.sources import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = {canonicalize_name(match["name"]): match["version"] for match in REQUIREMENT.finditer(LOCK)}
DIRECT = [*PROJECT["dependencies"], *(name for extra in PROJECT["optional-dependencies"].values() for name in extra)]


@pytest.mark.parametrize("line", DIRECT)
def test_a_direct_dependency_is_locked_at_a_version_that_it_allows(line: str) -> None:
    wanted = Requirement(line)
    version = PINNED[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(version, prereleases=True)


def test_the_lock_has_hashes_and_no_addresses() -> None:
    assert list(loose_lock("requirements.lock", LOCK)) == []
    assert len(PINNED) > len(DIRECT)


def test_the_build_backend_is_locked_since_the_project_is_built_without_isolation() -> None:
    assert {"hatchling", "editables"} <= PINNED.keys()
