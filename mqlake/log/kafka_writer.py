"""Append to a Kafka-compatible cluster, by librdkafka.

librdkafka works on threads of its own and calls back only inside `poll`. So a writer has one Python
thread that does nothing but poll, and it crosses into the event loop with one
`call_soon_threadsafe` per burst of reports, not per record: a wake-up costs more than all the rest
of an append. Records of a busy log topic are sent in bursts (`mqlake.log.bursts`).
"""

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial as bind
from typing import Any, Final, NoReturn, cast

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from mqlake.errors import LogError
from mqlake.log.bursts import Bursts
from mqlake.log.contract import (
    ANY_PARTITION,
    DELIVERY_SECONDS,
    MOST_QUEUED_RECORDS,
    AppendCallback,
    LogFull,
    queue,
)
from mqlake.log.kafka_errors import error_of, to_log_error
from mqlake.log.options import MAX_RECORD_BYTES, producer_options
from mqlake.log.partitioning import partition_of
from mqlake.records.versions import Headers

_logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
"""How long the thread polls before it looks whether it should stop; bounds the time of a close."""
REQUEST_SECONDS: Final = 10.0
PRESENT_SECONDS: Final = 2.0
"""How long a partition may take to be known to every broker; then its waiter tries again."""
RETRY_SECONDS: Final = 0.05
_MOST_PARTITIONS: Final = 1 << 31

STATISTICS_MS: Final = 1_000
"""How often librdkafka tells how its brokers answer."""


class KafkaLogWriter:
    """Appends with `acks=all` by an idempotent producer. Make it inside the event loop.

    Args:
        bootstrap_servers: host:port[,host:port…].
        client_id: Name in the broker's logs and metrics.
        max_queued_records: Beyond it `append` raises `LogFull`.
        max_queued_kib: Bound of keys, values and headers together; beyond it `append` raises, too.
        max_record_bytes: Larger records are refused; as the broker's `message.max.bytes`.
        delivery_timeout_seconds: After it a record not yet appended is reported as failed.
        options: Further ones of librdkafka, how to reach a cluster that wants a login say.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "mqlake",
        max_queued_records: int = MOST_QUEUED_RECORDS,
        max_queued_kib: int = 131_072,
        max_record_bytes: int = MAX_RECORD_BYTES,
        delivery_timeout_seconds: float = DELIVERY_SECONDS,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._options = producer_options(
            bootstrap_servers,
            client_id,
            {
                "linger.ms": 0,
                "queue.buffering.max.messages": max_queued_records,
                "queue.buffering.max.kbytes": max_queued_kib,
                "message.max.bytes": max_record_bytes,
                "delivery.timeout.ms": round(delivery_timeout_seconds * 1000),
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._take_statistics,
                **(options or {}),
            },
        )
        self._round_trip_seconds = 0.0
        self._reports: deque[tuple[AppendCallback, int, int, KafkaError | None]] = deque()
        self._report_callback = self._take_report
        self.on_log_time: Callable[[int], None] = lambda _: None
        self._log_time_ms = 0
        self._strays: deque[tuple[AppendCallback, Message]] = deque()
        self._used: dict[str, int] = {}
        self._least_used = _MOST_PARTITIONS
        self._fixed: dict[str, int] = {}  # log topic -> partitions that keys go to
        self._drain_scheduled = False
        self._queued = 0
        self._bursts: dict[str, Bursts] = {}  # by log topic
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._produce: Any
        self._open_producer()

    def append(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        on_appended: AppendCallback,
        *,
        timestamp_ms: int = 0,
        partition: int = ANY_PARTITION,
    ) -> None:
        if self._fixed and partition == ANY_PARTITION and log_topic in self._fixed:
            partition = partition_of(key or b"", self._fixed[log_topic])
        bursts = self._bursts.get(log_topic) or self._bursts_of(log_topic)
        if bursts.is_busy:
            bursts.hold(log_topic, key, value, headers, on_appended, timestamp_ms, partition)
        else:
            self._send(log_topic, key, value, headers, on_appended, timestamp_ms, partition)
            bursts.count()
        self._queued += 1

    def _bursts_of(self, log_topic: str) -> Bursts:
        """Make those of a log topic: one with few records does not wait behind one with many."""
        bursts = self._bursts[log_topic] = Bursts(self._loop, self._send, self._report_unsent)
        return bursts

    def _release(self) -> None:
        for bursts in self._bursts.values():
            bursts.release()

    def _close_bursts(self, error: LogError) -> None:
        for bursts in self._bursts.values():
            bursts.close(error)

    def _send(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        on_appended: AppendCallback,
        timestamp_ms: int,
        partition: int,
    ) -> None:
        report = bind(self._report_callback, on_appended)
        try:
            self._produce(log_topic, value, key, partition, report, None, timestamp_ms, headers)
        except BufferError as exc:
            raise LogFull(f"{self._queued} records wait for the log, no more fit") from exc
        except KafkaException as exc:
            if error_of(exc).code() != KafkaError._FATAL:
                raise to_log_error(error_of(exc), f"appending to {log_topic}") from exc
            # Idempotent producers give up for good when the broker lost acknowledged records.
            self._open_producer()
            self._send(log_topic, key, value, headers, on_appended, timestamp_ms, partition)

    def _report_unsent(self, record: tuple[Any, ...], error: LogError) -> None:
        self._queued -= 1
        on_appended = record[4]
        on_appended(-1, -1, error)
        self._tell_idle()

    async def use_partitions(self, log_topic: str, used: int, *, is_fixed: bool = False) -> None:
        present = await asyncio.to_thread(self._await_partitions, log_topic, used)
        self._release()  # by the partitions that were used when it was appended
        self._used[log_topic] = used
        self._least_used = min(self._used.values())
        if is_fixed:
            self._fixed[log_topic] = used
        elif present > used:
            self._note_alteration(log_topic)
        else:
            self._fixed.pop(log_topic, None)

    def _await_partitions(self, log_topic: str, used: int) -> int:
        """Have the producer know `used` partitions; it refuses those that it does not know."""
        deadline = time.monotonic() + PRESENT_SECONDS
        while True:
            try:
                metadata = self._producer.list_topics(log_topic, timeout=REQUEST_SECONDS)
            except KafkaException as exc:
                raise to_log_error(error_of(exc), f"asking for log topic {log_topic}") from exc
            present = len(metadata.topics[log_topic].partitions)
            if present >= used:
                return present
            if time.monotonic() > deadline:
                raise LogError(
                    f"log topic {log_topic} has {present} partitions, expected {used}",
                    definite=True,
                )
            time.sleep(RETRY_SECONDS)

    def partition_of(self, key: bytes, partitions: int) -> int:
        return partition_of(key, partitions)

    async def append_durably(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        timestamp_ms: int = 0,
        partition: int = ANY_PARTITION,
    ) -> tuple[int, int]:
        return await queue(
            self, log_topic, key, value, headers, timestamp_ms=timestamp_ms, partition=partition
        )

    def queued(self) -> int:
        return self._queued

    def round_trip_seconds(self) -> float:
        return self._round_trip_seconds

    async def flush(self, timeout_seconds: float) -> None:
        self._release()
        if not self._queued:
            return
        idle: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(idle)
        try:
            async with asyncio.timeout(timeout_seconds):
                await idle
        except TimeoutError as exc:
            raise LogError(
                f"{self._queued} records not appended after {timeout_seconds} s", definite=False
            ) from exc

    async def close(self, timeout_seconds: float = 5.0) -> None:
        if self._stop.is_set():
            return
        try:
            await self.flush(timeout_seconds)
        except LogError as exc:
            self._close_bursts(exc)
            self._producer.purge()
            with contextlib.suppress(LogError):  # a purge reports every record; close in any case
                await self.flush(1.0)
        self._stop.set()
        self._produce = _refuse
        self._close_bursts(LogError("the log writer is closed", definite=True))
        del self._producer
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _open_producer(self) -> None:
        producer = Producer(self._options)
        self._producer = producer
        self._produce = producer.produce
        thread = threading.Thread(
            target=self._poll, args=(producer,), name="log-writer", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _poll(self, producer: Producer) -> None:
        """Serve the reports of one producer, on its thread, until the writer is closed."""
        poll = producer.poll
        while not self._stop.is_set():
            try:
                poll(POLL_SECONDS)
            except KafkaException as exc:
                # It has given up for good, and says so once: its reports come all the same.
                fields = {"reason": error_of(exc).str()}
                _logger.error("the log has lost what it had", extra={"fields": fields})
            if (self._reports or self._strays) and not self._drain_scheduled:
                self._drain_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop is closed: no caller is left
                    return

    def _take_statistics(self, text: str) -> None:
        """Note the mean round trip of the slowest broker that was asked; on the poll's thread."""
        trips = [broker["rtt"] for broker in json.loads(text)["brokers"].values()]
        asked = [trip["avg"] for trip in trips if trip["cnt"]]
        self._round_trip_seconds = max(asked, default=0.0) / 1e6

    def _take_report(
        self, on_appended: AppendCallback, error: KafkaError | None, message: Message
    ) -> None:
        partition: Any = message.partition()  # none for a record that failed before it had one
        if error is None and partition >= self._least_used and self._is_astray(message):
            self._strays.append((on_appended, message))
            return
        time_type, timestamp_ms = message.timestamp()
        if time_type == TIMESTAMP_LOG_APPEND_TIME and error is None:
            self._log_time_ms = timestamp_ms
        self._reports.append(
            (on_appended, partition, message.offset(), error)  # type: ignore[arg-type]
        )

    def _is_astray(self, message: Message) -> bool:
        used = self._used.get(str(message.topic()))
        return used is not None and message.partition() >= used  # type: ignore[operator]

    def _append_strays(self) -> None:
        while self._strays:
            on_appended, message = self._strays.popleft()
            log_topic, key = str(message.topic()), message.key()
            self._note_alteration(log_topic)
            self._queued -= 1
            try:
                self.append(
                    log_topic,
                    key,
                    message.value(),
                    cast("Headers", message.headers() or []),
                    on_appended,
                    timestamp_ms=message.timestamp()[1],
                )
            except LogError as exc:
                on_appended(-1, -1, exc)

    def _note_alteration(self, log_topic: str) -> None:
        if log_topic not in self._fixed:
            self._fixed[log_topic] = used = self._used[log_topic]
            _logger.error(
                "log topic has more partitions than it was made with, they stay empty",
                extra={"fields": {"log_topic": log_topic, "used": used}},
            )

    def _drain(self) -> None:
        # Cleared first: a report that comes during the drain schedules the next one.
        self._drain_scheduled = False
        if self._strays:
            self._append_strays()
        reports = self._reports
        count, log_time_ms = len(reports), self._log_time_ms  # in this order: it is of all of them
        self.on_log_time(log_time_ms)
        take = reports.popleft
        try:
            for _ in range(count):
                on_appended, partition, offset, error = take()
                self._queued -= 1
                if error is None:
                    on_appended(partition, offset, None)
                else:
                    on_appended(partition, -1, to_log_error(error, "appending"))
        except BaseException:
            self._loop.call_soon(self._drain)
            raise
        self._tell_idle()

    def _tell_idle(self) -> None:
        if not self._queued and self._idle_waiters:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()


def _refuse(*_: object) -> NoReturn:
    raise LogError("the log writer is closed", definite=True)
