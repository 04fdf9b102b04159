"""A lane by itself: what it says to the stream that feeds it."""

import asyncio
from collections.abc import Sequence

import pytest

from mqlake.clock import ManualClock
from mqlake.output_records import Output, Position
from rules.actions.contract import NO_PROBLEMS, NO_RETRY, Problems, Work
from rules.metrics import ActionCounters
from rules.runner.checkpoint import LaneKey, ReadPosition, ReadPositions
from rules.runner.lanes import Lane, LaneLimits, LaneMissed
from rules.runner.progress import Batch, PartitionProgress

pytestmark = pytest.mark.anyio


class ToTheLog:
    """An action that is done when a test says so; it holds the stream up, as `republish` does."""

    max_batch = 500
    concurrency = 4
    may_fall_behind = False
    runs_recovered = True
    retry = NO_RETRY

    def __init__(self) -> None:
        self.under_way: list[asyncio.Event] = []
        self.seen: list[int] = []

    async def run(self, batch: Sequence[Work]) -> Problems:
        done = asyncio.Event()
        self.under_way.append(done)
        await done.wait()
        self.seen += [work.offset for work in batch]
        return NO_PROBLEMS

    async def close(self) -> None:
        pass


class Feeding:
    """The stream of a lane."""

    def __init__(self) -> None:
        self.with_room: list[Lane] = []

    def frontier(self) -> dict[int, int]:
        return {0: 0}

    def snapshot(self) -> ReadPositions:
        return {0: ReadPosition(0)}

    async def read_missed(
        self,
        key: LaneKey,
        positions: ReadPositions,
        ends: dict[int, int],
        *,
        outputs: int,
        bytes_: int,
    ) -> LaneMissed:
        raise AssertionError("it never falls behind")

    async def write_dead_letter(self, work: Work, function: str, error: str) -> None:
        raise AssertionError(error)

    def has_room(self, lane: Lane) -> None:
        self.with_room.append(lane)


def offer(lane: Lane, batch: Batch, offsets: range) -> None:
    for offset in offsets:
        position = Position("i", 0, offset, 0)
        output = Output("default", "r", 1, b"{}", position, 0, "t", "c")
        lane.offer(Work(output, 0, 0, offset), batch)
    lane.pump()


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_stream_that_was_held_up_is_told_of_room_whatever_came_meanwhile() -> None:
    action, stream = ToTheLog(), Feeding()
    key = LaneKey("default", "r", 1, 0)
    limits = LaneLimits(outputs=10, bytes=1 << 20)
    lane = Lane(key, "log", action, (), limits, ActionCounters("log"), stream, ManualClock())
    batch = PartitionProgress(ReadPosition(0)).begin()
    offer(lane, batch, range(6))
    offer(lane, batch, range(6, 12))
    assert lane.holds_up()
    await turn()
    action.under_way[0].set()
    await turn()
    assert not stream.with_room, "half of it is room enough, and it has not that"
    # What waited for another rule's actions comes though the stream is held up.
    offer(lane, batch, range(12, 13))
    lane.holds_up()
    for done in action.under_way:
        done.set()
    await turn()
    for done in action.under_way:
        done.set()
    await turn()
    assert sorted(action.seen) == list(range(13))
    assert stream.with_room == [lane]
    assert not lane.holds_up()
    await lane.close()
