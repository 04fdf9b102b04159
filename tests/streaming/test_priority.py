"""Giving way to others, for good and for a while, by real processes."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity"), reason="niceness of threads is a matter of Linux"
    ),
]

_PROGRAM = """
import json, os, resource, subprocess, sys, threading
from streaming.priority import give_way_for_a_while

user, seconds, end_it = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "end"
os.setpriority(os.PRIO_PROCESS, 0, 2)
if user:
    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
    os.setuid(user)
told = {}
end = give_way_for_a_while(7, seconds)
asked = threading.Event()
seen = []
def look():
    asked.wait()
    seen.append(os.getpriority(os.PRIO_PROCESS, 0))
thread = threading.Thread(target=look)
thread.start()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
told["meanwhile"] = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, child.pid)]
if end_it:
    end()
    end()
else:
    while os.getpriority(os.PRIO_PROCESS, 0) == told["meanwhile"][0]:
        os.sched_yield()
    end()
asked.set()
thread.join()
told["after"] = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, child.pid)] + seen
try:
    told["group"] = open("/proc/self/autogroup").read().split()[-1]
except OSError:
    told["group"] = "0"
child.communicate()
print(json.dumps(told))
"""


def run(user: int, seconds: float, end: str) -> dict[str, Any]:
    output = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(user), str(seconds), end],
        start_new_session=True,
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ).stdout
    told: dict[str, Any] = json.loads(output)
    return told


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may lower niceness again")


@needs_root
def test_all_threads_and_children_give_way_until_it_is_over() -> None:
    told = run(0, 60.0, "end")
    assert told["meanwhile"] == [9, 9]
    assert told["after"] == [2, 2, 2]
    assert told["group"] == "0"


@needs_root
def test_it_is_over_after_its_time() -> None:
    told = run(0, 0.2, "wait")
    assert told["meanwhile"] == [9, 9]
    assert told["after"] == [2, 2, 2]


@needs_root
def test_who_could_not_undo_it_keeps_its_niceness() -> None:
    told = run(65534, 60.0, "end")
    assert told["meanwhile"] == [2, 2]
    assert told["after"] == [2, 2, 2]
    assert told["group"] == "0"
