import subprocess
from pathlib import Path

from stack.rabbit_fetch import find_epmd, find_in_tree, patch_erl

ERL = """#!/bin/sh
if [ -z "$ERL_ROOTDIR" ]
then
    ROOTDIR=/usr/lib/erlang
else
    ROOTDIR=/usr/lib/erlang
fi
BINDIR="$ROOTDIR/erts-13.1.5/bin"
echo "$BINDIR"
"""


def unpacked(tree: Path, *versions: str) -> Path:
    """Lay out a tree as packages do and return its Erlang's folder."""
    for version in versions:
        sbin = tree / f"usr/lib/rabbitmq/lib/rabbitmq_server-{version}/sbin"
        sbin.mkdir(parents=True)
        for name in ("rabbitmq-server", "rabbitmq-env"):
            (sbin / name).touch()
    erlang_bin = tree / "usr/lib/erlang/bin"
    (tree / "usr/lib/erlang/erts-13.1.5/bin").mkdir(parents=True)
    (tree / "usr/lib/erlang/erts-13.1.5/bin/epmd").touch()
    erlang_bin.mkdir()
    (erlang_bin / "erl").write_text(ERL)
    return erlang_bin


def test_nothing_is_found_in_an_empty_tree(tmp_path: Path) -> None:
    assert find_in_tree(tmp_path) is None


def test_the_newest_version_of_an_unpacked_tree_is_found(tmp_path: Path) -> None:
    erlang_bin = unpacked(tmp_path, "3.9.13", "3.10.8", "4.0.5")
    found = find_in_tree(tmp_path)
    assert found is not None
    assert found.sbin.parent.name == "rabbitmq_server-4.0.5"
    assert found.erlang_bin == erlang_bin
    assert found.epmd.name == "epmd"
    assert found.env["ERL_ROOTDIR"] == str(tmp_path / "usr/lib/erlang")


def test_a_wrapper_without_its_environment_file_is_not_taken_for_the_server(tmp_path: Path) -> None:
    unpacked(tmp_path, "3.10.8")
    (tmp_path / "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin/rabbitmq-env").unlink()
    assert find_in_tree(tmp_path) is None


def test_epmd_is_looked_for_beside_erl_first(tmp_path: Path) -> None:
    erlang_bin = unpacked(tmp_path, "3.10.8")
    assert find_epmd(erlang_bin, "") == tmp_path / "usr/lib/erlang/erts-13.1.5/bin/epmd"
    (erlang_bin / "epmd").touch()
    assert find_epmd(erlang_bin, "") == erlang_bin / "epmd"


def test_a_patched_erl_lives_where_it_is_told_to(tmp_path: Path) -> None:
    erlang_bin = unpacked(tmp_path, "3.10.8")
    patch_erl(erlang_bin)
    command = ["/bin/sh", str(erlang_bin / "erl")]
    moved = subprocess.check_output(command, env={"ERL_ROOTDIR": "/elsewhere"}, text=True)
    assert moved.strip() == "/elsewhere/erts-13.1.5/bin"
    assert subprocess.check_output(command, env={}, text=True).strip() == "/usr/lib/erlang/erts-13.1.5/bin"
