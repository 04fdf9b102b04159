"""One lane for each action of each version of a rule: its queue, its pace, its retries.

A lane holds a bounded number of outputs. When its queue is full it *falls behind*: it takes no more
from the stream, works on its queue, and later reads the missed outputs in `mqlake.outputs` itself,
from a position of its own, until it meets the stream again. So a target that is away costs bounded
memory and no other lane's time, and loses nothing that the log still holds.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mqlake.clock import Clock
from mqlake.errors import LogError
from rules.actions.contract import NO_RETRY, Action, ActionError, Failure, Problems, Work
from rules.metrics import ActionCounters
from rules.runner.checkpoint import LaneKey, Marks, ReadPosition, ReadPositions, mark_before
from rules.runner.progress import Batch, Origin

logger = logging.getLogger(__name__)

JOIN_GAP: Final = 5_000
"""Outputs between a lane and the stream when it tries to meet it."""
RETRY_READ_SECONDS: Final = 1.0
WAIT_SECONDS: Final = 0.05
"""Before the stream's position is looked at again."""
TIMER_SECONDS: Final = 0.01
"""A timer of the event loop may go off that much early."""


@dataclass(slots=True, frozen=True)
class LaneLimits:
    """Limits on the outputs that a lane holds in memory."""

    outputs: int
    bytes: int


@dataclass(slots=True)
class LaneMissed:
    """Outputs that a lane had missed and has read."""

    works: list[tuple[Work, Origin]]
    positions: ReadPositions
    """Positions at which to read on."""
    lost: list[tuple[int, int, int]]
    """Partition and two offsets: the log no longer holds the records between them."""


class LaneStream(Protocol):
    """The process as a lane needs it."""

    def frontier(self) -> dict[int, int]:
        """Return the next offset that the stream will hand over, per partition."""
        ...

    def snapshot(self) -> ReadPositions:
        """Return the positions where the stream is."""
        ...

    async def read_missed(
        self,
        key: LaneKey,
        positions: ReadPositions,
        ends: dict[int, int],
        *,
        outputs: int,
        bytes_: int,
    ) -> LaneMissed:
        """Read outputs of a lane.

        Raises:
            LogError: The log does not answer.
        """
        ...

    async def write_dead_letter(self, work: Work, function: str, error: str) -> None:
        """Write a dead letter; return when the log has it."""
        ...

    def has_room(self, lane: "Lane") -> None:
        """Take note that a lane that was full is not any more."""
        ...


class LaneEntry:
    """An output in a lane."""

    __slots__ = ("batch", "begun", "origin", "work")

    def __init__(self, work: Work, origin: Origin, batch: Batch | None, begun: float) -> None:
        self.work = work
        self.origin = origin
        self.batch = batch
        """Counts until this entry is finished or its lane detached."""
        self.begun = begun

    def release(self) -> None:
        if self.batch is not None:
            self.batch.release()
            self.batch = None


class Lane:
    """One action and the outputs that it has to do with.

    Attributes:
        behind: Position at which it reads on, when it does not take part in the stream.
        used_at: Monotonic time at which it last got an output.
    """

    def __init__(
        self,
        key: LaneKey,
        function: str,
        action: Action,
        fallbacks: Sequence[tuple[str, Action]],
        limits: LaneLimits,
        counters: ActionCounters,
        stream: LaneStream,
        clock: Clock,
    ) -> None:
        self.key = key
        self.function = function
        self.action = action
        self._fallbacks = fallbacks
        self._limits = limits
        self.counters = counters
        self._stream = stream
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[LaneEntry] = deque()
        self._unfinished: dict[tuple[int, int], LaneEntry] = {}
        self._bytes = 0
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._was_full = False
        self._is_closed = False
        self.behind: ReadPositions | None = None
        self._joining: dict[int, int] | None = None
        self._live: deque[LaneEntry] = deque()
        self._room = asyncio.Event()
        self._up = asyncio.Event()
        self._down_since: float | None = None
        self.used_at = clock.monotonic()

    @property
    def is_full(self) -> bool:
        return len(self._unfinished) >= self._limits.outputs or self._bytes >= self._limits.bytes

    @property
    def is_idle(self) -> bool:
        return not self._unfinished and self.behind is None

    def offer(self, work: Work, batch: Batch) -> None:
        """Take an output from the stream, or fall behind."""
        now = self._clock.monotonic()
        self.used_at = now
        if work.recovered and not self.action.runs_recovered:
            return
        if self.behind is None:
            if self.is_full and self.action.may_fall_behind:
                self._fall_behind()
                return
            self._take(LaneEntry(work, batch, batch, now))
            batch.left += 1
        elif self._joining is not None:
            if len(self._live) >= self._limits.outputs:
                self._give_up_joining()
            else:
                self._live.append(LaneEntry(work, batch, batch, now))
                batch.left += 1

    def holds_up(self) -> bool:
        """Tell whether the stream has to wait for this lane; `LaneStream.has_room` ends that."""
        # Once said it stays so until `has_room`, though there may be some room before.
        if self.is_full and not self.action.may_fall_behind:
            self._was_full = True
        return self._was_full

    def pump(self) -> None:
        """Begin the outputs that may be begun."""
        waiting = self._waiting
        action = self.action
        while waiting and self._running < action.concurrency and not self._is_closed:
            batch = [waiting.popleft() for _ in range(min(len(waiting), action.max_batch))]
            self._running += 1
            self._spawn(self._run(batch))

    def detach(self, older_than: float) -> None:
        """Stop counting for the stream when an output has taken longer than until this time.

        Those that are unfinished have positions of their own from now on.
        """
        oldest = next(iter(self._unfinished.values()), None)
        if self.action.may_fall_behind and oldest is not None and oldest.begun < older_than:
            for entry in self._unfinished.values():
                entry.release()

    def resume_from(self, positions: ReadPositions) -> None:
        """Begin behind the stream, at positions of an earlier run."""
        self.behind = positions
        self._spawn(self._catch_up())

    def positions(self, stream_positions: ReadPositions) -> ReadPositions | None:
        """Return the positions at which a new run would have to go on with this lane.

        Args:
            stream_positions: Before them the stream is done with everything.

        Returns:
            None when that is where the stream goes on.
        """
        detached = [entry for entry in self._unfinished.values() if entry.batch is None]
        if self.behind is None and not detached:
            return None
        positions = dict(stream_positions if self.behind is None else self.behind)
        for entry in detached:
            work = entry.work
            if work.offset < positions[work.partition].offset:
                output = work.output
                marks: Marks = {
                    **entry.origin.marks,
                    output.position.order(work.partition): mark_before(output.mark),
                }
                positions[work.partition] = ReadPosition(work.offset, marks)
        return positions

    def gap(self) -> int:
        """Return how many outputs, of all rules, are between this lane and the stream."""
        if self.behind is None:
            return 0
        frontier = self._stream.frontier()
        return sum(max(0, frontier[p] - at.offset) for p, at in self.behind.items())

    def count(self) -> None:
        """Add to the counters of the moment, which all versions of a rule share."""
        self.counters.queued += len(self._unfinished)
        self.counters.behind += self.gap()

    async def drain(self) -> None:
        """Wait until nothing is unfinished."""
        while self._unfinished and not self._is_closed:
            self._room.clear()
            await self._room.wait()

    async def close(self, *, drop: bool = False) -> None:
        """End everything; with `drop` unfinished outputs count as dropped."""
        self._is_closed = True
        self._room.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if drop:
            self.counters.dropped += len(self._unfinished)
            for entry in (*self._unfinished.values(), *self._live):
                entry.release()
            self._unfinished.clear()
            self._live.clear()
            self.behind = None
            self._stream.has_room(self)
        for _, action in (("", self.action), *self._fallbacks):
            await action.close()

    # The queue

    def _take(self, entry: LaneEntry) -> None:
        work = entry.work
        self._unfinished[work.partition, work.offset] = entry
        self._bytes += len(work.output.row)
        self._waiting.append(entry)

    def _finish(self, entry: LaneEntry) -> None:
        work = entry.work
        if self._unfinished.pop((work.partition, work.offset), None) is None:
            return
        self._bytes -= len(work.output.row)
        entry.release()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _made_room(self) -> None:
        self._room.set()
        if self._was_full and len(self._unfinished) <= self._limits.outputs // 2:
            self._was_full = False
            self._stream.has_room(self)

    # Being behind

    def _fall_behind(self) -> None:
        self.behind = self._stream.snapshot()
        for entry in self._unfinished.values():
            entry.release()
        fields = {"rule": self.key.rule, "action": self.key.action, "function": self.function}
        logger.warning("an action falls behind", extra={"fields": fields})
        self._spawn(self._catch_up())

    async def _catch_up(self) -> None:
        """Read missed outputs, as there is room, until the stream is met."""
        while self.behind is not None:
            await self._wait_for_room()
            frontier = self._stream.frontier()
            if any(at.offset > frontier[p] for p, at in self.behind.items()):
                # An earlier run was further with this lane than with the others.
                await asyncio.sleep(WAIT_SECONDS)
                continue
            if self.gap() <= JOIN_GAP:
                self._joining = frontier
            try:
                missed = await self._stream.read_missed(
                    self.key,
                    self.behind,
                    frontier,
                    outputs=self._limits.outputs - len(self._unfinished),
                    bytes_=self._limits.bytes - self._bytes,
                )
            except LogError as exc:
                self._give_up_joining()
                logger.warning(
                    "an action cannot read what it missed", extra={"fields": {"reason": str(exc)}}
                )
                await asyncio.sleep(RETRY_READ_SECONDS)
                continue
            now = self._clock.monotonic()
            for work, origin in missed.works:
                self._take(LaneEntry(work, origin, None, now))
            self._count_lost(missed.lost)
            self.behind = missed.positions
            if self._joining is not None and all(
                missed.positions[p].offset >= end for p, end in self._joining.items()
            ):
                self._join()
            else:
                self._give_up_joining()
            self.pump()

    async def _wait_for_room(self) -> None:
        while (
            self._limits.outputs < 2 * len(self._unfinished) or self._limits.bytes < 2 * self._bytes
        ):
            self._room.clear()
            await self._room.wait()

    def _join(self) -> None:
        self.behind = None
        self._joining = None
        live, self._live = self._live, deque()
        for entry in live:
            self._take(entry)
        fields = {"rule": self.key.rule, "action": self.key.action, "function": self.function}
        logger.info("an action has caught up", extra={"fields": fields})

    def _give_up_joining(self) -> None:
        self._joining = None
        for entry in self._live:
            entry.release()
        self._live.clear()

    def _count_lost(self, lost: list[tuple[int, int, int]]) -> None:
        for partition, first, end in lost:
            # The number of outputs of this rule among them is unknown.
            self.counters.dropped += 1
            fields = {
                "rule": self.key.rule,
                "action": self.key.action,
                "partition": partition,
                "first": first,
                "end": end,
            }
            logger.error("the log no longer holds what an action missed", extra={"fields": fields})

    # Carrying out

    async def _run(self, batch: list[LaneEntry]) -> None:
        try:
            await self._carry_out(batch)
        except Exception:
            # A mistake of ours must not hold up later outputs.
            logger.exception("outputs are left undone")
            self.counters.failed += len(batch)
            for entry in batch:
                self._finish(entry)
        finally:
            self._running -= 1
            self._made_room()
            self.pump()

    async def _carry_out(self, entries: list[LaneEntry]) -> None:
        tries = 0
        while entries:
            tries += 1
            problems, is_common = await _attempt(self.action, [entry.work for entry in entries])
            now_ms = self._clock.now_ms()
            for number, entry in enumerate(entries):
                if number not in problems:
                    self.counters.succeed(now_ms - entry.work.output.received_at_ms)
                    self._finish(entry)
            if not problems:
                self._target_is_up()
                return
            failure = next(iter(problems.values())).failure
            if is_common and len(entries) > 1 and failure is not Failure.UNAVAILABLE:
                # It may be one of them alone that spoils the batch.
                self.counters.retried += len(entries)
                for entry in entries:
                    await self._carry_out([entry])
                return
            again: list[LaneEntry] = []
            delay = 0.0
            for number, error in problems.items():
                if self._gives_up(error, tries):
                    await self._give_up(entries[number], error)
                else:
                    again.append(entries[number])
                    delay = max(delay, error.retry_after_seconds)
            entries = again
            if entries:
                self.counters.retried += len(entries)
                await self._pause(self._delay(tries), left_alone=delay)

    def _gives_up(self, error: ActionError, tries: int) -> bool:
        retry = self.action.retry
        match error.failure:
            case Failure.REFUSED:
                self._target_is_up()
                return True
            case Failure.FAILED:
                self._target_is_up()
                return tries >= retry.attempts
            case Failure.UNAVAILABLE:
                now = self._clock.monotonic()
                if self._down_since is None:
                    self._down_since = now
                    self._up.clear()
                    fields = {
                        "rule": self.key.rule,
                        "action": self.key.action,
                        "function": self.function,
                        "reason": str(error),
                    }
                    logger.warning("a target is not available", extra={"fields": fields})
                next_try = now + error.retry_after_seconds
                return next_try - self._down_since >= retry.give_up_after_seconds

    def _target_is_up(self) -> None:
        if self._down_since is not None:
            self._down_since = None
            self._up.set()
            fields = {"rule": self.key.rule, "action": self.key.action, "function": self.function}
            logger.info("a target is available again", extra={"fields": fields})

    def _delay(self, tries: int) -> float:
        retry = self.action.retry
        delay = min(retry.first_delay_seconds * 2.0 ** min(tries - 1, 30), retry.max_delay_seconds)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads tries, hides nothing

    async def _pause(self, seconds: float, *, left_alone: float) -> None:
        """Wait; shorter when another try of this lane finds its target available again.

        But a target that asks to be left alone is, though it still answers another try.
        """
        if left_alone > 0:
            await asyncio.sleep(left_alone + TIMER_SECONDS)
        seconds -= left_alone
        if seconds <= 0:
            return
        if self._down_since is None:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._up.wait()
        except TimeoutError:
            pass

    async def _give_up(self, entry: LaneEntry, error: ActionError) -> None:
        self.counters.failed += 1
        reasons = [str(error)]
        for function, action in self._fallbacks:
            problem = await _attempt_all(action, entry.work)
            if problem is None:
                self._finish(entry)
                return
            reasons.append(f"fallback {function}: {problem}")
        await self._stream.write_dead_letter(entry.work, self.function, "; ".join(reasons))
        self._finish(entry)


async def _attempt(action: Action, works: list[Work]) -> tuple[Problems, bool]:
    """Carry out an action once; return also whether all outputs have one problem in common.

    An error that the action did not expect is the outputs' fault.
    """
    try:
        return await action.run(works), False
    except ActionError as exc:
        problem = exc
    except Exception as exc:
        logger.exception("an action broke")
        problem = ActionError(f"unexpected {type(exc).__name__}: {exc}")
    return dict.fromkeys(range(len(works)), problem), True


async def _attempt_all(action: Action, work: Work) -> ActionError | None:
    """Carry out a fallback; it has its own number of tries, and waits for nothing long.

    A target that asks to be left alone for longer than between any two tries is not tried again.
    """
    retry = action.retry
    delay = retry.first_delay_seconds
    for left in range(min(retry.attempts, MAX_FALLBACK_ATTEMPTS), 0, -1):
        problems, _ = await _attempt(action, [work])
        problem = problems.get(0)
        if problem is None or problem.failure is Failure.REFUSED or left == 1:
            return problem
        left_alone = problem.retry_after_seconds
        if left_alone > retry.max_delay_seconds:
            return problem
        await asyncio.sleep(max(delay, left_alone + TIMER_SECONDS if left_alone else 0.0))
        delay = min(2 * delay, retry.max_delay_seconds)
    return None


MAX_FALLBACK_ATTEMPTS: Final = 3


class BrokenAction:
    """Stands in for an action that cannot be made: each output becomes a dead letter."""

    max_batch = 100
    concurrency = 1
    may_fall_behind = True
    runs_recovered = True
    retry = NO_RETRY

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def run(self, batch: Sequence[Work]) -> Problems:
        return {number: ActionError(self._reason) for number in range(len(batch))}

    async def close(self) -> None:
        pass
