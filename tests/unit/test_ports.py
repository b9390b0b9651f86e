import os
import random
import socket
from pathlib import Path

import pytest

from stack.ports import LOOPBACK, PORTS, free_port, is_free, settle_ports, weed_sockets

OUTGOING_RANGE_START = 32_768


@pytest.fixture
def rng() -> random.Random:
    return random.SystemRandom()


def test_ports_lie_below_the_range_of_outgoing_connections(rng: random.Random) -> None:
    assert max(PORTS) < OUTGOING_RANGE_START
    assert free_port((), rng) in PORTS


def test_a_port_with_a_listener_is_not_free(rng: random.Random) -> None:
    port = free_port((), rng)
    assert is_free(port)
    with socket.create_server((LOOPBACK, port)):
        assert not is_free(port)


def test_a_port_whose_connections_were_just_closed_is_free(rng: random.Random) -> None:
    port = free_port((), rng)
    with socket.create_server((LOOPBACK, port)) as listener:
        client = socket.create_connection((LOOPBACK, port))
        server_side, _ = listener.accept()
        server_side.close()  # the side that closes first keeps the port in TIME-WAIT
        client.close()
    assert is_free(port)


def test_kept_ports_stay_and_only_taken_ones_change(rng: random.Random) -> None:
    first = settle_ports({}, ["a", "b", "c"], rng=rng)
    assert len(set(first.values())) == 3
    with socket.create_server((LOOPBACK, first["b"])):
        second = settle_ports(first, ["a", "b", "c"], rng=rng)
    assert (second["a"], second["c"]) == (first["a"], first["c"])
    assert second["b"] not in first.values()


def test_ports_of_names_not_asked_for_are_kept_though_their_servers_listen(rng: random.Random) -> None:
    kept = settle_ports({}, ["running"], rng=rng)
    with socket.create_server((LOOPBACK, kept["running"])):
        ports = settle_ports(kept, ["new"], rng=rng)
    assert ports["running"] == kept["running"]
    assert ports["new"] != kept["running"]


def test_names_are_never_given_the_same_port(rng: random.Random) -> None:
    ports = settle_ports({}, [f"p{number}" for number in range(60)], rng=rng)
    assert len(set(ports.values())) == 60


def test_socket_files_of_an_s3_node_are_named_by_its_grpc_port() -> None:
    assert Path(os.sep, "tmp", "seaweedfs-master-grpc-12345.sock") in weed_sockets(12345)
