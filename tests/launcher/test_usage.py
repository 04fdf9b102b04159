import os
import subprocess
import sys

import pytest

from launcher.supervision.usage import members_of_sessions, own_usage, usage_of_sessions

pytestmark = pytest.mark.programs


def test_session_counts_all_its_processes() -> None:
    script = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=sys.stdin); "
        "print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        assert set(members_of_sessions({leader.pid})) == {leader.pid, child}
        usage = usage_of_sessions({leader.pid})[leader.pid]
        assert usage.rss_bytes > 2e6
        leader.communicate("\n", timeout=60)
    assert members_of_sessions({leader.pid}) == []


def test_one_that_only_awaits_reaping_is_no_member() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as leader:
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        assert os.getsid(leader.pid) == leader.pid
        assert members_of_sessions({leader.pid}) == []


def test_own_usage_is_that_of_this_process() -> None:
    usage = own_usage()
    assert usage.rss_bytes > 5e6
    assert usage.cpu_seconds > 0
    assert os.getpid() > 0
