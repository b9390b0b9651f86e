from pathlib import Path

from stack.account import Account, closed_folders


def test_folders_that_others_may_not_pass_are_found_on_the_whole_way(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "open" / "file"
    inner.parent.mkdir(parents=True)
    inner.parent.chmod(0o755)
    inner.parent.parent.chmod(0o700)
    assert inner.parent.parent in closed_folders([inner])
    assert inner.parent not in closed_folders([inner])


def test_the_way_behind_a_link_counts_too(tmp_path: Path) -> None:
    target = tmp_path / "closed" / "program"
    target.parent.mkdir()
    target.write_text("")
    target.parent.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(target)
    assert target.parent in closed_folders([link])


def test_a_folder_that_is_not_there_yet_is_not_closed(tmp_path: Path) -> None:
    assert tmp_path / "none" not in closed_folders([tmp_path / "none" / "file"])


def test_without_setpriv_the_command_is_unchanged() -> None:
    assert Account().command(["prog", "-x"], death_signal="KILL") == ["prog", "-x"]


def test_an_ordinary_user_only_asks_for_the_death_signal() -> None:
    command = Account(setpriv="/bin/setpriv").command(["prog"], death_signal="QUIT")
    assert command == ["/bin/setpriv", "--pdeathsig=QUIT", "--", "prog"]


def test_root_steps_down_and_takes_the_reading_capability_only_where_a_folder_is_closed() -> None:
    plain = Account("nobody", 65534, 65534, None, "/bin/setpriv").command(["prog"], death_signal="KILL")
    assert "--reuid=65534" in plain
    assert "--clear-groups" in plain
    assert not [part for part in plain if "caps" in part]
    closed = Account("nobody", 65534, 65534, "dac_read_search", "/bin/setpriv").command(["prog"], death_signal="KILL")
    assert "--ambient-caps=+dac_read_search" in closed


def test_a_secret_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    Account().write_secret(path, "one")
    Account().write_secret(path, "two")
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
