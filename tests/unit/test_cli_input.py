"""What is typed wrong is refused in words before anything is asked or sent, with the exit code of wrong use."""

import asyncio
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from app.core.settings import Settings
from stack.cli import app
from stack.cli_settings import unknown_variables, wrong_settings
from stack.cli_submit import target_url
from stack.errors import EnvironmentUnfitError
from stack.identity import Identity, identify
from stack.state import StateFile
from tests.scripted_server import Reply, scripted

#: A port that answers nobody would be asked; wrong use comes first.
ENV = {"SPILLWAY_DATABASE_URL": "postgresql://x@127.0.0.1:9/x", "SPILLWAY_TOKEN": "sesame", "COLUMNS": "300"}
WRONG_USE = 2


def run(*args: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and all that a command says, in one line; its own errors are no exceptions."""
    result = CliRunner(env={**ENV, **(env or {})}).invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(re.sub(r"[│╭╮╰╯─\n]", " ", result.output).split())


@pytest.fixture
def picture(tmp_path: Path) -> str:
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"a photo")
    return str(file)


@pytest.fixture
def silent() -> Iterator[str]:
    """Return an address that takes no connection and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("owner", ["", "x" * 201, "a\nb"])
def test_a_name_that_no_owner_can_have_is_refused(owner: str) -> None:
    code, said = run("token", "create", "--owner", owner)
    assert (code, "1 to 200 printable characters" in said) == (WRONG_USE, True)


@pytest.mark.parametrize("command", ["failed", "replay", "reprocess"])
def test_a_version_that_the_database_cannot_hold_is_refused(command: str) -> None:
    code, said = run("jobs", command, "--pipeline-version", "99999999999")
    assert (code, "2147483647" in said) == (WRONG_USE, True)


@pytest.mark.parametrize("command", [["status"], ["token", "list"], ["doctor"], ["down"], ["submit"]])
def test_a_file_is_no_folder_of_a_stack(command: list[str], picture: str) -> None:
    files = [picture] if command == ["submit"] else []
    code, said = run(*command, *files, "--data", picture)
    assert (code, "is a file" in said) == (WRONG_USE, True)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:99999", "Port out of range"),
        ("http://[::1", "is no address"),
        ("localhost:8080", "must begin with http://"),
        ("http://", "names no host"),
        ("http://a b", "names no host"),
        ("http://me:secret@127.0.0.1", "must name no user"),
    ],
)
def test_an_address_to_which_nothing_can_be_sent_is_refused(url: str, why: str, picture: str) -> None:
    by_option, by_variable = run("submit", picture, "--url", url), run("submit", picture, env={"SPILLWAY_URL": url})
    assert by_option == by_variable
    assert (by_option[0], why in by_option[1], "secret" in by_option[1]) == (WRONG_USE, True, False)


@pytest.mark.parametrize("token", ["é", "a b", "a\n"])
def test_a_token_that_cannot_be_sent_is_refused(token: str, picture: str) -> None:
    code, said = run("submit", picture, env={"SPILLWAY_TOKEN": token})
    assert (code, "SPILLWAY_TOKEN is no token" in said) == (WRONG_USE, True)


def test_results_that_cannot_be_saved_are_said_so_before_anything_is_sent(picture: str, silent: str) -> None:
    for folder in (picture, f"{picture}/in", "/proc/nowhere"):
        code, said = run("submit", picture, "--url", silent, "--save", folder)
        assert (code, folder in said, "unreachable" in said) == (WRONG_USE, True, False)


def test_an_address_that_is_not_given_is_that_of_the_running_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    variable, here = {"SPILLWAY_URL": "http://variable:1"}, "http://127.0.0.1:8099"
    assert target_url(None, None, {}) == "http://127.0.0.1:8080"
    StateFile(tmp_path / "data").change(launcher=identify(os.getpid()), url=here)
    assert target_url(None, None, {}) == here
    assert target_url(None, None, variable) == variable["SPILLWAY_URL"]
    assert target_url(None, Path("data"), variable) == here
    assert target_url("http://option:1", Path("data"), variable) == "http://option:1"
    StateFile(tmp_path / "data").change(launcher=Identity(os.getpid(), "another boot"))
    assert target_url(None, None, {}) == "http://127.0.0.1:8080"
    with pytest.raises(EnvironmentUnfitError, match="No stack runs in data"):
        target_url(None, Path("data"), variable)


async def test_the_address_and_what_was_answered_without_a_code_are_told(picture: str) -> None:
    refused = Reply(status=403, body=b"no problem document")
    async with scripted({"POST /api/v1/images": [refused]}) as script:
        code, said = await asyncio.to_thread(run, "submit", picture, "--url", script.url)
        assert code == 1
        assert said.startswith(f"to {script.url} ")
        assert "rejected" in said
        assert "the server answered 403 Said" in said


def test_each_wrong_setting_has_a_line_with_its_variable_and_no_link() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(
            {"worker_concurrency": 999, "s3_bucket": "a", "log_level": "x", "database_url": "http://u:secret@h"}
        )
    lines = wrong_settings(caught.value.errors(include_url=False, include_input=False))
    assert sorted(line.split(" must ")[0] for line in lines if " must " in line)[1:] == [
        "SPILLWAY_S3_BUCKET:",
        "SPILLWAY_WORKER_CONCURRENCY:",
    ]
    assert "SPILLWAY_WORKER_CONCURRENCY: must be less than or equal to 256" in lines
    assert len(lines) == 4
    assert "secret" not in "".join(lines)
    code, said = run("relay", env={"SPILLWAY_WORKER_CONCURRENCY": "999"})
    assert (code, "SPILLWAY_WORKER_CONCURRENCY: must be" in said, "https" in said) == (WRONG_USE, True, False)


def test_settings_that_contradict_each_other_are_one_line() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"worker_concurrency": 3, "worker_prefetch": 2})
    (line,) = wrong_settings(caught.value.errors(include_url=False))
    assert line.startswith("SPILLWAY_WORKER_PREFETCH must be at least SPILLWAY_WORKER_CONCURRENCY")


def test_variables_that_nobody_reads_are_named() -> None:
    names = ["SPILLWAY_API_PROT", "spillway_api_port", "SPILLWAY_API_PORT", "SPILLWAY_TOKEN", "SPILLWAY_STACK_ID"]
    names += ["SPILLWAY_URL", "SPILLWAY_COMPOSE_S3_PORT", "PATH"]
    assert unknown_variables(names, settings=Settings.model_fields) == ["SPILLWAY_API_PROT"]
    wrong = {"SPILLWAY_WORKER_CONCURRENCY": "999", "SPILLWAY_API_PROT": "1"}
    assert "nobody reads SPILLWAY_API_PROT" in run("relay", env=wrong)[1]
