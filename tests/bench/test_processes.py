import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.systems.processes import cpu_percent_of, thread_seconds_of, usage_of

pytestmark = pytest.mark.programs

# Says that it runs, then waits for the end of its input; with an argument it first starts another.
PROGRAM = """
import subprocess, sys
if len(sys.argv) > 1:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=sys.stdin)
ballast = bytearray(30 * 1024 * 1024)
sys.stdout.write("x\\n")
sys.stdout.flush()
if len(sys.argv) > 1:
    child.wait()
sys.stdin.read()
"""


@contextmanager
def _running(*arguments: str, says: int) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(says):
            process.stdout.readline()
        yield process.pid
        process.stdin.close()


def test_a_child_process_counts_with_its_parent() -> None:
    with _running(says=1) as alone, _running(PROGRAM, says=2) as family:
        usage = usage_of({"alone": alone, "family": family})
    assert usage["alone"].resident_mib > 30
    assert usage["family"].resident_mib > usage["alone"].resident_mib + 30


def test_a_parent_of_named_processes_counts_alone() -> None:
    with _running(says=1) as child:
        usage = usage_of({"supervisor": os.getpid(), "child": child})
        own = usage_of({"supervisor": os.getpid(), "child": child})["supervisor"]
    assert usage["child"].resident_mib > 30
    assert abs(own.resident_mib - usage["supervisor"].resident_mib) < 5


def test_a_process_that_waits_uses_no_processor_time() -> None:
    with _running(says=1) as idle:
        assert cpu_percent_of({"idle": idle}, 0.1)["idle"] < 50


def test_threads_are_known_by_their_names() -> None:
    name = Path(f"/proc/self/task/{os.getpid()}/comm").read_text(encoding="utf-8").strip()
    assert thread_seconds_of(os.getpid())[name] > 0
