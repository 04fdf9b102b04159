"""A lane by itself: what it says to the stream that feeds it."""

import asyncio
from collections.abc import Sequence

import pytest

from mqlake.clock import ManualClock
from mqlake.records.outputs import Output, Position
from rules.actions.contract import (
    NO_PROBLEMS,
    NO_RETRY,
    Action,
    ActionError,
    Failure,
    Problems,
    Retry,
    Work,
)
from rules.metrics import ActionCounters
from rules.runner.checkpoint import LaneKey, ReadPosition, ReadPositions
from rules.runner.lanes import Lane, LaneLimits, LaneMissed
from rules.runner.progress import Batch, PartitionProgress
from tests.waiting import turns

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


def a_lane(action: Action, *fallbacks: Action) -> Lane:
    return Lane(
        LaneKey("default", "r", 1, 0),
        "http",
        action,
        [("http", one) for one in fallbacks],
        LaneLimits(outputs=10, bytes=1 << 20),
        ActionCounters("http"),
        Feeding(),
        ManualClock(),
    )


def offer(lane: Lane, batch: Batch, offsets: range) -> None:
    for offset in offsets:
        position = Position("i", 0, offset, 0)
        output = Output("default", "r", 1, b"{}", position, 0, "t", "c")
        lane.offer(Work(output, 0, 0, offset), batch)
    lane.pump()


async def test_a_stream_that_was_held_up_is_told_of_room_whatever_came_meanwhile() -> None:
    action, stream = ToTheLog(), Feeding()
    key = LaneKey("default", "r", 1, 0)
    limits = LaneLimits(outputs=10, bytes=1 << 20)
    lane = Lane(key, "log", action, (), limits, ActionCounters("log"), stream, ManualClock())
    batch = PartitionProgress(ReadPosition(0)).begin()
    offer(lane, batch, range(6))
    offer(lane, batch, range(6, 12))
    assert lane.holds_up()
    await turns()
    action.under_way[0].set()
    await turns()
    assert not stream.with_room, "half of it is room enough, and it has not that"
    # What waited for another rule's actions comes though the stream is held up.
    offer(lane, batch, range(12, 13))
    lane.holds_up()
    for done in action.under_way:
        done.set()
    await turns()
    for done in action.under_way:
        done.set()
    await turns()
    assert sorted(action.seen) == list(range(13))
    assert stream.with_room == [lane]
    assert not lane.holds_up()
    await lane.close()


class Asking:
    """An action whose target asks to be left alone, and answers other outputs meanwhile."""

    max_batch = 1
    concurrency = 2
    may_fall_behind = True
    runs_recovered = True

    def __init__(self, retry_after_seconds: float, *, retry: Retry, tries: int = 1) -> None:
        self.retry = retry
        self._seconds = retry_after_seconds
        self._tries = tries
        self.tried: list[float] = []
        """When the first output was tried."""
        self.asked = asyncio.Event()

    async def run(self, batch: Sequence[Work]) -> Problems:
        if batch[0].offset:
            await self.asked.wait()
            return NO_PROBLEMS
        self.tried.append(asyncio.get_running_loop().time())
        if len(self.tried) <= self._tries:
            self.asked.set()
            raise ActionError("busy", Failure.UNAVAILABLE, retry_after_seconds=self._seconds)
        return NO_PROBLEMS

    async def close(self) -> None:
        pass


async def test_a_target_that_asks_to_be_left_alone_is_though_it_answers_others() -> None:
    action = Asking(0.3, retry=Retry(first_delay_seconds=0.001))
    lane = a_lane(action)
    offer(lane, PartitionProgress(ReadPosition(0)).begin(), range(2))
    await lane.drain()
    first, second = action.tried
    assert second - first >= 0.3
    await lane.close()


async def test_an_output_that_would_wait_too_long_goes_to_the_fallback_at_once() -> None:
    action = Asking(3_600, retry=Retry(give_up_after_seconds=3_599))
    fallback = Asking(0.0, retry=NO_RETRY, tries=0)
    lane = a_lane(action, fallback)
    offer(lane, PartitionProgress(ReadPosition(0)).begin(), range(1))
    await lane.drain()
    assert (len(action.tried), len(fallback.tried)) == (1, 1)
    await lane.close()


async def test_a_fallback_is_left_alone_for_a_short_while_and_for_a_long_one_left_out() -> None:
    action = Asking(3_600, retry=NO_RETRY)
    retry = Retry(first_delay_seconds=0.001, max_delay_seconds=0.3)
    long, short = Asking(0.4, retry=retry), Asking(0.2, retry=retry)
    lane = a_lane(action, long, short)
    offer(lane, PartitionProgress(ReadPosition(0)).begin(), range(1))
    await lane.drain()
    assert len(long.tried) == 1
    first, second = short.tried
    assert second - first >= 0.2
    await lane.close()
