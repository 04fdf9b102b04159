"""Appending to a Kafka cluster for actions, with the outcome of each record.

A broker refuses a batch as a whole, also when one record of it alone is too large, or when each
would be small enough (`max.message.bytes` of the log topic bounds the batch). So batches are no
larger than their log topic takes: then a record that is too large is in a batch of its own.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from mqlake.clock import Clock
from mqlake.errors import LogError
from mqlake.log.contract import LogFull, LogWriter
from mqlake.log.options import BATCH_BYTES
from mqlake.processes.log_disk import ELSEWHERE, WAIT_SECONDS, LogDisk
from rules.actions.contract import NewRecord
from rules.actions.log import OWN_PREFIX

DELIVERY_TIMEOUT_SECONDS: Final = 600.0
"""Longer than a restart of the brokers: within it librdkafka appends each record exactly once."""
MAX_RECORD_BYTES: Final = 66 * 1024 * 1024
FULL_SECONDS: Final = 0.01
"""Before a full queue is tried again."""
ALONE: Final = 1
"""Bytes of a batch that has one record."""
SMALLER_BATCH_BYTES: Final = (262_144, 65_536, 16_384, 4_096, ALONE)
"""Sizes of batches for log topics that do not take the usual ones. Each has a producer."""
ASK_AGAIN_SECONDS: Final = 10.0
"""How old an answer about a log topic is, at least, when it is asked for again."""
MOST_TOPICS: Final = 1_000
"""Log topics of which the limit is remembered."""


class LogCluster(Protocol):
    """Questions of a target to its cluster."""

    async def record_limit(self, log_topic: str) -> int:
        """Return `max.message.bytes` of a log topic.

        Raises:
            LogError: The log does not answer, or not to us.
        """
        ...

    def open_writer(self, batch_bytes: int) -> LogWriter:
        """Open a writer whose batches are no larger, but for a single record."""
        ...


class _Pending:
    """Records that are appended together."""

    __slots__ = ("done", "errors", "in_batches", "left")

    def __init__(self, count: int, done: asyncio.Future[None]) -> None:
        self.left = count
        self.done = done
        self.errors: dict[int, LogError] = {}
        self.in_batches: set[int] = set()
        """Those that were sent to a log topic of others, in a batch that may have several."""

    def report(self, number: int, _partition: int, _offset: int, error: LogError | None) -> None:
        if error is not None:
            self.errors[number] = error
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True, frozen=True)
class _LogTopic:
    """Facts about one log topic.

    Attributes:
        batch_bytes: That its batches have at most.
        ask_at: Monotonic time from which it may be asked for again.
        is_sure: The cluster has answered.
    """

    batch_bytes: int
    ask_at: float
    is_sure: bool


class KafkaTarget:
    """Keeps the contract `rules.actions.contract.LogTarget`. Make it inside the event loop.

    Args:
        writer: For mqlake's own log topics, which take the usual batches, and for others that do.
        cluster: Answers about the same log.
        clock: Says how old an answer about a log topic is.
        disk: Disk of that log; while it is full records wait, and the actions with them.
    """

    def __init__(
        self, writer: LogWriter, cluster: LogCluster, clock: Clock, disk: LogDisk = ELSEWHERE
    ) -> None:
        self._clock = clock
        self._disk = disk
        self._cluster = cluster
        self._writers = {BATCH_BYTES: writer}
        self._log_topics: dict[str, _LogTopic] = {}
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._in_turn = 0

    async def append(self, records: Sequence[NewRecord]) -> Mapping[int, LogError]:
        """Append records; return errors by index."""
        pending = await self._append(records, alone=False)
        errors = pending.errors
        again = [n for n in sorted(pending.in_batches & errors.keys()) if errors[n].of_batch]
        if not again:
            return errors
        # The broker does not say which one of a batch it is: now each has an answer of its own.
        for log_topic in {records[number].log_topic for number in again}:
            self._doubt(log_topic)
        alone = await self._append([records[number] for number in again], alone=True)
        for number in again:
            del errors[number]
        return errors | {again[index]: error for index, error in alone.errors.items()}

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """End; records not under way yet after the time are not appended."""
        closing = (writer.close(timeout_seconds) for writer in self._writers.values())
        await asyncio.gather(*closing)

    async def _append(self, records: Sequence[NewRecord], *, alone: bool) -> _Pending:
        """Append records; with `alone` each in a batch of its own."""
        pending = _Pending(len(records), self._loop.create_future())
        if not records:
            return pending
        for number, record in enumerate(records):
            waits = self._in_turn or self._disk.why_full()
            if waits or not self._offer(pending, number, record, alone=alone):
                await self._append_in_turn(pending, records, number, alone=alone)
                break
        await pending.done
        return pending

    async def _append_in_turn(
        self, pending: _Pending, records: Sequence[NewRecord], first: int, *, alone: bool
    ) -> None:
        """Go on when there is room; later callers wait too, so that order is kept."""
        self._in_turn += 1
        try:
            async with self._turn:
                for number in range(first, len(records)):
                    record = records[number]
                    while self._disk.why_full():  # noqa: ASYNC110 - a disk has no event
                        await asyncio.sleep(WAIT_SECONDS)
                    while not self._offer(pending, number, record, alone=alone):
                        if not alone and self._is_unknown(record.log_topic):
                            await self._ask(record.log_topic)
                        else:
                            # The writer has no event for having room again
                            await asyncio.sleep(FULL_SECONDS)
        finally:
            self._in_turn -= 1

    def _offer(self, pending: _Pending, number: int, record: NewRecord, *, alone: bool) -> bool:
        """Queue a record; False when the queue is full, or its log topic not known."""
        if alone:
            batch_bytes = ALONE
        elif record.log_topic.startswith(OWN_PREFIX):
            batch_bytes = BATCH_BYTES
        elif self._is_unknown(record.log_topic):
            return False
        else:
            batch_bytes = self._log_topics[record.log_topic].batch_bytes
            if batch_bytes > ALONE:
                pending.in_batches.add(number)
        try:
            self._writer(batch_bytes).append(
                record.log_topic,
                record.key,
                record.value,
                record.headers,
                partial(pending.report, number),
                timestamp_ms=record.timestamp_ms,
            )
        except LogFull:
            return False
        except LogError as error:
            pending.report(number, -1, -1, error)
        return True

    def _writer(self, batch_bytes: int) -> LogWriter:
        if batch_bytes not in self._writers:
            self._writers[batch_bytes] = self._cluster.open_writer(batch_bytes)
        return self._writers[batch_bytes]

    def _is_unknown(self, log_topic: str) -> bool:
        known = self._log_topics.get(log_topic)
        return known is None or not (known.is_sure or self._clock.monotonic() < known.ask_at)

    async def _ask(self, log_topic: str) -> None:
        try:
            limit, is_sure = await self._cluster.record_limit(log_topic), True
        except LogError:
            # Then each record goes by itself. Its append reports what is wrong.
            limit, is_sure = ALONE, False
        sizes = (BATCH_BYTES, *SMALLER_BATCH_BYTES)
        batch_bytes = next((size for size in sizes if size <= limit), ALONE)
        if len(self._log_topics) >= MOST_TOPICS:
            self._log_topics.clear()
        ask_at = self._clock.monotonic() + ASK_AGAIN_SECONDS
        self._log_topics[log_topic] = _LogTopic(batch_bytes, ask_at, is_sure)

    def _doubt(self, log_topic: str) -> None:
        """Ask for a log topic again before its next record, unless it was asked for just now."""
        known = self._log_topics.get(log_topic)
        if known is not None and self._clock.monotonic() >= known.ask_at:
            del self._log_topics[log_topic]
