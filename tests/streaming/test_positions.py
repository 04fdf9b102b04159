"""Where router and rules begin: as far as they have noted, or at their last batch."""

import json
from pathlib import Path

import pytest

from mqlake.clock import ManualClock
from mqlake.records.messages import EVENTS, INBOUND
from streaming.log.checkpoints import (
    POSITIONS,
    SETTLED,
    committed,
    settled,
    write_positions,
    write_settled,
)
from streaming.log.positions import SETTLE_SECONDS, Positions


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
    positions.note({})
    assert committed(tmp_path) is None


def test_a_note_counts(tmp_path: Path, log: Log) -> None:
    positions = log.positions(tmp_path)
    positions.look()
    positions.note({INBOUND: {0: 7}})
    expected = {INBOUND: {0: 7, 1: 5}}  # in 1 there was nothing yet
    assert committed(tmp_path) == expected
    assert log.positions(tmp_path).look() == expected
    assert [path.name for path in tmp_path.iterdir()] == [POSITIONS]


def test_a_batch_that_is_done_counts_also_after_a_power_failure(tmp_path: Path, log: Log) -> None:
    positions = log.positions(tmp_path)
    positions.look()
    positions.note({INBOUND: {0: 30, 1: 10}}, {INBOUND: {0: 20, 1: 25}})
    assert committed(tmp_path) == {INBOUND: {0: 30, 1: 25}}
    assert settled(tmp_path) == {INBOUND: {0: 20, 1: 25}}
    positions.note({}, {INBOUND: {0: 60, 1: 20}})
    assert settled(tmp_path) == {INBOUND: {0: 60, 1: 25}}
    written = (tmp_path / SETTLED).stat().st_ino
    positions.note({INBOUND: {0: 70}}, {INBOUND: {0: 60, 1: 20}})
    assert (tmp_path / SETTLED).stat().st_ino == written, "once"


def test_what_an_earlier_version_kept_by_batches_counts_until_it_is_kept_otherwise(
    tmp_path: Path, log: Log
) -> None:
    finish_batch(tmp_path, 3, {0: 20, 1: 25})
    finish_batch(tmp_path, 4, {0: 60, 1: 60})
    (tmp_path / "commits" / "4").unlink()
    write_positions(tmp_path, {INBOUND: {0: 30, 1: 10}})
    positions = log.positions(tmp_path)
    assert positions.look() == {INBOUND: {0: 30, 1: 25}}
    positions.note({INBOUND: {1: 40}}, {INBOUND: {0: 35, 1: 40}})
    assert not (tmp_path / "offsets").exists()
    assert not (tmp_path / "commits").exists()
    assert settled(tmp_path) == committed(tmp_path) == {INBOUND: {0: 35, 1: 40}}


def test_who_begins_beside_another_believes_what_that_one_notes_meanwhile(
    tmp_path: Path, log: Log
) -> None:
    first = log.positions(tmp_path)
    first.look()
    first.note({INBOUND: {0: 100, 1: 100}})
    write_settled(tmp_path, {INBOUND: {0: 10, 1: 10}})

    def ends(_log_topic: str) -> dict[int, int]:
        first.note({INBOUND: {0: 105, 1: 105}})  # it goes on
        return dict(log.end)

    second = Positions(tmp_path, (INBOUND,), lambda _: dict(log.begin), ends, log.clock)
    assert second.look() == {INBOUND: {0: 100, 1: 100}}
    assert committed(tmp_path) == {INBOUND: {0: 105, 1: 105}}


def test_who_follows_another_goes_on_from_what_that_one_has_noted(tmp_path: Path, log: Log) -> None:
    first, second = log.positions(tmp_path), log.positions(tmp_path)
    first.look()
    first.note({INBOUND: {0: 30, 1: 10}})
    begun = second.look()
    assert begun == {INBOUND: {0: 30, 1: 10}}
    second.begin(begun)
    first.note({INBOUND: {0: 50, 1: 20}})
    second.take_over()
    second.note({INBOUND: {0: 40, 1: 60}})
    assert committed(tmp_path) == {INBOUND: {0: 50, 1: 60}}


def test_what_has_not_begun_follows_nobody(tmp_path: Path, log: Log) -> None:
    write_positions(tmp_path, {INBOUND: {0: 30}})
    positions = log.positions(tmp_path)
    positions.take_over()
    positions.note({})
    assert committed(tmp_path) == {INBOUND: {0: 30}}


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
        assert positions.look() == settled(tmp_path) == {INBOUND: {0: 40, 1: 20}}

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
