import random
import socket
from pathlib import Path

import pytest

from stack.ports import LOOPBACK, free_port, remove_weed_sockets, settle_ports, weed_sockets


@pytest.fixture
def rng() -> random.Random:
    return random.SystemRandom()


@pytest.fixture
def port(rng: random.Random) -> int:
    return free_port((), rng)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(path))


def test_a_kept_port_that_somebody_else_of_the_stack_was_given_since_is_not_used_again(
    rng: random.Random, port: int
) -> None:
    ports = settle_ports({"s3": port, "api": port}, ["s3", "rabbit"], rng=rng)
    assert ports["api"] == port
    assert len({ports["api"], ports["s3"], ports["rabbit"]}) == 3


def test_socket_files_of_our_ports_go_and_those_of_others_stay(rng: random.Random, port: int) -> None:
    other = free_port([port], rng)
    ours, foreign = weed_sockets(port), weed_sockets(other)
    try:
        for path in [*ours, *foreign]:
            make_socket(path)
        remove_weed_sockets({"s3_grpc": port, "relay": other}, ["s3_grpc", "s3_filer_grpc"])
        assert not any(path.exists() for path in ours)
        assert all(path.exists() for path in foreign)
    finally:
        for path in [*ours, *foreign]:
            path.unlink(missing_ok=True)


def test_a_socket_file_stays_while_somebody_listens_on_its_port(port: int) -> None:
    path = weed_sockets(port)[0]
    try:
        make_socket(path)
        with socket.create_server((LOOPBACK, port)):
            remove_weed_sockets({"s3_grpc": port}, ["s3_grpc"])
            assert path.exists()
        remove_weed_sockets({"s3_grpc": port}, ["s3_grpc"])
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)
