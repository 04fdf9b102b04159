"""An archive of the classes that a Java program loads: with it the JVM starts with half the work.

Reading and checking classes (Spark has some 20,000, Kafka 5,000) is most of the cost of a start.
Java can write them to a file and map that file at its next start (JEP 310, 350). So one run writes
the archive, for its Java and its class path; the next start takes it, and all use it from then on.
A program writes it when it ends in order, or while it runs, if it may stand still for a while; or
another JVM does, of the classes that it has, with ten times the work.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqlake.errors import OperationalError
from mqlake.processes.status import start_ticks
from streaming.jvm.attach import ask_jvm

SECONDS: Final = 60.0
"""Longest that Java may take to write it: five on two processors that have nothing else to do, more
than twenty on busy ones. Without it every later start and every end takes longer."""
_WRITING_SECONDS: Final = 600.0
"""Longest that a JVM may take to write it while it runs on: no start and no end waits for it."""
_SUFFIX: Final = ".jsa"
_UNFINISHED: Final = ".tmp"
"""Behind the number of the process whose JVM writes it, and which of its JVMs that is."""
# A class that does not fit is reported at each start, in words that only we could act upon.
_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
# At the address that it was written for: at another one Java changes each page of it as it maps it,
# so every JVM has a copy of its own of what they could share.
_SHARED: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one class path.

    Attributes:
        path: The archive, once it was written.
        unfinished: File that a JVM writes it to.
    """

    path: Path
    unfinished: Path

    @classmethod
    def of(
        cls, folder: Path, name: str, java: str, class_path: list[str], jvm: int = 0
    ) -> "ClassArchive | None":
        """Return the archive for a Java and a class path; None where no file can be written.

        Java itself refuses one that does not fit, and goes on without it.

        Args:
            folder: Folder of archives; made if it is missing and its parent is there.
            name: Name of the program.
            java: The executable.
            class_path: In order.
            jvm: Tells the JVMs of one program apart that one process starts.
        """
        if not can_write(folder):
            return None
        parts = [os.path.realpath(java), *class_path]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        stem = f"{name}-{digest}"
        return cls(folder / f"{stem}{_SUFFIX}", folder / f"{stem}.{os.getpid()}-{jvm}{_UNFINISHED}")

    @property
    def is_written(self) -> bool:
        return self.path.is_file()

    def options(self) -> list[str]:
        """Return the options of a JVM that uses the archive, or writes it when it ends."""
        return self._options(f"-XX:ArchiveClassesAtExit={self.unfinished}")

    def options_of_running(self) -> list[str]:
        """Return those of a JVM that uses it, or may be asked to `write` one while it runs."""
        return self._options("-XX:+RecordDynamicDumpInfo")

    def options_of_busy(self) -> list[str]:
        """Return those of a JVM that uses it, or of which `write_beside` is called."""
        return self._options()

    def _options(self, *without: str) -> list[str]:
        self.take()
        archived = [f"-XX:SharedArchiveFile={self.path}"] if self.is_written else without
        return [*_QUIET, *_SHARED, *archived]

    def write(self, pid: int) -> None:
        """Have a running JVM write the archive; it stands still for some seconds.

        Args:
            pid: Process identifier of a JVM that has `options_of_running`.

        Raises:
            OperationalError: None was written.
        """
        self._have_written(pid, "dynamic_dump")

    def write_beside(self, pid: int) -> None:
        """Have another JVM write the archive of the classes that a running one has.

        Args:
            pid: Process identifier of a JVM that has `options_of_busy`.

        Raises:
            OperationalError: None was written.
        """
        folder = Path(os.readlink(f"/proc/{pid}/cwd"))
        try:
            self._have_written(pid, "static_dump")
        finally:
            # What the other one said, in the working directory, for which there is no option.
            for said in folder.glob("java_pid*_std???"):
                said.unlink(missing_ok=True)

    def _have_written(self, pid: int, how: str) -> None:
        ask_jvm(pid, f'VM.cds {how} "{self.unfinished}"', _WRITING_SECONDS)
        if not _is_finished(self.unfinished):
            raise OperationalError(f"Java, process {pid}, has written no {self.unfinished}")
        self.take()

    def take(self) -> None:
        """Take the archive that a JVM has finished, and remove the remains of others.

        A JVM that writes for another one has two files more: their names go on behind `.tmp`.
        """
        name = self.path.name.rpartition("-")[0]
        for left in self.path.parent.glob(f"{name}-*{_UNFINISHED}*"):
            is_whole = left.suffix == _UNFINISHED and _is_finished(left)
            if is_whole and left.name.startswith(f"{self.path.stem}."):
                for old in self.path.parent.glob(f"{name}-*{_SUFFIX}"):
                    old.unlink(missing_ok=True)
                left.replace(self.path)
            elif start_ticks(int(left.name.split(".")[1].partition("-")[0])) is None:
                left.unlink(missing_ok=True)


def can_write(folder: Path) -> bool:
    """Tell whether files can be made in a folder; make it if it is missing."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _is_finished(file: Path) -> bool:
    """Tell whether a JVM has written all: the header, with a number in front, comes last.

    Source: `FileMapInfo::open_for_write` of OpenJDK 17 to 25.
    """
    try:
        with file.open("rb") as archive:
            return any(archive.read(4))
    except FileNotFoundError:  # taken by another process
        return False
