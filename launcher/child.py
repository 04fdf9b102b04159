"""One child process of the supervisor, and everything that it started itself.

A child leads a session and process group of its own: Ctrl-C reaches the supervisor alone, and
processes that the child started (Spark's JVM) can be ended and measured with it. The kernel kills
it when the supervisor dies, however that happens.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_OUTPUT_BYTES: Final = 4 * 1024 * 1024
_GROUP_TIMEOUT_SECONDS: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc: Final = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """Program to run, its folder, and the time in which it has to stop."""

    name: str
    command: tuple[str, ...]
    directory: Path
    environment: dict[str, str]
    output: Path
    """Takes its standard output and error."""
    log: Path
    """Takes its log."""
    stop_timeout_seconds: float


class Child:
    """A running program. Must be made and used by one thread, the one that lives longest."""

    def __init__(self, program: ChildProgram) -> None:
        self.program = program
        self._output_start = _rotate(program.output)
        supervisor = os.getpid()

        def before_exec() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            die_with_parent()
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(1)

        with program.output.open("ab") as output:
            self._process = subprocess.Popen(
                program.command,
                cwd=program.directory,
                env=program.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        self.pid = self._process.pid
        self.started_at = time.monotonic()

    def exit_reason(self) -> str | None:
        """Return why it ended, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            return f"signal {-code} ({signal.Signals(-code).name})"
        words = self._last_words()
        return f"exit code {code}: {words}" if words else f"exit code {code}"

    def terminate(self) -> None:
        """Ask it to stop; it ends its own children in its own order."""
        self._process.terminate()

    def kill_group(self) -> None:
        """Kill the rest of it and its children, and wait until they are gone."""
        deadline = time.monotonic() + _GROUP_TIMEOUT_SECONDS
        while True:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                break
            self._process.poll()
            # Its orphans are ours to reap, see `adopt_orphans`; zombies still form a group.
            with contextlib.suppress(ChildProcessError):
                while self._process.returncode is not None and os.waitpid(-self.pid, os.WNOHANG)[0]:
                    pass
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self._process.wait()

    def _last_words(self) -> str:
        """Return the last line it wrote in this run, to its output or else to its log."""
        try:
            with self.program.output.open("rb") as output:
                output.seek(self._output_start)
                lines = _lines(output.read()[-65536:])
            if not lines and self.program.log.stat().st_mtime >= time.time() - 60:
                lines = _lines(self.program.log.read_bytes()[-65536:])
        except OSError:
            return ""
        return lines[-1][:300] if lines else ""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that they can be reaped."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _rotate(output: Path) -> int:
    """Keep a file of earlier output from growing for ever; return where new output will begin."""
    try:
        size = output.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= MAX_OUTPUT_BYTES:
        return size
    output.replace(output.with_name(output.name + ".1"))
    return 0


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
