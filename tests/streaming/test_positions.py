"""Where router and rules begin: as far as they have noted, or at their last batch."""

import json
from pathlib import Path

import pytest

from mqlake.clock import ManualClock
from mqlake.records import EVENTS, INBOUND
from streaming.checkpoints import (
    POSITIONS,
    SETTLED,
    committed,
    last_batch,
    planned,
    settled,
    write_positions,
    write_settled,
)
from streaming.positions import SETTLE_SECONDS, Positions


def finish_batch(folder: Path, number: int, offsets: dict[int, int]) -> None:
    """Write what Spark writes of a batch."""
    source = json.dumps({INBOUND: {str(p): offset for p, offset in offsets.items()}})
    for name, text in (("offsets", f"v1\n{{}}\n{source}"), ("commits", "v1\n{}")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / str(number)).write_text(text)


class Log:
    def __init__(self) -> None:
        self.begin = {0: 0, 1: 5}
        self.end = {0: 100, 1: 100}
        self.clock = ManualClock()

    def positions(self, folder: Path, *log_topics: str) -> Positions:
        begins, ends = (lambda _: dict(self.begin)), (lambda _: dict(self.end))
        return Positions(folder, log_topics or (INBOUND,), begins, ends, self.clock)


@pytest.fixture
def log() -> Log:
    return Log()


def test_without_anything_it_begins_at_the_beginning(tmp_path: Path, log: Log) -> None:
    positions = log.positions(tmp_path)
    assert positions.look() is None
    assert positions.begin(None) is None
    positions.note({})
    assert committed(tmp_path) is None


def test_without_a_note_the_checkpoint_counts(tmp_path: Path, log: Log) -> None:
    finish_batch(tmp_path, 0, {0: 10, 1: 20})
    positions = log.positions(tmp_path)
    assert positions.begin(positions.look()) is None
    assert (tmp_path / "commits" / "0").exists()


def test_a_note_counts_before_any_batch_is_done(tmp_path: Path, log: Log) -> None:
    positions = log.positions(tmp_path)
    positions.look()
    positions.note({INBOUND: {0: 7}})
    expected = {INBOUND: {0: 7, 1: 5}}  # in 1 there was nothing yet
    assert committed(tmp_path) == expected
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "metadata").write_text("{}")
    positions = log.positions(tmp_path)
    assert positions.begin(positions.look()) == expected
    # Only the note is left, which another crash finds at once.
    assert [path.name for path in tmp_path.iterdir()] == [POSITIONS]
    again = log.positions(tmp_path)
    assert again.begin(again.look()) == expected


def test_of_each_partition_the_later_counts(tmp_path: Path, log: Log) -> None:
    positions = log.positions(tmp_path)
    positions.look()
    positions.note({INBOUND: {0: 30, 1: 10}})
    finish_batch(tmp_path, 3, {0: 20, 1: 25})
    assert last_batch(tmp_path) == {INBOUND: {0: 20, 1: 25}}
    expected = {INBOUND: {0: 30, 1: 25}}
    positions = log.positions(tmp_path)
    assert positions.look() == expected
    # As if a batch more were done: it counts also when the machine is started again.
    assert positions.begin(expected) is None
    assert last_batch(tmp_path) == planned(tmp_path) == expected
    assert (tmp_path / "offsets" / "4").read_text().splitlines()[:2] == ["v1", "{}"]
    positions.note({INBOUND: {1: 40}})
    assert committed(tmp_path) == {INBOUND: {0: 30, 1: 40}}


def test_a_batch_that_is_not_done_gives_way(tmp_path: Path, log: Log) -> None:
    finish_batch(tmp_path, 3, {0: 20, 1: 25})
    finish_batch(tmp_path, 4, {0: 60, 1: 60})
    finish_batch(tmp_path, 5, {0: 90, 1: 90})
    for batch in ("4", "5"):
        (tmp_path / "commits" / batch).unlink()
    write_positions(tmp_path, {INBOUND: {0: 30, 1: 10}})
    positions = log.positions(tmp_path)
    assert positions.begin(positions.look()) is None
    assert last_batch(tmp_path) == planned(tmp_path) == {INBOUND: {0: 30, 1: 25}}


def test_a_note_before_the_last_batch_changes_nothing(tmp_path: Path, log: Log) -> None:
    write_positions(tmp_path, {INBOUND: {0: 5, 1: 6}})
    finish_batch(tmp_path, 0, {0: 10, 1: 20})
    positions = log.positions(tmp_path)
    assert positions.begin(positions.look()) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"boot": "another", "positions": {"mqlake.inbound": {"0": 50, "1": 50}}}',
        "",
        "[]",
        '{"boot": 1}',
        '{"positions": {"mqlake.inbound": [1]}}',
    ],
    ids=["another boot", "empty", "no object", "no positions", "no offsets"],
)
def test_what_cannot_be_relied_on_does_not_count(tmp_path: Path, log: Log, text: str) -> None:
    finish_batch(tmp_path, 0, {0: 10, 1: 20})
    (tmp_path / POSITIONS).write_text(text)
    assert log.positions(tmp_path).look() == {INBOUND: {0: 10, 1: 20}}


def test_notes_of_another_log_do_not_count(tmp_path: Path, log: Log) -> None:
    finish_batch(tmp_path, 0, {0: 10, 1: 20})
    write_positions(tmp_path, {INBOUND: {0: 101, 1: 30}})
    assert log.positions(tmp_path).look() == {INBOUND: {0: 10, 1: 20}}


def test_a_disk_that_takes_nothing_costs_a_repetition(
    tmp_path: Path, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "router"
    folder.write_text("a file")
    positions = log.positions(folder)
    positions.look()
    positions.note({INBOUND: {0: 7}})
    assert positions.begin({INBOUND: {0: 7, 1: 5}}) is None
    assert "a query's position is not noted" in caplog.text


def test_a_query_of_several_log_topics_notes_each(tmp_path: Path, log: Log) -> None:
    positions = log.positions(tmp_path, INBOUND, EVENTS)
    positions.look()
    positions.note({EVENTS: {0: 3}})
    assert committed(tmp_path) == {INBOUND: {0: 0, 1: 5}, EVENTS: {0: 3, 1: 5}}


def test_a_query_that_has_not_begun_notes_nothing(tmp_path: Path, log: Log) -> None:
    positions = log.positions(tmp_path)
    positions.note({INBOUND: {0: 7}})
    assert committed(tmp_path) is None


class TestSettled:
    """What counts after a power failure, and for deletion from the log."""

    @staticmethod
    def pass_minutes(log: Log, positions: Positions, *notes: int) -> None:
        for offset in notes:
            positions.note({INBOUND: {0: offset}})
            log.clock.advance(SETTLE_SECONDS)
        positions.note({})

    def test_a_note_settles_after_a_minute(self, tmp_path: Path, log: Log) -> None:
        positions = log.positions(tmp_path)
        positions.look()
        positions.note({INBOUND: {0: 7}})
        log.clock.advance(SETTLE_SECONDS)
        positions.note({INBOUND: {0: 8}})
        assert settled(tmp_path) is None, "nothing is known to be a minute old"
        log.clock.advance(SETTLE_SECONDS - 1)
        positions.note({INBOUND: {0: 9}})
        assert settled(tmp_path) is None
        log.clock.advance(1)
        positions.note({INBOUND: {0: 10}})
        assert settled(tmp_path) == {INBOUND: {0: 8, 1: 5}}
        assert committed(tmp_path) == {INBOUND: {0: 10, 1: 5}}

    def test_it_counts_when_the_machine_was_started_again(self, tmp_path: Path, log: Log) -> None:
        finish_batch(tmp_path, 0, {0: 10, 1: 20})
        write_settled(tmp_path, {INBOUND: {0: 40, 1: 15}})
        (tmp_path / POSITIONS).write_text(
            '{"boot": "another", "positions": {"mqlake.inbound": {"0": 50, "1": 50}}}'
        )
        positions = log.positions(tmp_path)
        found = positions.look()
        assert found == settled(tmp_path) == {INBOUND: {0: 40, 1: 20}}
        assert positions.begin(found) is None
        assert last_batch(tmp_path) == found

    def test_it_counts_before_any_batch_is_done(self, tmp_path: Path, log: Log) -> None:
        write_settled(tmp_path, {INBOUND: {0: 40, 1: 50}})
        (tmp_path / "offsets").mkdir()
        positions = log.positions(tmp_path)
        assert positions.begin(positions.look()) == {INBOUND: {0: 40, 1: 50}}
        assert not (tmp_path / "offsets").exists()
        assert settled(tmp_path) == {INBOUND: {0: 40, 1: 50}}, "also for the next power failure"

    def test_it_counts_when_the_log_has_lost_its_end(self, tmp_path: Path, log: Log) -> None:
        write_settled(tmp_path, {INBOUND: {0: 60, 1: 60}})
        write_positions(tmp_path, {INBOUND: {0: 101, 1: 61}})
        positions = log.positions(tmp_path)
        assert positions.look() == {INBOUND: {0: 60, 1: 60}}
        assert committed(tmp_path) == {INBOUND: {0: 60, 1: 60}}, "nobody believes the note any more"

    def test_that_of_another_log_does_not_count(self, tmp_path: Path, log: Log) -> None:
        write_settled(tmp_path, {INBOUND: {0: 101}})
        write_positions(tmp_path, {INBOUND: {0: 102}})
        assert log.positions(tmp_path).look() is None
        assert settled(tmp_path) is None, "nothing of this log is deleted for it"

    def test_who_rests_writes_nothing(self, tmp_path: Path, log: Log) -> None:
        positions = log.positions(tmp_path)
        positions.look()
        self.pass_minutes(log, positions, 7, 8, 8)
        before = (tmp_path / SETTLED).stat().st_ino
        self.pass_minutes(log, positions, 8, 8)
        assert (tmp_path / SETTLED).stat().st_ino == before
        assert settled(tmp_path) == {INBOUND: {0: 8, 1: 5}}
