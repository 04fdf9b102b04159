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
from streaming.engine.priority import give_way_for_a_while

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


_SETS = """
import encodings.ascii  # the user below may not read what is not loaded yet
import ctypes, json, os, resource, subprocess, sys, threading
from streaming.engine.priority import SessionPriority

user = int(sys.argv[1])
os.setpriority(os.PRIO_PROCESS, 0, 0)
if user:
    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
    os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: its files in /proc are its own, as after exec
group = None
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
priority = SessionPriority()
told = []
for niceness in (5, 0, -5, 3, 0):
    priority.set(niceness)
    if os.path.exists("/proc/self/autogroup"):
        # Empty where nobody began a session, as in a container
        group = (open("/proc/self/autogroup").read().split() or [None])[-1]
    told.append([*(os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, child.pid)), group])
child.communicate()
print(json.dumps({"told": told}))
"""


def run(
    user: int,
    *arguments: str,
    program: str = _PROGRAM,
    has_own_session: bool = True,
) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-c", program, str(user), *arguments],
        start_new_session=has_own_session,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may lower niceness again")


@needs_root
def test_all_threads_and_children_give_way_until_it_is_over() -> None:
    told = run(0, "60", "end")
    assert told["meanwhile"] == [9, 9]
    assert told["after"] == [2, 2, 2]
    assert told["group"] == "0"


@needs_root
def test_it_is_over_after_its_time() -> None:
    told = run(0, "0.2", "wait")
    assert told["meanwhile"] == [9, 9]
    assert told["after"] == [2, 2, 2]


@needs_root
def test_who_could_not_undo_it_keeps_its_niceness() -> None:
    told = run(65534, "60", "end")
    assert told["meanwhile"] == [2, 2]
    assert told["after"] == [2, 2, 2]
    assert told["group"] == "0"


_GROUPS = os.path.exists("/proc/self/autogroup")


def groups(*expected: int) -> list[str | None]:
    return [str(one) if _GROUPS else None for one in expected]


@needs_root
def test_root_sets_the_priority_of_all_threads_and_of_the_group() -> None:
    told = run(0, program=_SETS)["told"]
    assert [one[:2] for one in told] == [[5, 5], [0, 0], [-5, -5], [3, 3], [0, 0]]
    assert [one[2] for one in told] == groups(5, 0, -5, 3, 0)


@needs_root
def test_anybody_sets_that_of_the_group_and_comes_before_nobody() -> None:
    told = run(65534, program=_SETS)["told"]
    assert [one[:2] for one in told] == 5 * [[0, 0]]
    assert [one[2] for one in told] == groups(5, 0, 0, 3, 0)


@needs_root
def test_a_session_of_others_is_left_alone() -> None:
    told = run(0, program=_SETS, has_own_session=False)["told"]
    assert [one[:2] for one in told] == 5 * [[0, 0]]
