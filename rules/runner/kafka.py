"""The log as the runner uses it: append and know what became of it, follow, read a stretch.

librdkafka works on threads of its own; a Python thread polls it and crosses into the event loop
once per burst, as in the gateways: a wake-up costs more than all the rest of an append.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from mqlake.errors import LogError
from mqlake.records import Headers
from rules.actions.contract import Append

POLL_SECONDS: Final = 0.2
MAX_BATCH_RECORDS: Final = 500
MAX_WAITING_BATCHES: Final = 2
REQUEST_TIMEOUT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.1
DELIVERY_TIMEOUT_SECONDS: Final = 600.0
"""Longer than a restart of the brokers: within it librdkafka appends each record exactly once."""

_DEFINITE: Final = frozenset(
    {
        KafkaError._QUEUE_FULL,
        KafkaError._INVALID_ARG,
        KafkaError._PURGE_QUEUE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Codes after which a record is certainly not in the log."""


_TRANSIENT: Final = frozenset(
    {
        KafkaError._NOENT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)


class Record(NamedTuple):
    """One record as read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers


RecordsCallback = Callable[[list[Record]], None]


def log_error(error: KafkaError, doing: str) -> LogError:
    """Translate what librdkafka reports."""
    text = f"{doing}: {error.str()} ({error.name()})"
    return LogError(text, definite=error.code() in _DEFINITE)


def consumer_options(bootstrap_servers: str, client_id: str, **more: Any) -> dict[str, Any]:
    """Return the options of a consumer that is told what to read and commits nothing."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "client.id": client_id,
        # librdkafka wants a name.
        "group.id": "mqlake",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 500,
        "queued.min.messages": 20_000,
        "queued.max.messages.kbytes": 32_768,
        "fetch.queue.backoff.ms": 10,
        "fetch.error.backoff.ms": 100,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 2,
        **more,
    }


@dataclass(slots=True, eq=False)
class _Pending:
    """The records of one call of `append` that are under way."""

    done: asyncio.Future[Mapping[int, LogError]]
    left: int
    errors: dict[int, LogError] = field(default_factory=dict)


class KafkaTarget:
    """Appends with `acks=all` by an idempotent producer. Make it inside the event loop."""

    def __init__(self, options: Mapping[str, Any], on_fatal: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_fatal = on_fatal
        self._producer = Producer(
            {
                "acks": "all",
                "enable.idempotence": True,
                # Java's default: a key goes where the user's own Kafka programs would put it.
                "partitioner": "murmur2_random",
                "linger.ms": 0,
                "max.in.flight.requests.per.connection": 2,
                "queue.buffering.max.messages": 100_000,
                "queue.buffering.max.kbytes": 131_072,
                "message.max.bytes": 66 * 1024 * 1024,
                "delivery.timeout.ms": round(DELIVERY_TIMEOUT_SECONDS * 1000),
                "topic.metadata.propagation.max.ms": 5_000,
                "allow.auto.create.topics": False,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 2,
                **options,
            }
        )
        self.under_way = 0
        self._finished: deque[_Pending] = deque()
        self._turn = asyncio.Lock()
        self._in_turn = 0
        self._lock = threading.Lock()
        self._is_scheduled = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="log-writer", daemon=True)
        self._thread.start()

    async def append(self, records: Sequence[Append]) -> Mapping[int, LogError]:
        """Append records; return what went wrong, by index."""
        if not records:
            return {}
        pending = _Pending(self._loop.create_future(), len(records))
        self.under_way += len(records)
        produce = self._producer.produce
        report = self._report
        try:
            for number, record in enumerate(records):
                if self._in_turn:
                    await self._append_in_turn(pending, records, number)
                    break
                try:
                    produce(
                        record.log_topic,
                        record.value,
                        record.key,
                        -1,
                        partial(report, pending, number),
                        None,
                        record.timestamp_ms,
                        list(record.headers),
                    )
                except BufferError:
                    await self._append_in_turn(pending, records, number)
                    break
                except KafkaException as exc:
                    self._refuse(pending, number, exc.args[0])
            return await pending.done
        finally:
            self.under_way -= len(records)

    async def _append_in_turn(
        self, pending: _Pending, records: Sequence[Append], first: int
    ) -> None:
        """Go on when the queue is full; whoever comes later waits too, so that order is kept."""
        self._in_turn += 1
        async with self._turn:
            for number in range(first, len(records)):
                record = records[number]
                while True:
                    try:
                        self._producer.produce(
                            record.log_topic,
                            record.value,
                            record.key,
                            -1,
                            partial(self._report, pending, number),
                            None,
                            record.timestamp_ms,
                            list(record.headers),
                        )
                        break
                    except BufferError:
                        await asyncio.sleep(0.01)
                    except KafkaException as exc:
                        self._refuse(pending, number, exc.args[0])
                        break
            self._in_turn -= 1

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """End; what is not under way yet after the time is not appended."""
        if self._stop.is_set():
            return
        if timeout_seconds:
            await asyncio.to_thread(self._producer.flush, timeout_seconds)
        self._producer.purge(in_queue=True, in_flight=False)
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _refuse(self, pending: _Pending, number: int, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL:
            self._on_fatal(f"nothing can be appended any more: {error.str()}")
        self._report(pending, number, error, None)

    def _report(
        self, pending: _Pending, number: int, error: KafkaError | None, _message: Message | None
    ) -> None:
        # On the thread that polls, or on the loop's for what was refused at once.
        with self._lock:
            if error is not None:
                pending.errors[number] = log_error(error, "appending")
            pending.left -= 1
            left = pending.left
        if not left:
            self._finished.append(pending)
            if threading.current_thread() is not self._thread:
                self._loop.call_soon(self._settle)

    def _poll(self) -> None:
        poll = self._producer.poll
        while not self._stop.is_set():
            poll(POLL_SECONDS)
            if self._finished and not self._is_scheduled:
                self._is_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._settle)
                except RuntimeError:  # the loop is closed: nobody is left to be told
                    return

    def _settle(self) -> None:
        self._is_scheduled = False
        while self._finished:
            pending = self._finished.popleft()
            if not pending.done.done():
                pending.done.set_result(pending.errors)


class Follower:
    """Follows partitions of a log topic. Make it inside the event loop.

    Args:
        options: From `consumer_options`.
        on_records: Takes one batch in the loop, in order within each partition.
        on_lost: Takes partition and two offsets: what is between them is no longer in the log.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        on_records: RecordsCallback,
        on_lost: Callable[[int, int, int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._on_records = on_records
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._unpaused = threading.Event()
        self._unpaused.set()
        self._free = threading.Semaphore(MAX_WAITING_BATCHES)
        self._held: deque[list[Record]] = deque()
        self._thread: threading.Thread | None = None

    def start(self, log_topic: str, positions: Mapping[int, int]) -> None:
        consumer = Consumer({**self._options, "error_cb": _ignore})
        consumer.assign([TopicPartition(log_topic, p, at) for p, at in positions.items()])
        self._thread = threading.Thread(
            target=self._read, args=(consumer, log_topic), name="log-reader", daemon=True
        )
        self._thread.start()

    @property
    def is_paused(self) -> bool:
        return not self._unpaused.is_set()

    def pause(self) -> None:
        self._unpaused.clear()

    def resume(self) -> None:
        self._unpaused.set()
        while self._held and self._unpaused.is_set():
            self._hand_over(self._held.popleft())

    async def close(self) -> None:
        self._stop.set()
        self._unpaused.set()
        self._held.clear()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _read(self, consumer: Consumer, log_topic: str) -> None:
        try:
            while not self._stop.is_set():
                if not self._unpaused.wait(POLL_SECONDS):
                    continue
                # Wait for one record, then take what is there without waiting.
                first = consumer.poll(POLL_SECONDS)
                if first is None:
                    continue
                batch: list[Record] = []
                for message in (first, *consumer.consume(MAX_BATCH_RECORDS - 1, 0)):
                    error = message.error()
                    if error is None:
                        batch.append(to_record(message))
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        self._skip_removed(consumer, log_topic, message)
                if batch and self._wait_for_loop():
                    self._loop.call_soon_threadsafe(self._hand_over, batch)
        except RuntimeError:
            if not self._loop.is_closed():  # else nobody is left to read for
                raise
        finally:
            consumer.close()

    def _wait_for_loop(self) -> bool:
        while not self._stop.is_set():
            if self._free.acquire(timeout=POLL_SECONDS):
                return True
        return False

    def _hand_over(self, batch: list[Record]) -> None:
        if self._stop.is_set():
            return
        if not self._unpaused.is_set():
            self._held.append(batch)
            return
        try:
            self._on_records(batch)
        finally:
            self._free.release()

    def _skip_removed(self, consumer: Consumer, log_topic: str, message: Message) -> None:
        partition: Any = message.partition()
        offset: Any = message.offset()
        position = TopicPartition(log_topic, partition, OFFSET_BEGINNING)
        try:
            oldest, _ = consumer.get_watermark_offsets(
                TopicPartition(log_topic, partition), timeout=REQUEST_TIMEOUT_SECONDS
            )
        except KafkaException:
            oldest = offset
        # Fetching has stopped there; a seek is refused in that state, a new assignment is not.
        consumer.incremental_unassign([position])
        consumer.incremental_assign([position])
        self._loop.call_soon_threadsafe(self._on_lost, partition, offset, oldest)


@dataclass(slots=True)
class Stretch:
    """What came of reading a stretch of a log topic."""

    records: list[Record]
    """Those that were wanted."""
    positions: dict[int, int]
    """Where to read on, per partition."""
    lost: list[tuple[int, int, int]]
    """Partition and two offsets: what is between them is no longer in the log."""


class StretchReader:
    """Reads stretches of a log topic on whatever thread asks, one at a time."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._consumer = Consumer(
            {
                **options,
                "error_cb": _ignore,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 5,
                "queued.min.messages": 5_000,
                "queued.max.messages.kbytes": 8_192,
            }
        )

    def read(
        self,
        log_topic: str,
        positions: Mapping[int, int],
        ends: Mapping[int, int],
        is_wanted: Callable[[Message], bool],
        *,
        max_records: int,
        max_bytes: int,
        timeout_seconds: float = 10.0,
    ) -> Stretch:
        """Read up to the ends, or until enough is found.

        Raises:
            LogError: The log gives nothing for so long.
        """
        stretch = Stretch([], dict(positions), [])
        unread = {p: at for p, at in positions.items() if at < ends.get(p, 0)}
        if not unread:
            return stretch
        consumer = self._consumer
        consumer.assign([TopicPartition(log_topic, p, at) for p, at in unread.items()])
        found_bytes = 0
        heard = time.monotonic()
        try:
            while unread:
                first = consumer.poll(POLL_SECONDS)
                if first is None:
                    if time.monotonic() - heard > timeout_seconds:
                        raise LogError(
                            f"reading {log_topic}: nothing for {timeout_seconds:g} s",
                            definite=False,
                        )
                    continue
                for message in (first, *consumer.consume(MAX_BATCH_RECORDS - 1, 0)):
                    partition: Any = message.partition()
                    if partition not in unread:
                        continue
                    error = message.error()
                    at: Any = message.offset()
                    if error is None:
                        heard = time.monotonic()
                        if at < stretch.positions[partition]:
                            continue
                        if at < ends[partition] and is_wanted(message):
                            record = to_record(message)
                            stretch.records.append(record)
                            found_bytes += len(record.value or b"")
                        at += 1
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        at = self._skip_removed(log_topic, partition, stretch)
                    elif error.code() != KafkaError._PARTITION_EOF:
                        continue
                    stretch.positions[partition] = min(at, ends[partition])
                    if at >= ends[partition]:
                        del unread[partition]
                    if len(stretch.records) >= max_records or found_bytes >= max_bytes:
                        return stretch
        finally:
            consumer.unassign()
        return stretch

    def close(self) -> None:
        self._consumer.close()

    def _skip_removed(self, log_topic: str, partition: int, stretch: Stretch) -> int:
        at = stretch.positions[partition]
        try:
            oldest, _ = self._consumer.get_watermark_offsets(
                TopicPartition(log_topic, partition), timeout=REQUEST_TIMEOUT_SECONDS
            )
        except KafkaException as exc:
            raise log_error(exc.args[0], f"reading {log_topic}") from exc
        if oldest > at:
            stretch.lost.append((partition, at, oldest))
        position = TopicPartition(log_topic, partition, max(oldest, at))
        self._consumer.incremental_unassign([position])
        self._consumer.incremental_assign([position])
        return max(oldest, at)


class LogAdmin:
    """Asks the log about its topics; every call blocks."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._client = AdminClient(
            {"bootstrap.servers": bootstrap_servers, "client.id": "mqlake-rules", "log_level": 2}
        )

    def ends(self, log_topic: str) -> dict[int, int]:
        """Return the next offset of each partition.

        Raises:
            LogError: The log does not answer, or has no such topic.
        """
        return self._offsets(log_topic, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def begins(self, log_topic: str) -> dict[int, int]:
        return self._offsets(log_topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends_before(self, log_topic: str, timestamp_ms: int) -> dict[int, int]:
        """Return the offset of each partition's first record that is later, else its end."""
        ends = self.ends(log_topic)
        later = self._offsets(log_topic, OffsetSpec.for_timestamp(timestamp_ms))
        return {p: end if later[p] < 0 else min(end, later[p]) for p, end in ends.items()}

    def ensure(self, log_topic: str, config: Mapping[str, str]) -> None:
        """Create a log topic of one partition unless it exists.

        Raises:
            LogError: The log does not answer or refuses.
        """
        try:
            metadata = self._client.list_topics(timeout=REQUEST_TIMEOUT_SECONDS)
            if log_topic in metadata.topics:
                return
            settings = dict(config)
            replicas = min(3, len(metadata.brokers))
            if replicas == 3:
                settings["min.insync.replicas"] = "2"
            topic = NewTopic(log_topic, 1, replicas, config=settings)
            self._client.create_topics([topic])[log_topic].result(REQUEST_TIMEOUT_SECONDS)
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise log_error(error, f"creating log topic {log_topic}") from exc

    def _offsets(self, log_topic: str, spec: Any) -> dict[int, int]:
        deadline = time.monotonic() + REQUEST_TIMEOUT_SECONDS
        while True:
            try:
                return self._ask_offsets(log_topic, spec)
            except KafkaException as exc:
                error: KafkaError = exc.args[0]
                # A topic that has just been made, and a broker that starts, refuse for a moment.
                is_transient = error.retriable() or error.code() in _TRANSIENT
                if not is_transient or time.monotonic() > deadline:
                    raise log_error(error, f"asking for the offsets of {log_topic}") from exc
            except TimeoutError as exc:
                raise LogError(
                    f"no answer about the offsets of {log_topic}", definite=False
                ) from exc
            time.sleep(RETRY_SECONDS)

    def _ask_offsets(self, log_topic: str, spec: Any) -> dict[int, int]:
        metadata = self._client.list_topics(log_topic, timeout=REQUEST_TIMEOUT_SECONDS)
        count = len(metadata.topics[log_topic].partitions)
        if not count:
            raise LogError(f"log topic {log_topic} does not exist", definite=True)
        asked = {TopicPartition(log_topic, partition): spec for partition in range(count)}
        return {
            position.partition: future.result(REQUEST_TIMEOUT_SECONDS).offset
            for position, future in self._client.list_offsets(asked).items()
        }


def to_record(message: Message) -> Record:
    return Record(
        message.partition(),  # type: ignore[arg-type]
        message.offset(),  # type: ignore[arg-type]
        message.key(),
        message.value(),
        message.headers() or [],  # type: ignore[arg-type]
    )


def _ignore(_: KafkaError) -> None:
    """Leave errors of the client as a whole aside: it connects again, or a read times out."""
