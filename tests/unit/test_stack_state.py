from pathlib import Path

import pytest

from stack.errors import EnvironmentUnfitError
from stack.identity import Identity
from stack.state import FolderLock, ProcessRecord, StateFile


def test_a_state_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "data")
    assert file.read() is None
    first = file.change(ports={"s3": 12000}, launcher=Identity(7, "boot/1"), ready=True)
    file.record(ProcessRecord("s3", Identity(9, "boot/2"), 12000))
    again = StateFile(tmp_path / "data").load()
    assert again.stack_id == first.stack_id
    assert again.launcher == Identity(7, "boot/1")
    assert again.processes == (ProcessRecord("s3", Identity(9, "boot/2"), 12000),)


def test_the_state_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.change()
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["stack.json"]


def test_a_process_replaces_an_earlier_one_of_its_name(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.record(ProcessRecord("api", Identity(1, "a")))
    file.record(ProcessRecord("api", Identity(2, "b")))
    file.record(ProcessRecord("relay", Identity(3, "c")))
    file.forget("relay")
    assert file.load().processes == (ProcessRecord("api", Identity(2, "b")),)


def test_a_secret_is_made_once_and_kept(tmp_path: Path) -> None:
    assert StateFile(tmp_path).secret("password", "one") == "one"
    assert StateFile(tmp_path).secret("password", "two") == "one"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 99}', '{"version": 1, "launcher": null}'])
def test_a_state_of_another_version_is_refused_with_a_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "stack.json").write_text(text)
    with pytest.raises(EnvironmentUnfitError, match="--data"):
        StateFile(tmp_path).read()


def test_a_folder_is_locked_for_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
