"""What is kept in the repository could be published as it is, and its documents lead somewhere."""

import pytest

from tests.repo.tidy.__main__ import document_findings
from tests.repo.tidy.sources import ROOT, repository_paths

FOUND = document_findings(ROOT)


@pytest.mark.parametrize("rule", ["registry-host", "machine-path", "secret", "dead-link", "lock-address", "lock-hash"])
def test_no_kept_text_breaks_the_rule(rule: str) -> None:
    assert [str(finding) for finding in FOUND if finding.rule == rule] == []


def test_no_run_or_data_folder_is_kept() -> None:
    debris = (".venv/", ".cache/", "data/", "bench-runs/", ".env")
    assert [path for path in repository_paths(ROOT) if path.startswith(debris) and path != ".env.example"] == []


def test_the_texts_were_looked_at() -> None:
    paths = repository_paths(ROOT)
    assert {"pyproject.toml", "requirements.lock", "Makefile", "README.md", "tests/repo/test_clean.py"} <= set(paths)
