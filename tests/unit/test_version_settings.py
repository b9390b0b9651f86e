"""What a worker serves and how long replaced results are kept: read from the environment's texts, refused by name."""

import pytest
from pydantic import ValidationError

from app.api.master import environment_of
from app.core.settings import PREFIX, Settings
from contracts.images import TransformParams, pipeline_digest
from contracts.messages import PIPELINE_VERSION


@pytest.mark.parametrize(
    ("text", "served"), [("", (PIPELINE_VERSION,)), ("2", (2,)), ("3, 1,3", (1, 3)), ("1 2", (1, 2))]
)
def test_a_worker_serves_the_versions_that_are_named(
    monkeypatch: pytest.MonkeyPatch, text: str, served: tuple[int, ...]
) -> None:
    monkeypatch.setenv(f"{PREFIX}WORKER_PIPELINE_VERSIONS", text)
    settings = Settings()
    assert settings.served_versions == served
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings, "a child process is told the same"


@pytest.mark.parametrize("text", ["0", "one", "1.5", "-1"])
def test_what_is_no_version_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(f"{PREFIX}WORKER_PIPELINE_VERSIONS", text)
    with pytest.raises(ValidationError, match="worker_pipeline_versions"):
        Settings()


def test_replaced_results_outlive_every_link_to_them() -> None:
    settings = Settings(result_link_s=100, result_link_window_s=20)
    assert settings.superseded_s == 120
    assert Settings(result_link_s=100, result_link_window_s=20, superseded_keep_s=300).superseded_s == 300
    with pytest.raises(ValidationError, match=f"{PREFIX}SUPERSEDED_KEEP_S"):
        Settings(result_link_s=100, result_link_window_s=20, superseded_keep_s=119)


def test_another_pipeline_version_has_other_keys() -> None:
    params = TransformParams()
    digests = {pipeline_digest(params, libvips_version="8.18", pipeline_version=version) for version in (1, 2)}
    assert len(digests) == 2
