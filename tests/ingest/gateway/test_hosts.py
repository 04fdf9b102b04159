"""Which processes of a machine are gone for certain."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.gateway.peers.hosts import LinuxHost

pytestmark = pytest.mark.programs


def test_this_process_is_there() -> None:
    host = LinuxHost()
    assert host.identity
    assert not LinuxHost().is_gone(host.identity)


def test_a_process_that_has_ended_is_gone_also_before_its_parent_asks() -> None:
    place = LinuxHost().identity.rsplit("/", 2)[0]
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        started_at = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        identity = f"{place}/{process.pid}/{started_at}"
        assert not LinuxHost().is_gone(identity)
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert LinuxHost().is_gone(identity)
    assert LinuxHost().is_gone(identity)


def test_a_process_that_is_hidden_is_there_until_it_has_ended(tmp_path: Path) -> None:
    host = LinuxHost(processes=tmp_path)
    place = host.identity.rsplit("/", 2)[0]
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        identity = f"{place}/{process.pid}/1"
        assert not host.is_gone(identity)
    assert host.is_gone(identity)
    assert host.is_gone(f"{place}/{2**70}/1"), "there is no such number"


def test_another_process_under_the_same_pid_does_not_keep_it_there() -> None:
    place, pid, _ = LinuxHost().identity.rsplit("/", 2)
    assert LinuxHost().is_gone(f"{place}/{pid}/1")


def test_of_another_machine_nobody_knows() -> None:
    for identity in ("", "?", "other/pid:[1]/1/1", "a/b"):
        assert not LinuxHost().is_gone(identity)
