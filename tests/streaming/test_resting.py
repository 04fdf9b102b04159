"""Queries that keep tables rest when they have taken all there was, and only then."""

from pathlib import Path

import pytest

from mqlake.clock import ManualClock
from mqlake.records.messages import EVENTS, INBOUND
from streaming.tables.resting import LONGER_SECONDS, Rest, rest
from tests.streaming.written_checkpoints import note_end

MOST_RECORDS = 1000


class World:
    def __init__(self, folder: Path) -> None:
        self.rests: list[float] = []
        self._folder = folder
        self.rest = Rest(folder, MOST_RECORDS, 6.0, 10.0, self.rests.append)

    def note(self, batch_id: int, *inbound: int, events: int = 0) -> None:
        """Note where a batch ends, as Spark does before it begins."""
        ends = {INBOUND: {str(p): at for p, at in enumerate(inbound)}, EVENTS: {"0": events}}
        note_end(self._folder, batch_id, ends)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_batch_that_took_all_there_was_is_followed_by_a_rest(world: World) -> None:
    world.note(0, 10, 20)
    world.note(1, 300, 400, events=200)
    world.rest.after(0, 0.5)
    world.rest.after(1, 0.5)
    world.rest.after(1, 60.0)
    assert world.rests == [3.0, 3.0, 10.0]


def test_a_batch_that_could_not_take_all_is_followed_by_the_next_at_once(world: World) -> None:
    world.note(0, 10, 20)
    # Shares of partitions are rounded.
    world.note(1, 310, 320, events=399)
    world.note(2, 311, 321, events=400)
    world.rest.after(1, 1.0)
    assert world.rests == []
    world.rest.after(2, 1.0)
    assert world.rests == [6.0], "it has caught up"


def test_of_a_partition_that_is_new_only_what_is_known_counts(world: World) -> None:
    world.note(0, 10)
    world.note(1, 20, 5_000_000)
    world.rest.after(1, 1.0)
    assert world.rests == [6.0]


def rested(late_seconds: float, *, over_seconds: float = 1e9, stops_seconds: float = 1e9) -> float:
    """Return how long a rest of 10 s takes while messages are late for so many seconds."""
    clock = ManualClock()

    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        return clock.monotonic() >= stops_seconds

    rest(
        10.0,
        clock,
        wait,
        is_late=lambda: clock.monotonic() < late_seconds,
        is_over=lambda: clock.monotonic() >= over_seconds,
    )
    return clock.monotonic()


def test_a_rest_is_longer_while_messages_are_late_and_has_an_end() -> None:
    assert rested(0.0) == 10.0
    assert rested(5.0) == 10.0
    assert rested(20.0) == 20.0
    assert rested(1e9) == 10.0 + LONGER_SECONDS


def test_a_rest_ends_with_the_application_and_when_the_log_grows() -> None:
    assert rested(1e9, stops_seconds=3.0) == 3.0
    assert rested(1e9, over_seconds=4.0) == 4.0
