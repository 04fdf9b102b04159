"""When the archive of the log's classes is written: once, and not when the log ends."""

import threading
from dataclasses import dataclass, field

from launcher.log.kafka import ARCHIVE_AFTER_SECONDS, ArchiveWriter
from mqlake.errors import OperationalError

PID = 17
SECONDS = 60.0
"""More than anything takes here."""


@dataclass
class World:
    now: float = 100.0
    written: list[int] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)

    def write(self, pid: int) -> None:
        self.written.append(pid)
        self.begun.set()
        raise OperationalError("the disk is full")


def test_it_is_written_once_when_one_log_has_run_for_a_while() -> None:
    world = World()
    writer = ArchiveWriter(world.write, lambda: world.now)
    writer.look(PID)
    world.now += ARCHIVE_AFTER_SECONDS - 1
    writer.look(PID)
    writer.look(PID + 1)
    world.now += 2
    writer.look(PID + 1)
    assert not world.begun.is_set(), "the second log has just started"
    world.now += ARCHIVE_AFTER_SECONDS
    writer.look(PID + 1)
    assert world.begun.wait(SECONDS)
    world.now += ARCHIVE_AFTER_SECONDS
    writer.look(PID + 1)
    assert world.written == [PID + 1]
    assert [one.name for one in threading.enumerate()].count("archive") <= 1
