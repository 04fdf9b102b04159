"""Read ranges of a Kafka-compatible cluster over one connection that stays warm, by librdkafka.

One thread owns the consumer. The reads take turns on it: a turn assigns the partitions at the
offsets where the read stands, takes records, and ends when the read is complete, when others wait
and it has had its time, or when its consumer is busy: it is then parked until there is room for its
next batch. An assignment to a warm consumer costs a few milliseconds.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mqlake.errors import LogError
from mqlake.log.contract import Missing, RangeConsumer
from mqlake.log.kafka_errors import error_of, to_log_error
from mqlake.log.kafka_reader import to_record
from mqlake.log.options import UNKNOWN_CODES, consumer_options
from mqlake.log.shorter import lost_end
from mqlake.records.messages import LogRecord

POLL_SECONDS: Final = 0.1
"""How long the thread polls before it looks whether it should stop; bounds the time of a close."""

TURN_SECONDS: Final = 0.2
"""How long a read goes on while others wait."""

PATIENCE_SECONDS: Final = 0.02
"""How long a read whose consumer is busy holds up others that wait."""

MAX_WAITING_BATCHES: Final = 2
"""One that the consumer is working on, one ready for it."""

QUESTION_SECONDS: Final = 2.0
"""How long the broker has to say which offset is its oldest."""

RETRY_SECONDS: Final = 0.05
"""Before a position that the log does not have yet is asked for again."""


class _Unfinished(Enum):
    """How a turn ended that did not complete its read."""

    ITS_TIME_IS_OVER = auto()
    PARKED = auto()
    ABANDONED = auto()


_Outcome = LogError | _Unfinished | None
"""Result of a turn; None when the read is complete."""


@dataclass(slots=True, eq=False)
class _Read:
    """One call of `read_range`: the rest of it, shared by the loop and the thread."""

    log_topic: str
    timeout_seconds: float
    unread: dict[int, tuple[int, int]]
    """Partition -> (next offset, end). Written by the thread; never empty ranges."""
    batches: asyncio.Queue[list[LogRecord] | LogError | None] = field(default_factory=asyncio.Queue)
    """Ends with None when all is read, else with the error. Bounded by `free`."""
    missing: list[Missing] = field(default_factory=list)
    free: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(MAX_WAITING_BATCHES)
    )
    ready: list[LogRecord] = field(default_factory=list)
    """The batch being made; when parked, the one for which there was no room."""
    silent_seconds: float = 0.0
    """How long the log has given nothing, over all turns."""
    problem: str = ""
    """The log's last error."""
    handed: int = 0
    taken: int = 0
    """Batches given to the consumer, and those of them that it is done with."""
    parked: bool = False
    """Waits until its consumer has taken all; not in the queue of those that wait for a turn."""
    cancelled: bool = False


class KafkaRangeReader:
    """Reads ranges of log topics. Make it inside the event loop.

    Args:
        bootstrap_servers: host:port[,host:port…].
        client_id: Name in the broker's logs and metrics.
        max_batch_records: Largest batch handed to a consumer.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "mqlake",
        max_batch_records: int = 500,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_batch_records = max_batch_records
        self._options = consumer_options(
            bootstrap_servers,
            client_id,
            {
                # As the router reads: offsets mean the same to both.
                "isolation.level": "read_uncommitted",
                # Ends a range whose last offsets hold no records.
                "enable.partition.eof": True,
                # A read that begins waits until the last fetch of the one before has its answer.
                "fetch.min.bytes": 1,
                "fetch.wait.max.ms": 2,
                # Records fetched ahead of a busy consumer, and for nothing behind a range's end.
                "queued.min.messages": 20_000,
                "queued.max.messages.kbytes": 32_768,
                "fetch.queue.backoff.ms": 5,
                "fetch.error.backoff.ms": 50,
            },
        )
        self._reads: set[_Read] = set()  # the loop's
        # Guards the fields below and `_Read.parked`; tells the thread of new ones.
        self._changed = threading.Condition()
        self._waiting: deque[_Read] = deque()
        self._closed = False
        self._partitions: dict[str, int] = {}  # the thread's: log topics known to be there
        self._thread = threading.Thread(target=self._work, name="log-range-reader", daemon=True)
        self._thread.start()

    async def read_range(
        self,
        log_topic: str,
        ranges: Mapping[int, tuple[int, int]],
        on_records: RangeConsumer,
        *,
        timeout_seconds: float = 10.0,
    ) -> list[Missing]:
        unread = {partition: at for partition, at in ranges.items() if at[0] < at[1]}
        if not unread:
            return []
        if self._closed:
            raise _closed_error()
        read = _Read(log_topic, timeout_seconds, unread)
        self._reads.add(read)
        self._queue(read)
        try:
            while (batch := await read.batches.get()) is not None:
                if isinstance(batch, LogError):
                    raise batch
                await on_records(batch)
                self._make_room(read)
            return read.missing
        finally:
            read.cancelled = True
            self._reads.discard(read)

    async def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)
        self._end_reads()

    def _end_reads(self) -> None:
        for read in self._reads:
            read.batches.put_nowait(_closed_error())

    def _make_room(self, read: _Read) -> None:
        with self._changed:
            read.free.release()
            read.taken += 1
            if read.parked and read.taken == read.handed:
                self._queue(read)

    def _queue(self, read: _Read) -> None:
        with self._changed:
            read.parked = False
            self._waiting.append(read)
            self._changed.notify()

    def _work(self) -> None:
        """Give each waiting read its turn, on the reader's thread, until the reader is closed."""
        consumer = Consumer(self._options)
        try:
            while (read := self._next()) is not None:
                outcome = self._take_turn(consumer, read)
                if not isinstance(outcome, _Unfinished):
                    self._hand_over(read, outcome)
                elif outcome is _Unfinished.ITS_TIME_IS_OVER:
                    self._queue(read)
        finally:
            # Also after a mistake of ours: no caller must wait for a thread that is no more.
            self._closed = True
            consumer.close()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._end_reads)

    def _next(self) -> _Read | None:
        """Wait for the next read; None when the reader is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return None if self._closed else self._waiting.popleft()

    def _take_turn(self, consumer: Consumer, read: _Read) -> _Outcome:
        """Go on with a read; return None when it is complete."""
        try:
            if read.ready and not self._offer(read):
                return _Unfinished.PARKED
            if read.cancelled:
                return _Unfinished.ABANDONED
            if not read.unread:
                return None
            self._check_partitions(consumer, read)
            consumer.assign(
                [
                    TopicPartition(read.log_topic, partition, offset)
                    for partition, (offset, _) in read.unread.items()
                ]
            )
            try:
                return self._read(consumer, read)
            finally:
                consumer.unassign()
        except LogError as exc:
            return exc
        except KafkaException as exc:
            return to_log_error(error_of(exc), f"reading {read.log_topic}")

    def _read(self, consumer: Consumer, read: _Read) -> _Outcome:
        poll, consume = consumer.poll, consumer.consume
        more = self._max_batch_records - 1
        started = time.monotonic()
        heard = started
        while read.unread:
            # As in `KafkaLogReader`: wait for one, then take those that are there without waiting.
            first = poll(POLL_SECONDS)
            for message in () if first is None else (first, *consume(more, 0)):
                if message.error() is None:
                    self._take(consumer, read, to_record(message))
                else:
                    self._take_error(consumer, read, message)
            now = time.monotonic()
            if read.ready:
                read.silent_seconds = 0.0
                if not self._offer(read):
                    return _Unfinished.PARKED
                now = time.monotonic()
            else:
                read.silent_seconds += now - heard
                if read.unread and read.silent_seconds > read.timeout_seconds:
                    return _silence(read)
            heard = now
            if read.cancelled or self._closed:
                return _Unfinished.ABANDONED
            if self._waiting and now - started > TURN_SECONDS and read.unread:
                return _Unfinished.ITS_TIME_IS_OVER
        return None

    def _take(self, consumer: Consumer, read: _Read, record: LogRecord) -> None:
        at = read.unread.get(record.partition)
        if at is None or record.offset < at[0]:
            return  # fetched ahead
        if record.offset < at[1]:
            read.ready.append(record)
        self._advance(consumer, read, record.partition, record.offset + 1)

    def _advance(self, consumer: Consumer, read: _Read, partition: int, offset: int) -> None:
        end = read.unread[partition][1]
        if offset < end:
            read.unread[partition] = (offset, end)
            return
        del read.unread[partition]
        if read.unread:  # else all of them are taken away together
            consumer.incremental_unassign([TopicPartition(read.log_topic, partition)])

    def _take_error(self, consumer: Consumer, read: _Read, message: Message) -> None:
        """Go on after an error, or raise the one that will not go away."""
        error: Any = message.error()
        partition: Any = message.partition()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            offset: Any = message.offset()
            if partition in read.unread and offset >= read.unread[partition][0]:
                self._advance(consumer, read, partition, offset)
        elif code == KafkaError._AUTO_OFFSET_RESET:
            if partition in read.unread:
                self._skip_removed(consumer, read, partition)
        elif code in _DEFINITE_CODES:
            raise to_log_error(error, f"reading {read.log_topic}")
        else:
            read.problem = error.str()

    def _skip_removed(self, consumer: Consumer, read: _Read, partition: int) -> None:
        """Go on at the oldest record when retention has overtaken the read, else ask again."""
        offset, end = read.unread[partition]
        oldest, newest = self._bounds(consumer, read, partition)
        if oldest > offset:
            read.silent_seconds = 0.0
            read.missing.append(Missing(partition, offset, min(oldest, end)))
            self._advance(consumer, read, partition, oldest)
            if partition not in read.unread:
                return
        else:
            read.problem = f"offset {offset} of partition {partition} is not there"
            if 0 <= newest < offset:
                read.problem = lost_end(offset, newest)
            time.sleep(RETRY_SECONDS)
        # Fetching has stopped there; a seek is refused in that state, a new assignment is not.
        position = TopicPartition(read.log_topic, partition, max(oldest, offset))
        consumer.incremental_unassign([position])
        consumer.incremental_assign([position])

    def _check_partitions(self, consumer: Consumer, read: _Read) -> None:
        """Refuse a partition that is not there; librdkafka would look for it for half a minute."""
        count = self._partitions.get(read.log_topic, 0)
        if max(read.unread) < count:
            return
        metadata = consumer.list_topics(read.log_topic, timeout=read.timeout_seconds)
        count = len(metadata.topics[read.log_topic].partitions)
        if not count:
            raise LogError(f"log topic {read.log_topic} does not exist", definite=True)
        self._partitions[read.log_topic] = count
        if max(read.unread) >= count:
            raise LogError(
                f"log topic {read.log_topic} has {count} partitions, "
                f"no partition {max(read.unread)}",
                definite=True,
            )

    def _bounds(self, consumer: Consumer, read: _Read, partition: int) -> tuple[int, int]:
        """Return begin and end of a partition, -1 when the log does not say."""
        position = TopicPartition(read.log_topic, partition)
        try:
            begin, end = consumer.get_watermark_offsets(position, timeout=QUESTION_SECONDS)
        except KafkaException as exc:
            read.problem = error_of(exc).str()
            return -1, -1
        return begin, end

    def _offer(self, read: _Read) -> bool:
        """Hand over ready records; False when there is no room: the read is then parked."""
        deadline = time.monotonic() + TURN_SECONDS
        while not read.free.acquire(timeout=PATIENCE_SECONDS):
            if not (self._waiting or self._closed or time.monotonic() > deadline):
                continue
            with self._changed:
                # Anybody who makes room after this sees that the read is parked.
                if read.free.acquire(blocking=False):
                    break
                read.parked = True
                return False
        batch, read.ready = read.ready, []
        read.handed += 1
        self._hand_over(read, batch)
        return True

    def _hand_over(self, read: _Read, item: list[LogRecord] | LogError | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no reader left
            self._loop.call_soon_threadsafe(read.batches.put_nowait, item)


_DEFINITE_CODES: Final = UNKNOWN_CODES | {KafkaError.TOPIC_AUTHORIZATION_FAILED}


def _silence(read: _Read) -> LogError:
    partition, (offset, end) = next(iter(read.unread.items()))
    cause = f": {read.problem}" if read.problem else ""
    return LogError(
        f"reading {read.log_topic}: nothing for {read.timeout_seconds:g} s at offset {offset} "
        f"of partition {partition}, expected offsets up to {end}{cause}",
        definite=False,
    )


def _closed_error() -> LogError:
    return LogError("the log reader was closed", definite=True)
