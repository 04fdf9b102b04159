"""Follow partitions of a Kafka-compatible cluster, by librdkafka.

librdkafka fetches ahead on threads of its own. A reader has one Python thread that takes messages
that are there, builds records and hands them to the event loop in batches; it waits while the loop
has enough. That thread alone uses the consumer: a call from another one waits until no poll is
under way, and with polls in a row that may be for ever.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from mqlake.errors import BatchNotTaken, LogError, OffsetGone
from mqlake.log import admin
from mqlake.log.contract import BEGINNING, END, ErrorCallback, RecordsCallback
from mqlake.log.kafka_errors import CONNECTION_CODES, error_of, to_log_error
from mqlake.log.options import consumer_options
from mqlake.log.stalls import StallWatch
from mqlake.records.messages import LogRecord

POLL_SECONDS: Final = 0.2
"""How long the thread polls before it looks for orders; bounds the time of a close, and of a change
of the partitions that are followed."""

RETRY_SECONDS: Final = 0.5
"""Before another consumer takes the place of one that has failed."""

PACED_AFTER: Final = 20
"""Batches beyond the pace that make a stream one to be paced."""

HURRIED_SECONDS: Final = 1.0
"""How long a call of `hurry` holds."""

LIVELY_SECONDS: Final = 1.0
"""For so long after a change of its partitions the thread looks for the next one at once."""

LIVELY_POLL_SECONDS: Final = 0.01

LATE_BYTES: Final = 256 * 1024
"""So much is fetched at once by a reader that is late."""

MAX_WAITING_BATCHES: Final = 2
"""One that the loop is working on, one ready for it."""


class Pace:
    """Tells when a reader is to wait until more records have come together.

    Args:
        seconds: Pause between batches of a stream that no client waits for; 0: no pause.
    """

    __slots__ = ("_due", "_hurried_until", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # When the next batch of a stream is due; it may come `PACED_AFTER` times as much earlier.
        self._due = 0.0
        self._hurried_until = 0.0

    def hurry(self, now: float) -> None:
        """Note that a client waits for records."""
        self._hurried_until = now + HURRIED_SECONDS

    def after_batch(self, now: float, *, is_full: bool) -> float:
        """Return for how many seconds to wait after a batch; one that is full has more behind."""
        self._due = max(self._due + self._seconds, now)
        early = self._due - now - PACED_AFTER * self._seconds
        if early <= 0:
            return 0.0
        if is_full or now < self._hurried_until:
            self._due -= early
            return 0.0
        return early


class KafkaLogReader:
    """Follows assigned partitions of a cluster. Make it inside the event loop.

    Args:
        bootstrap_servers: host:port[,host:port…].
        client_id: Name in the broker's logs and metrics.
        max_batch_records: Largest batch handed to the loop.
        request_timeout_seconds: How long a question to the broker may take.
        pace_seconds: From records that come more often for a while, and that no client waits for,
            take a batch each time this is over, and not each answer of the broker by itself: that
            wakes two threads, and has few.
        late_seconds: How long the broker may wait until more records have come together; 0: it
            answers at once.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "mqlake",
        max_batch_records: int = 500,
        request_timeout_seconds: float = 10.0,
        pace_seconds: float = 0.0,
        late_seconds: float = 0.0,
    ) -> None:
        self._pace = Pace(pace_seconds)
        # The thread's: whether it waits for an answer, which comes from another one.
        self._stalls = StallWatch()
        self._is_asking = False
        self._ends: deque[dict[int, int] | None] = deque()
        self._loop = asyncio.get_running_loop()
        self._bootstrap_servers = bootstrap_servers
        self._timeout = request_timeout_seconds
        self._max_batch_records = max_batch_records
        self._options = consumer_options(
            bootstrap_servers,
            client_id,
            {
                # The broker answers when there is so much, else after this: 2 requests/s when idle.
                "fetch.min.bytes": LATE_BYTES if late_seconds else 1,
                "fetch.wait.max.ms": round(late_seconds * 1000) or 500,
                # Records fetched ahead of a paused loop; the default backoff stops it for 1 s.
                "queued.min.messages": 20_000,
                "queued.max.messages.kbytes": 32_768,
                "fetch.queue.backoff.ms": 10,
                "fetch.error.backoff.ms": 100,
            },
        )
        self._thread: threading.Thread | None = None
        self._log_topic = ""
        # Of partitions followed: librdkafka lets only the thread that polls change them.
        self._changes: deque[Callable[[Consumer], None]] = deque()
        self._changed = threading.Event()
        # The thread's: of each partition that is followed the next offset to be handed over.
        self._next: dict[int, int] = {}
        # Also whether anything is followed, and until when further changes are likely.
        self._follows = False
        self._lively_until = 0.0
        self._stop = threading.Event()
        self._hurried = threading.Event()
        self._unpaused = threading.Event()
        self._unpaused.set()
        self._free_batches = threading.Semaphore(MAX_WAITING_BATCHES)
        self._paused_batches: deque[list[LogRecord]] = deque()
        self._on_records: RecordsCallback = _ignore
        self._on_error: ErrorCallback = _ignore
        # Nothing can be read, as was reported; librdkafka says so at each attempt. The thread's.
        self._is_cut_off = False

    async def start(
        self,
        log_topic: str,
        positions: Mapping[int, int],
        on_records: RecordsCallback,
        on_error: ErrorCallback,
    ) -> dict[int, int]:
        if self._thread is not None:
            raise RuntimeError("the reader is started already")
        self._on_records = on_records
        self._on_error = on_error
        self._log_topic = log_topic
        offsets = await asyncio.to_thread(self._resolve, log_topic, dict(positions))
        self._next.update(offsets)
        consumer = await asyncio.to_thread(self._open, log_topic)
        self._thread = threading.Thread(
            target=self._read, args=(consumer, log_topic), name="log-reader", daemon=True
        )
        self._thread.start()
        return offsets

    async def follow(self, positions: Mapping[int, int]) -> dict[int, int]:
        log_topic = self._log_topic
        offsets = dict(positions)
        if BEGINNING in offsets.values() or END in offsets.values():
            offsets = await asyncio.to_thread(self._resolve, log_topic, offsets)
        assigned = [TopicPartition(log_topic, p, offset) for p, offset in offsets.items()]

        def assign(consumer: Consumer) -> None:
            self._next.update(offsets)
            consumer.incremental_assign(assigned)

        self._change(assign)
        return offsets

    def unfollow(self, partitions: Collection[int]) -> None:
        assigned = [TopicPartition(self._log_topic, partition) for partition in partitions]

        def unassign(consumer: Consumer) -> None:
            for partition in partitions:
                self._next.pop(partition, None)
            consumer.incremental_unassign(assigned)

        self._change(unassign)

    def _change(self, change: Callable[[Consumer], None]) -> None:
        self._changes.append(change)
        self._changed.set()

    def pause(self) -> None:
        self._unpaused.clear()

    def resume(self) -> None:
        self._unpaused.set()
        while self._paused_batches and self._unpaused.is_set():
            self._hand_over(self._paused_batches.popleft())

    def hurry(self) -> None:
        self._pace.hurry(time.monotonic())
        self._hurried.set()

    async def partition_count(self, log_topic: str) -> int:
        return await asyncio.to_thread(
            admin.partition_count, self._bootstrap_servers, log_topic, self._timeout
        )

    async def end_offsets(self, log_topic: str) -> dict[int, int]:
        return await asyncio.to_thread(
            admin.offsets, self._bootstrap_servers, log_topic, admin.END_OFFSETS, self._timeout
        )

    async def begin_offsets(self, log_topic: str) -> dict[int, int]:
        return await asyncio.to_thread(
            admin.offsets, self._bootstrap_servers, log_topic, admin.BEGIN_OFFSETS, self._timeout
        )

    async def read_compacted(
        self, log_topic: str, timeout_seconds: float = 30.0
    ) -> dict[bytes, LogRecord]:
        return await asyncio.to_thread(self._read_compacted, log_topic, timeout_seconds)

    async def close(self) -> None:
        self._stop.set()
        self._hurried.set()
        self._changed.set()
        self._unpaused.set()
        self._paused_batches.clear()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _warm(self, consumer: Consumer, log_topic: str) -> None:
        """Connect a consumer: one that is cold begins to fetch half a second late.

        It connects by itself where this fails.
        """
        with suppress(KafkaException):
            consumer.list_topics(log_topic, self._timeout)

    def _resolve(self, log_topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        """Turn `BEGINNING` and `END` into offsets now: librdkafka would do it some time later."""
        log = admin.LogAdmin(self._bootstrap_servers, self._timeout)
        ends = log.ends(log_topic)
        missing = positions.keys() - ends.keys()
        if missing:
            raise LogError(
                f"log topic {log_topic} has {len(ends)} partitions, no partition {min(missing)}",
                definite=True,
            )
        begins: Mapping[int, int] = {}
        if BEGINNING in positions.values():
            begins = log.begins(log_topic)
        return {
            partition: ends[partition]
            if position == END
            else begins[partition]
            if position == BEGINNING
            else position
            for partition, position in positions.items()
        }

    def _open(self, log_topic: str) -> Consumer:
        """Return a consumer that goes on with the records to be handed over next."""
        consumer = Consumer({**self._options, "error_cb": self._take_client_error})
        self._warm(consumer, log_topic)
        consumer.assign([TopicPartition(log_topic, p, offset) for p, offset in self._next.items()])
        self._follows = bool(self._next)
        return consumer

    def _read(self, first: Consumer, log_topic: str) -> None:
        """Fetch and hand over, on the reader's thread, until the reader is closed."""
        consumer: Consumer | None = first
        try:
            while not self._stop.is_set():
                try:
                    consumer = consumer or self._open(log_topic)
                    self._read_by(consumer, log_topic)
                except KafkaException as exc:
                    # This consumer is of no more use. Another one can go on: the log may be well.
                    self._take_client_error(error_of(exc))
                    if consumer is not None:
                        consumer.close()
                        consumer = None
                    self._stop.wait(RETRY_SECONDS)
        except RuntimeError:
            if not self._loop.is_closed():  # else there is no reader left
                raise
        finally:
            if consumer is not None:
                consumer.close()

    def _read_by(self, consumer: Consumer, log_topic: str) -> None:
        poll, consume = consumer.poll, consumer.consume
        more = self._max_batch_records - 1
        pace, next_ = self._pace, self._next
        while not self._stop.is_set():
            self._take_changes(consumer)
            if self._stalls.is_due(time.monotonic()):
                self._look_for_stalls(log_topic)
            if not self._unpaused.wait(POLL_SECONDS):
                continue
            # `consume` waits until it has all it was asked for or the time is over: to get those
            # there at once, wait for one record and then take the rest without waiting.
            first = poll(self._poll_seconds())
            if first is None:
                continue
            batch = []
            for message in (first, *consume(more, 0)):
                if message.error() is None:
                    batch.append(to_record(message))
                else:
                    self._take_error(consumer, log_topic, message)
            if batch:
                self._is_cut_off = False
            if batch and self._wait_for_loop():
                for record in batch:
                    next_[record.partition] = record.offset + 1
                self._loop.call_soon_threadsafe(self._hand_over, batch)
            self._hurried.clear()  # before it looks for waiters
            rest = pace.after_batch(time.monotonic(), is_full=len(batch) > more)
            if rest and not self._stop.is_set():
                self._hurried.wait(rest)

    def _take_changes(self, consumer: Consumer) -> None:
        """Follow the partitions asked for; while there are none, wait for a change."""
        while True:
            self._changed.clear()
            if self._changes:
                while self._changes:
                    self._changes.popleft()(consumer)
                self._follows = bool(consumer.assignment())
                now = time.monotonic()
                self._lively_until = now + LIVELY_SECONDS
                self._stalls.doubt(now)
            if self._follows or self._stop.is_set():
                return
            consumer.poll(0)  # callbacks of the client library for errors
            self._changed.wait(POLL_SECONDS)

    def _look_for_stalls(self, log_topic: str) -> None:
        """Raise KafkaException when partitions are left aside: another consumer is to go on.

        The consumer itself is not asked: on its connection an answer waits behind each fetch.
        """
        if not self._is_asking:
            self._is_asking = True
            asking = threading.Thread(
                target=self._ask_ends, args=(log_topic,), name="log-ends", daemon=True
            )
            asking.start()
            return
        if not self._ends:
            return  # no answer yet
        self._is_asking = False
        now, ends = time.monotonic(), self._ends.popleft()
        if ends is None:
            self._stalls.postpone(now)
        elif left := self._stalls.look(now, self._next, ends):
            problem = f"partitions {left} of {log_topic} are not read though they have records"
            raise KafkaException(KafkaError(KafkaError._STATE, problem))

    def _ask_ends(self, log_topic: str) -> None:
        """Answer the reader's thread, on another one, with where the log ends; None: not known."""
        try:
            self._ends.append(
                admin.LogAdmin(self._bootstrap_servers, self._timeout).ends(log_topic)
            )
        except LogError:
            self._ends.append(None)

    def _poll_seconds(self) -> float:
        return LIVELY_POLL_SECONDS if time.monotonic() < self._lively_until else POLL_SECONDS

    def _wait_for_loop(self) -> bool:
        """Wait until the loop has taken enough; False when the reader is closed meanwhile."""
        while not self._stop.is_set():
            if self._free_batches.acquire(timeout=POLL_SECONDS):
                return True
        return False

    def _hand_over(self, batch: list[LogRecord]) -> None:
        if self._stop.is_set():
            return
        if not self._unpaused.is_set():
            self._paused_batches.append(batch)
            return
        try:
            self._on_records(batch)
        except Exception as exc:
            self._stop.set()
            raise BatchNotTaken(f"records of {self._log_topic} were not taken: {exc}") from exc
        finally:
            self._free_batches.release()

    def _take_error(self, consumer: Consumer, log_topic: str, message: Message) -> None:
        error: Any = message.error()
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Fetching has stopped there; a seek is refused in that state, a new assignment is not.
            partition: Any = message.partition()
            if partition not in self._next:
                return  # it is not followed any more
            position = TopicPartition(log_topic, partition, OFFSET_BEGINNING)
            consumer.incremental_unassign([position])
            consumer.incremental_assign([position])
            problem = f"offset {message.offset()} of {log_topic} partition {partition} is not there"
            self._tell(OffsetGone(f"{problem}, reading goes on at the oldest record"))
        else:
            self._take_client_error(error)

    def _take_client_error(self, error: KafkaError) -> None:
        self._stalls.doubt(time.monotonic())
        if not self._is_cut_off:
            self._is_cut_off = True
            self._tell(to_log_error(error, "reading"))

    def _tell(self, error: LogError) -> None:
        if not self._stop.is_set():
            self._loop.call_soon_threadsafe(self._hand_over_error, error)

    def _hand_over_error(self, error: LogError) -> None:
        if not self._stop.is_set():
            self._on_error(error)

    def _read_compacted(self, log_topic: str, timeout_seconds: float) -> dict[bytes, LogRecord]:
        deadline = time.monotonic() + timeout_seconds
        log = admin.LogAdmin(self._bootstrap_servers, timeout_seconds)
        ends, begins = log.ends(log_topic), log.begins(log_topic)
        unread = {partition for partition, end in ends.items() if begins[partition] < end}
        found: dict[bytes, LogRecord] = {}
        if not unread:
            return found
        # The end-of-partition event ends a partition whose last records compaction has removed.
        consumer = Consumer({**self._options, "enable.partition.eof": True})
        try:
            self._warm(consumer, log_topic)
            consumer.assign([TopicPartition(log_topic, p, begins[p]) for p in unread])
            while unread:
                first = consumer.poll(POLL_SECONDS)
                if time.monotonic() > deadline:
                    raise LogError(
                        f"reading {log_topic} took more than {timeout_seconds:g} s", definite=False
                    )
                if first is None:
                    continue
                for message in (first, *consumer.consume(5_000, 0)):
                    error = message.error()
                    record = to_record(message)
                    if error is None:
                        _apply(found, record)
                        next_offset = record.offset + 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        next_offset = record.offset
                    elif error.retriable() or error.code() in CONNECTION_CODES:
                        continue
                    else:
                        raise to_log_error(error, f"reading {log_topic}")
                    if next_offset >= ends[record.partition]:
                        unread.discard(record.partition)
        finally:
            consumer.close()
        return found


_new: Final = tuple.__new__  # half the cost of LogRecord(...)


def to_record(message: Message) -> LogRecord:
    """Return librdkafka's message as a record; of an error only the position counts."""
    return _new(
        LogRecord,
        (
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            message.key(),
            message.value(),
            message.headers() or [],
        ),
    )


def _apply(found: dict[bytes, LogRecord], record: LogRecord) -> None:
    key = record.key or b""
    if record.value is None:
        found.pop(key, None)
    else:
        found[key] = record


def _ignore(_: object) -> None:
    """Stand in for the callbacks before `start`."""
