"""A wall clock of a machine's own, by libfaketime: its processes see it step, nobody else does.

Monotonic clocks go on as they are, as they do when an administrator or NTP sets a clock.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from resilience.errors import TargetError

LIBRARY: Final = "faketime/libfaketimeMT.so.1"
"""The one for programs with threads."""
SLEEP: Final = Path(__file__).with_name("monotonic_sleep.c")
COMPILER: Final = "cc"
COMPILE_SECONDS: Final = 60


def _library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob(f"*/{LIBRARY}"))), None)


def missing() -> str:
    """Return why there can be no such clock here; empty if there can."""
    if _library() is None:
        return "no libfaketime (Debian: apt install libfaketime)"
    return "" if shutil.which(COMPILER) else "no C compiler (Debian: apt install gcc libc6-dev)"


class MachineClock:
    """One clock.

    Args:
        file: Says how far it is from the machine's; the processes look at it at each call.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._sleep = file.with_name(f"{file.name}-sleep.so")

    def start(self) -> None:
        """Set it right.

        Raises:
            TargetError: The library that processes are to load does not compile.
        """
        words = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(self._sleep), str(SLEEP), "-ldl"]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
        if done.returncode:
            raise TargetError(f"{' '.join(words)}: {done.stderr.strip()}")
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """Step to so many seconds ahead of the machine's clock, or behind it."""
        # Replaced at once: a program that finds it empty takes the right time for a moment.
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+f}\n", encoding="ascii")
        new.replace(self._file)

    def prefix(self) -> list[str]:
        """Return the beginning of a command that is to run with this clock."""
        return [
            "/usr/bin/env",
            f"LD_PRELOAD={self._sleep}:{_library()}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            # Else waits until a time of the monotonic clock end at once: Java turns in circles.
            "FAKETIME_FORCE_MONOTONIC_FIX=0",
        ]
