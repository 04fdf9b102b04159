from typing import Any

import pytest

from api.live.stream import MAX_QUEUED, MAX_QUEUED_BYTES, Event, LiveStream, Room
from mqlake.clock import ManualClock


def show(item: Any) -> Event:
    return "item", {"is": item}


def make(max_rate: float | None = None) -> tuple[LiveStream, ManualClock]:
    clock = ManualClock()
    return LiveStream(lambda: None, Room(), show, max_rate=max_rate, clock=clock.monotonic), clock


def test_items_come_in_their_order() -> None:
    stream, _ = make()
    assert all(stream.offer(number, 1) for number in range(3))
    assert stream.take(2) == [("item", {"is": 0}), ("item", {"is": 1})]
    assert stream.take(2) == [("item", {"is": 2})]


def test_what_is_above_the_rate_is_left_out_and_told() -> None:
    stream, clock = make(max_rate=10)
    assert sum(stream.offer(number, 1) for number in range(25)) == 10
    events = stream.take(100)
    assert events[0] == ("left_out", {"rate": 15, "slow": 0, "total": 15})
    assert len(events) == 11
    clock.advance(0.5)
    assert sum(stream.offer(number, 1) for number in range(25)) == 5
    assert len(stream.take(100)) == 5  # told a moment ago
    clock.advance(0.5)
    assert stream.take(100) == [("left_out", {"rate": 20, "slow": 0, "total": 35})]
    assert stream.take(100) == []


@pytest.mark.parametrize(
    ("size", "fitting"), [(1, MAX_QUEUED), (MAX_QUEUED_BYTES // 10, 10), (MAX_QUEUED_BYTES + 1, 0)]
)
def test_a_slow_reader_is_bounded(size: int, fitting: int) -> None:
    stream, _ = make()
    assert sum(stream.offer(number, size) for number in range(MAX_QUEUED + 5)) == fitting
    told, *items = stream.take(MAX_QUEUED)
    assert told == (
        "left_out",
        {"rate": 0, "slow": MAX_QUEUED + 5 - fitting, "total": MAX_QUEUED + 5 - fitting},
    )
    assert len(items) == fitting
    assert stream.offer(1, 1)


def test_of_metrics_only_the_newest_waits() -> None:
    stream, _ = make()
    for number in range(3):
        stream.offer_newest(number)
    assert stream.take(10) == [("item", {"is": 2})]


def test_the_streams_of_a_connection_share_its_room() -> None:
    room = Room(100)
    one, other = (LiveStream(lambda: None, room, show) for _ in range(2))
    assert one.offer("a", 60)
    assert not other.offer("b", 60)
    assert other.offer("c", 40)
    one.take(1)
    assert other.offer("d", 60)
    other.close()
    assert not other.offer("e", 1)
    assert one.offer("f", 100)
    assert not one.offer("g", 1)
    one.offer_newest("h")
    assert one.offer("i", 100)
