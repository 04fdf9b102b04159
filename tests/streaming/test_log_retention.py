"""What is deleted from the log, and what is told of it; without a log."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import EVENTS, INBOUND
from mqlake.records.versions import RECORD_VERSION
from rules.actions.contract import NewRecord
from streaming.log.checkpoints import Offsets
from streaming.reading.log_retention import LogRetention, RetainingReader, Retention, figures
from streaming.reading.unread import LOOK_SECONDS, Unread

HOUR_MS = 3_600_000


class Log:
    """Two partitions of `mqlake.inbound`: where they begin and end, and what is old."""

    def __init__(self) -> None:
        self.beginning = {0: 0, 1: 0}
        self.ends = {0: 1000, 1: 500}
        self.old = {0: 0, 1: 0}
        self.asked_ms = 0
        self.deleted: list[dict[int, int]] = []
        self.appended: list[dict[str, Any]] = []
        self.refuses = False

    def begins(self, log_topic: str) -> dict[int, int]:
        assert log_topic == INBOUND
        return self.beginning

    def ends_before(self, _log_topic: str, timestamp_ms: int) -> dict[int, int]:
        self.asked_ms = timestamp_ms
        return dict(self.old)

    def delete_before(self, _log_topic: str, positions: dict[int, int]) -> None:
        self.deleted.append(positions)
        self.beginning = self.beginning | positions

    def append(self, records: Sequence[NewRecord]) -> None:
        if self.refuses:
            raise LogError("no answer", definite=False)
        for record in records:
            assert record.log_topic == EVENTS
            self.appended.append(json.loads(record.value or b""))


class World:
    def __init__(self, folder: Path, size_bytes: int = 10_000) -> None:
        self.log = Log()
        self.folder = folder
        self.clock = ManualClock()
        self.readers: list[RetainingReader] | None = []
        self.unread = Unread(self.log.begins, self.log.append, self.clock)
        self.retention = LogRetention(
            self.log,  # type: ignore[arg-type]
            {INBOUND: Retention(HOUR_MS, size_bytes)},
            lambda: self.readers,
            self.unread,
            self.clock,
            folder,
        )
        for partition in (0, 1):
            self.segments(partition, {0: 1})

    def segments(self, partition: int, sizes: dict[int, int]) -> None:
        folder = self.folder / f"{INBOUND}-{partition}"
        folder.mkdir(exist_ok=True)
        for offset, size in sizes.items():
            (folder / f"{offset:020}.log").write_bytes(b"x" * size)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def reader(name: str, *offsets: int, **more: Any) -> RetainingReader:
    return RetainingReader(name, {INBOUND: dict(enumerate(offsets))}, **more)


def test_what_is_old_goes_when_all_have_read_it(world: World) -> None:
    world.log.old = {0: 600, 1: 400}
    world.readers = [reader("router", 1000, 450), reader("history", 300, 500)]
    world.retention.check()
    assert world.log.asked_ms == world.clock.now_ms() - HOUR_MS
    assert world.log.deleted == [{0: 300, 1: 400}]
    assert figures(world.retention) == {"log_held_by": {INBOUND: ["history"]}}

    world.readers = [reader("router", 1000, 450), reader("history", 1000, 500)]
    world.retention.check()
    assert world.log.deleted[1:] == [{0: 600}]
    assert figures(world.retention) == {"log_held_by": {}}


def test_what_is_young_stays_though_all_have_read_it(world: World) -> None:
    world.readers = [reader("router", 1000, 500)]
    world.retention.check()
    assert world.log.deleted == []


def test_what_is_too_much_goes_likewise_in_whole_segments(world: World) -> None:
    world.segments(0, {0: 4000, 100: 4000, 200: 4000, 300: 10})
    world.readers = [reader("router", 1000, 500)]
    world.retention.check()
    assert world.log.deleted == [{0: 100}], "5,000 bytes of each of two partitions stay"
    world.readers = [reader("router", 50, 500)]
    world.retention.check()
    assert world.log.deleted == [{0: 100}]


def test_nothing_goes_while_a_reader_is_not_known(world: World) -> None:
    world.log.old = {0: 600, 1: 400}
    world.readers = None
    world.retention.check()
    world.readers = [reader("router", 1000, 500), RetainingReader("history", {INBOUND: None})]
    world.retention.check()
    assert world.log.deleted == []
    assert world.retention.held_by == {INBOUND: ["history"]}


def test_readers_of_other_log_topics_hold_nothing_up(world: World) -> None:
    world.log.old = {0: 600, 1: 400}
    world.readers = [
        reader("router", 1000, 500),
        RetainingReader("runner", {"mqlake.outputs": None}),
    ]
    world.retention.check()
    assert world.log.deleted == [{0: 600, 1: 400}]


def test_without_segments_to_be_looked_at_age_alone_counts(world: World) -> None:
    world.log.old = {0: 600, 1: 400}
    (world.folder / f"{INBOUND}-0" / f"{0:020}.log").unlink()
    (world.folder / f"{INBOUND}-0").rmdir()
    world.readers = [reader("router", 1000, 500)]
    world.retention.check()
    assert world.log.deleted == [{0: 600, 1: 400}]


def test_what_others_have_deleted_is_told_once(world: World) -> None:
    world.log.beginning = {0: 0, 1: 200}
    world.readers = [reader("router", 10, 150), reader("history", 900, 200)]
    world.retention.check()
    world.retention.check()
    assert world.log.appended == [
        {
            "v": RECORD_VERSION,
            "event": "message.dropped",
            "ts": world.clock.now_ms(),
            "tenant": "default",
            "reason": "unread",
            "topic": INBOUND,
            "detail": "router: offsets 150 to 199 of partition 1 of mqlake.inbound were deleted "
            "before it is known to have read them",
            "count": 50,
        }
    ]
    world.log.beginning = {0: 0, 1: 260}
    world.retention.check()
    details = [(one["detail"].split(":")[0], one["count"]) for one in world.log.appended[1:]]
    assert details == [("router", 60), ("history", 60)]


def test_a_query_that_has_passed_over_a_gap_is_found(world: World) -> None:
    world.readers = [reader("history", 100, 500)]
    world.retention.check()
    world.log.beginning = {0: 200, 1: 0}
    world.readers = [reader("history", 250, 500)]
    world.retention.check()
    world.retention.check()
    assert [one["count"] for one in world.log.appended] == [100]


def test_what_we_delete_ourselves_is_no_gap(world: World) -> None:
    for position in (100, 300, 900):
        world.log.old = {0: position, 1: 0}
        world.readers = [reader("history", position, 500)]
        world.retention.check()
    assert world.log.deleted == [{0: 100}, {0: 300}, {0: 900}]
    assert world.log.appended == []


def test_a_query_begins_where_the_log_does_once_that_is_told(world: World) -> None:
    world.log.beginning = {0: 0, 1: 200}
    assert world.unread.look("router", None) is None
    assert world.unread.look("history", {INBOUND: {0: 10, 1: 200}}) is None
    world.log.refuses = True
    with pytest.raises(LogError):
        world.unread.look("router", {INBOUND: {0: 10, 1: 150}})
    assert world.log.appended == []
    world.log.refuses = False
    for _ in range(2):
        found = world.unread.look("router", {INBOUND: {0: 10, 1: 150}})
        assert found == {INBOUND: {0: 10, 1: 200}}
    assert [one["count"] for one in world.log.appended] == [50]


def test_who_reads_without_deleting_looks_now_and_then(world: World) -> None:
    """As the router does; a log that does not answer is asked again."""
    looks = iter((False, False, False, True))

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout == LOOK_SECONDS
            return next(looks)

    positions: dict[str, Offsets] = {"router": {INBOUND: {0: 10, 1: 150}}}
    answers = iter((LogError("away", definite=False), None, None))

    def at() -> dict[str, Offsets]:
        if error := next(answers):
            raise error
        return positions

    world.log.beginning = {0: 0, 1: 200}
    world.unread.run(at, Stopping())
    assert [one["count"] for one in world.log.appended] == [50]
