import random
import socket
import subprocess
import sys

import pytest

from launcher.ports import claim, consecutive_free_ports, free_ports, is_free

pytestmark = pytest.mark.programs


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
    monkeypatch.setattr(random, "sample", lambda choice, count: reversed(choice[-count:]))
    assert consecutive_free_ports(20) + 20 <= 32_768


def test_consecutive_ports_keep_no_claim_of_those_that_were_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = int(printed("print(consecutive_free_ports(2))"))  # free again
    assert claim(first + 1)
    monkeypatch.setattr(random, "sample", lambda choice, count: [first])
    with pytest.raises(OSError, match="found no 2 free ports"):
        consecutive_free_ports(2)
    assert claim(first)


def printed(program: str) -> str:
    names = "claim, consecutive_free_ports, free_ports"
    command = [sys.executable, "-c", f"from launcher.ports import {names}; {program}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_a_process_has_chosen_is_nobody_elses_until_it_ends() -> None:
    (here,) = free_ports(1)
    assert is_free(here)
    assert not claim(here)
    assert printed(f"print(claim({here}))") == "False\n"
    there = int(printed("print(*free_ports(1))"))
    assert claim(there)
