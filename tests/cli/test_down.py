"""`down`, with a process in the place of a system."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.system.down import command
from launcher.paths import DataDirectory

pytestmark = pytest.mark.programs

# Holds a data directory, as `up` does before it has told where the system is.
HOLDER = """
import fcntl, os, signal, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(f"{os.getpid()}\\n")
file.flush()
print("held", flush=True)
signal.pause()
"""


def test_a_system_that_prepares_its_start_is_stopped(tmp_path: Path) -> None:
    lock = DataDirectory(tmp_path).lock
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            done = CliRunner().invoke(command, ["--data-dir", str(tmp_path)])
            assert (done.exit_code, done.stderr) == (0, "stopped\n")
            assert holder.wait(60) == -15
        finally:
            holder.kill()


def test_the_lock_of_a_system_that_has_ended_stops_nobody(tmp_path: Path) -> None:
    DataDirectory(tmp_path).lock.write_text("1\n")
    done = CliRunner().invoke(command, ["--data-dir", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (0, f"no system runs on {tmp_path}\n")
