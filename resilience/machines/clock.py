"""Clocks of a machine's own: only its processes see them step or stand still.

The wall clock is libfaketime's; when it is set, monotonic clocks go on as they are. Those stand
still while the machine is frozen, as if it were suspended, or stopped by its hypervisor. The kernel
has no such thing for some processes (the offsets of a time namespace are fixed before the first one
enters it), so a library tells the time to programs that ask the C library.
"""

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from resilience.errors import TargetError

LIBRARY: Final = "faketime/libfaketimeMT.so.1"
"""The one for programs with threads."""
MONOTONIC: Final = Path(__file__).with_name("monotonic.c")
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
        file: Says how far the wall clock is from the machine's; the processes look at it at each
            call, and at a second file for how long they have been frozen.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._monotonic = file.with_name(f"{file.name}-monotonic.so")
        self._standstill = file.with_name(f"{file.name}-standstill")
        self._held_ns = 0

    def start(self) -> None:
        """Set it right.

        Raises:
            TargetError: The library that processes are to load does not compile.
        """
        library, source = str(self._monotonic), str(MONOTONIC)
        words = [COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
        if done.returncode:
            raise TargetError(f"{' '.join(words)}: {done.stderr.strip()}")
        self.set(0.0)
        self._standstill.write_bytes(struct.pack("q", self._held_ns))

    def set(self, seconds: float) -> None:
        """Step to `seconds` ahead of the machine's clock, or behind it."""
        # Replaced at once: a program that finds it empty takes the right time for a moment.
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+f}\n", encoding="ascii")
        new.replace(self._file)

    def hold(self, seconds: float) -> None:
        """Take `seconds` off the monotonic clocks of processes that are all stopped."""
        self._held_ns += round(seconds * 1e9)
        with self._standstill.open("r+b") as file:  # mapped by the processes: the same file
            file.write(struct.pack("q", self._held_ns))

    def prefix(self) -> list[str]:
        """Return the beginning of a command that is to run with this clock."""
        return [
            "/usr/bin/env",
            f"LD_PRELOAD={self._monotonic}:{_library()}",
            f"STANDSTILL_FILE={self._standstill}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            # Else waits until a time of the monotonic clock end at once: Java turns in circles.
            "FAKETIME_FORCE_MONOTONIC_FIX=0",
        ]
