import random
import socket

import pytest

from mqlake.local.ports import consecutive_free_ports, free_ports, is_free


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not is_free(listener.getsockname()[1])


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_consecutive_ports_are_free() -> None:
    first = consecutive_free_ports(3)
    assert all(is_free(first + offset) for offset in range(3))


def test_consecutive_ports_are_below_those_of_outgoing_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "sample", lambda choice, count: choice[-count:])
    assert consecutive_free_ports(300) + 300 <= 32_768
