"""URLs of servers that no client would take end the start by the variable's name, before anything is started."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.core.settings import Settings
from tests.repo.tidy.sources import ROOT


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("s3_endpoint_url", "127.0.0.1:9000"),
        ("s3_endpoint_url", "s3://127.0.0.1:9000"),
        ("s3_endpoint_url", "http://:9000"),
        ("s3_endpoint_url", "http://127.0.0.1:0"),
        ("s3_public_url", "//cdn.example"),
        ("s3_public_url", "https://"),
        ("database_url", "garbage"),
        ("database_url", "mysql://ann:hush-hush@db/spillway"),
        ("database_url", "postgresql://ann:hush-hush@/spillway"),
        ("database_url", "postgresql://ann:hush-hush/@db/spillway"),
        ("database_url", "postgresql://ann:hush-hush[@db/spillway"),
        ("database_listen_url", "http://ann:hush-hush@db/spillway"),
        ("broker_url", "garbage"),
        ("broker_url", "http://ann:hush-hush@broker/"),
        ("broker_url", "amqp://ann:hush-hush@/"),
        ("broker_url", "amqps://ann:hush-hush@broker:hush-hush/"),
    ],
)
def test_a_url_that_its_client_would_not_take_is_refused_by_name_and_without_its_password(
    setting: str, url: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({setting: url})
    assert f"SPILLWAY_{setting.upper()} " in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("s3_endpoint_url", "http://s3.example"),
        ("s3_public_url", "https://[::1]:9000/store"),
        ("database_url", "postgresql://ann:hush@db:5432/spillway?sslmode=require"),
        ("database_url", "postgresql://ann@one:5432,two:5433/spillway"),
        ("database_url", "postgresql:///spillway?host=/run/postgresql"),
        ("broker_url", "amqps://ann:hush@broker:5671/%2F"),
    ],
)
def test_a_url_that_its_client_takes_is_left_as_it_is(setting: str, url: str) -> None:
    found = getattr(Settings.model_validate({setting: url}), setting)
    assert url == (found if isinstance(found, str) else found.get_secret_value())


def test_both_names_of_the_databases_scheme_reach_the_migrations_as_one() -> None:
    settings = Settings.model_validate({"database_url": "postgres://ann@db/spillway"})
    assert settings.database_url.get_secret_value() == "postgresql://ann@db/spillway"


def test_settings_that_contradict_each_other_are_refused_without_a_password() -> None:
    secrets = {"s3_secret_key": "hush-hush", "broker_url": "amqp://ann:hush-hush@broker/"}
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({**secrets, "worker_concurrency": 3, "worker_prefetch": 2})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("command", [["up"], ["up", "--detach"]])
def test_a_stack_whose_settings_are_wrong_starts_no_server(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    ended = subprocess.run(
        [sys.executable, "-m", "stack.cli", *command, f"--data={folder}"],
        cwd=ROOT,
        env={"SPILLWAY_S3_ENDPOINT_URL": "127.0.0.1:9000"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "SPILLWAY_S3_ENDPOINT_URL" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not folder.exists()
