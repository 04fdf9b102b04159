"""A full log takes no messages from the API either, and its jobs wait for room."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from api.jobs.jobs import Job
from api.jobs.pace import when_there_is_room
from api.log.appending import MASSES, LogAppender
from api.log.repository import NotThere
from api.messages.messages import MessageMaker
from api.messages.publishing import ApiPublisher
from api.references.changes import ReferenceChanges
from api.references.materialised import MaterialisedReferences
from api.references.reading import Upload
from api.replay.targets import Published
from api.spark.connect import Cancelled
from mqlake.clock import ManualClock
from mqlake.errors import OperationalError
from mqlake.log.blocking import Append, BlockingWriter
from mqlake.log.contract import ANY_PARTITION
from mqlake.processes.log_disk import LogDisk, LogDiskFull
from mqlake.records.messages import JOBS, RULES
from mqlake.records.references import UPLOADS
from mqlake.settings import LogDiskSettings
from tests.api.test_replay import Waits

NOWHERE = "127.0.0.1:1"
UPLOAD = Upload((("plant", "STRING"),), ("plant",), [("a",)])
RECORD = Append(ANY_PARTITION, b"k", b"v", [])


@pytest.fixture
def full(tmp_path: Path) -> LogDisk:
    (tmp_path / "segment").write_bytes(b"x" * (2 << 20))
    return LogDisk(LogDiskSettings(folder=tmp_path, min_free_bytes=0, max_bytes=1 << 20))


class Asked(LogAppender):
    """Says so when the log is asked."""

    def __init__(self, disk: LogDisk) -> None:
        super().__init__(NOWHERE, disk=disk)

    def _opened_writer(self) -> BlockingWriter:
        raise OperationalError("the log was asked for")


@pytest.mark.anyio
async def test_messages_are_refused(full: LogDisk) -> None:
    publisher = ApiPublisher(NOWHERE, full)
    with pytest.raises(LogDiskFull, match="the log is full: 2 MiB in the log, 1 MiB allowed"):
        await publisher.publish([])


@pytest.mark.parametrize("log_topic", MASSES)
def test_what_jobs_append_is_refused(full: LogDisk, log_topic: str) -> None:
    with pytest.raises(LogDiskFull):
        Asked(full).append_all(log_topic, [RECORD], what="outputs")


@pytest.mark.parametrize("log_topic", [RULES, JOBS, *MASSES])
def test_a_single_record_may_free_the_disk(full: LogDisk, log_topic: str) -> None:
    with pytest.raises(OperationalError, match="asked for"):
        Asked(full).append(log_topic, b"k", b"v", what="a rule")


def test_an_upload_is_refused_before_its_rows_are_kept(full: LogDisk, tmp_path: Path) -> None:
    """They are on the same disk."""
    view = MaterialisedReferences()
    changes = ReferenceChanges(tmp_path, Asked(full), view, ManualClock())
    with pytest.raises(LogDiskFull, match="the log is full"):
        changes.put("default", "plants", UPLOAD, "")
    assert not (tmp_path / UPLOADS).exists()
    with pytest.raises(NotThere):  # it may free the disk
        changes.delete("default", "plants")


def test_a_replay_is_refused_as_a_whole(full: LogDisk) -> None:
    maker = MessageMaker("local", 0, ManualClock())
    published = Published(Asked(full), maker, "default", "ann", "j", keep_retain=False)
    with pytest.raises(LogDiskFull):
        published.send([])


class FullFor:
    """A log that is full so often."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.taken: list[Sequence[Any]] = []

    def append(self, records: Sequence[Any]) -> None:
        if self.left:
            self.left -= 1
            raise LogDiskFull("0 MiB free")
        self.taken.append(records)


def new_job() -> tuple[Job, Waits]:
    waits = Waits()
    return Job("j", "replay", "default", "", 0, cancelling=waits), waits


def test_a_job_waits_for_room_and_says_so() -> None:
    log, (job, waits) = FullFor(3), new_job()
    notes: list[str] = []
    when_there_is_room(job, partial(log.append, "m"), lambda: notes.append(job.note))
    assert log.taken == ["m"]
    assert waits.waited == [1.0] * 3
    assert notes == ["waits: the log is full: 0 MiB free"] * 3


def test_a_job_that_waits_can_be_cancelled() -> None:
    log, (job, waits) = FullFor(1), new_job()
    waits.set()
    with pytest.raises(Cancelled):
        when_there_is_room(job, partial(log.append, "m"), job.check)
    assert log.taken == []
