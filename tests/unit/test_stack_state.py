import os
from pathlib import Path

import pytest

from stack.errors import EnvironmentUnfitError
from stack.identity import Identity, identify
from stack.state import SECRETS_FILE, FolderLock, ProcessRecord, StateFile


def never(text: str) -> None:
    raise AssertionError(text)


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
    home = tmp_path / "server"
    assert StateFile(tmp_path).secret("password", "one", beside=home, in_use=False) == "one"
    assert StateFile(tmp_path).secret("password", "two", beside=home, in_use=True) == "one"
    assert (home / SECRETS_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_secret_whose_state_is_lost_comes_back_from_beside_what_it_opens(tmp_path: Path, lost: str) -> None:
    home = tmp_path / "server"
    file = StateFile(tmp_path)
    file.secret("password", "one", beside=home, in_use=False)
    file.secret("cookie", "crumb", beside=home, in_use=False)
    if lost == "gone":
        file.path.unlink()
    else:
        file.path.write_bytes(b"")
    assert StateFile(tmp_path).secret("password", "two", beside=home, in_use=True) == "one"
    assert StateFile(tmp_path).secret("cookie", "two", beside=home, in_use=True) == "crumb"
    assert StateFile(tmp_path).load().secrets == {"password": "one", "cookie": "crumb"}


def test_a_secret_that_only_the_state_has_is_copied_beside_what_it_opens(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.change(secrets={"password": "one"})
    file.secret("password", "two", beside=tmp_path / "server", in_use=True)
    file.path.unlink()
    assert StateFile(tmp_path).secret("password", "two", beside=tmp_path / "server", in_use=True) == "one"


def test_no_new_secret_is_made_beside_data_that_another_one_opens(tmp_path: Path) -> None:
    home = tmp_path / "server"
    with pytest.raises(EnvironmentUnfitError, match=f"password of the data in {home} is missing"):
        StateFile(tmp_path).secret("password", "new", beside=home, in_use=True)
    assert not home.exists()
    assert StateFile(tmp_path).read() is None


@pytest.mark.parametrize("text", ["{}", "[]", '{"version": 99}', '{"version": 1, "launcher": null}'])
def test_a_state_of_another_version_is_refused_with_a_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "stack.json").write_text(text)
    with pytest.raises(EnvironmentUnfitError, match="--data"):
        StateFile(tmp_path).read()


def test_a_state_that_cannot_be_written_is_said_without_one_that_is_held(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    (tmp_path / "stack.new").mkdir()  # nothing can be written in its place, also by root
    with pytest.raises(EnvironmentUnfitError, match="--data"):
        file.change(ready=True)
    with pytest.raises(EnvironmentUnfitError, match="--data"):
        file.hold(never)
    assert not file.held


def test_a_held_state_outlives_a_file_that_cannot_be_written_and_is_written_later(tmp_path: Path) -> None:
    file, told = StateFile(tmp_path), list[str]()
    file.hold(told.append, ready=True)
    blocked = tmp_path / "stack.new"
    blocked.mkdir()
    file.record(ProcessRecord("api", Identity(1, "a")))
    file.record(ProcessRecord("relay", Identity(2, "b")))
    assert [record.name for record in file.load().processes] == ["api", "relay"]
    assert StateFile(tmp_path).load().processes == ()
    assert len(told) == 1
    assert "cannot be written" in told[0]
    blocked.rmdir()
    file.change(url="http://x")
    assert StateFile(tmp_path).load() == file.load()
    assert len(told) == 2
    assert "written again" in told[1]


@pytest.mark.parametrize("harm", ["gone", "emptied", "replaced"])
def test_a_held_state_is_written_again_when_its_file_is_not_ours_any_more(tmp_path: Path, harm: str) -> None:
    file, told = StateFile(tmp_path), list[str]()
    held = file.hold(told.append, ports={"s3": 12000})
    file.keep()
    assert told == []
    if harm == "gone":
        file.path.unlink()
    elif harm == "emptied":
        file.path.write_bytes(b"")
    else:
        file.path.unlink()
        StateFile(tmp_path).change()
    assert file.load() == held
    file.keep()
    assert StateFile(tmp_path).load() == held
    assert len(told) == 1


def test_a_state_that_is_held_no_more_is_read_from_its_file(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.hold(never, ready=True)
    file.drop()
    file.path.unlink()
    file.keep()
    assert file.read() is None


@pytest.mark.parametrize("place", ["file", "below a file"])
def test_a_place_that_cannot_be_a_folder_is_refused_with_a_way_out(tmp_path: Path, place: str) -> None:
    path = tmp_path / "file"
    path.touch()
    folder = path if place == "file" else path / "data"
    with pytest.raises(EnvironmentUnfitError, match="--data"):
        StateFile(folder).read()
    with pytest.raises(EnvironmentUnfitError, match="--data"):
        StateFile(folder).change()
    with pytest.raises(EnvironmentUnfitError, match="--data"):
        FolderLock(folder).acquire()


def test_a_folder_is_locked_for_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_a_lock_tells_who_holds_it_as_long_as_that_process_lives(tmp_path: Path) -> None:
    lock, own = FolderLock(tmp_path), identify(os.getpid())
    assert FolderLock(tmp_path).holder() is None
    assert lock.acquire()
    assert FolderLock(tmp_path).holder() is None
    lock.sign(own)
    assert FolderLock(tmp_path).holder() == own
    lock.sign(Identity(own.pid, "another boot"))
    assert FolderLock(tmp_path).holder() is None
    lock.release()
