"""An archive of the classes that Spark loads: with it the JVM starts with half the work.

Reading and checking some 20,000 classes is most of what the start of Spark costs. Java can write
them to a file when it ends in order and map that file at its next start (JEP 350). So the first run
that ends in order writes the archive, for its Java and its class path; all others use it.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqlake.status import start_ticks

SECONDS: Final = 60.0
"""Longest that Java takes to write it: five on two processors that have nothing else to do, more
than twenty on busy ones. Without it every later start and every end takes longer."""
_SUFFIX: Final = ".jsa"
_UNFINISHED: Final = ".tmp"
"""Behind the number of the process whose JVM writes it."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one class path.

    Attributes:
        path: Where it is, once it was written.
    """

    path: Path

    @classmethod
    def of(cls, folder: Path, java: str, class_path: list[str]) -> "ClassArchive | None":
        """Return the archive for a Java and a class path; None where no file can be written.

        Java itself refuses one that does not fit, and goes on without it.
        """
        if not os.access(folder, os.W_OK):
            return None
        parts = [os.path.realpath(java), *class_path]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        return cls(folder / f"classes-{digest}{_SUFFIX}")

    @property
    def is_written(self) -> bool:
        return self.path.is_file()

    @property
    def _unfinished(self) -> Path:
        return self.path.with_suffix(f".{os.getpid()}{_UNFINISHED}")

    def options(self) -> list[str]:
        """Return the options of a JVM that uses the archive, or writes it."""
        # What does not fit is said at each start, in words that nobody but us could act upon.
        quiet = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]
        if self.is_written:
            return [*quiet, f"-XX:SharedArchiveFile={self.path}"]
        return [*quiet, f"-XX:ArchiveClassesAtExit={self._unfinished}"]

    def keep(self, *, ended_in_order: bool) -> None:
        """Take what a JVM has written that has ended, and remove what others have left."""
        if ended_in_order and self._unfinished.is_file():
            for old in self.path.parent.glob(f"classes-*{_SUFFIX}"):
                old.unlink(missing_ok=True)
            self._unfinished.replace(self.path)
        for left in self.path.parent.glob(f"classes-*{_UNFINISHED}"):
            pid = int(left.stem.rpartition(".")[2])
            if left == self._unfinished or start_ticks(pid) is None:
                left.unlink(missing_ok=True)
