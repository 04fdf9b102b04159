"""Short stretches of the log, by time: what was written around a message."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from mqlake.errors import LogError
from mqlake.log.security import client_config

TIMEOUT_SECONDS: Final = 10.0
"""Longest without an answer."""
_BATCH: Final = 2_000
_POLL_SECONDS: Final = 0.02
"""A batch is handed over when it is full or after this long."""


class Seen(NamedTuple):
    """A record as it was read."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes
    headers: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What to read of each partition of a log topic.

    Attributes:
        partitions: None: all.
        from_ms: From the first record of this time or later; None: by `starts`.
        until_ms: Up to the first record of a later time; None: up to the end.
        starts: Partition -> offset, where the time does not say it.
        most: Records, over all partitions.
    """

    log_topic: str
    partitions: tuple[int, ...] | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    starts: Mapping[int, int] | None = None
    most: int = 50_000


class Scan(Protocol):
    """Reads the log."""

    def read(self, stretch: Stretch, take: Callable[[Seen], bool]) -> bool:
        """Hand records over, in order within each partition, until `take` says that it is enough.

        Returns:
            Whether all of the stretch was read, or enough: false when there were more than may be.

        Raises:
            LogError: The log does not answer, or there is no such topic.
        """
        ...

    def first_offset(self, log_topic: str, partition: int) -> int:
        """Return the offset of the oldest record that is kept; of the next one if there is none.

        Raises:
            LogError: The log does not answer, or there is no such partition.
        """
        ...

    def close(self) -> None:
        """Let go of the log."""
        ...


class KafkaScan:
    """A `Scan` by librdkafka, with one connection for all that it reads.

    Args:
        bootstrap_servers: host:port[,host:port…].
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer(
            {
                **client_config(bootstrap_servers),
                "client.id": "mqlake-api",
                "group.id": "mqlake-api",  # librdkafka wants a name; nothing is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "log_level": 2,
            }
        )

    def read(self, stretch: Stretch, take: Callable[[Seen], bool]) -> bool:
        try:
            return self._read(self._consumer, stretch, take)
        except KafkaException as exc:
            raise LogError(f"reading {stretch.log_topic}: {exc}", definite=True) from exc
        finally:
            self._consumer.unassign()

    def first_offset(self, log_topic: str, partition: int) -> int:
        place = TopicPartition(log_topic, partition)
        try:
            return self._consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)[0]
        except KafkaException as exc:
            raise LogError(f"reading {log_topic}: {exc}", definite=True) from exc

    def close(self) -> None:
        self._consumer.close()

    def _read(self, consumer: Consumer, stretch: Stretch, take: Callable[[Seen], bool]) -> bool:
        places = self._places(consumer, stretch)
        if not places:
            return True
        consumer.assign(places)
        unread = {place.partition for place in places}
        left = stretch.most
        for record in _records(consumer, stretch.log_topic, unread):
            if record.partition not in unread:
                continue
            if stretch.until_ms is not None and record.timestamp_ms > stretch.until_ms:
                unread.discard(record.partition)
                continue
            if take(record):
                return True
            left -= 1
            if left <= 0:
                return False
        return True

    def _places(self, consumer: Consumer, stretch: Stretch) -> list[TopicPartition]:
        log_topic = stretch.log_topic
        partitions = stretch.partitions
        if partitions is None:
            found = consumer.list_topics(log_topic, timeout=TIMEOUT_SECONDS).topics[log_topic]
            partitions = tuple(found.partitions)
        if stretch.from_ms is not None:
            asked = [TopicPartition(log_topic, one, stretch.from_ms) for one in partitions]
            return [
                place
                for place in consumer.offsets_for_times(asked, timeout=TIMEOUT_SECONDS)
                if place.offset >= 0  # else nothing is as late
            ]
        places = []
        for one in partitions:
            place = TopicPartition(log_topic, one)
            first, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)
            start = (stretch.starts or {}).get(one, first)
            # A negative start counts from the end.
            offset = max(first, end + start if start < 0 else start)
            if offset < end:
                places.append(TopicPartition(log_topic, one, offset))
        return places


def _records(consumer: Consumer, log_topic: str, unread: set[int]) -> Iterator[Seen]:
    """Yield records as long as partitions are left; their ends are told by librdkafka."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while unread:
        for record in consumer.consume(_BATCH, timeout=_POLL_SECONDS):
            deadline = time.monotonic() + TIMEOUT_SECONDS
            partition = record.partition() or 0
            error = record.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(partition)
                continue  # librdkafka tries again by itself
            yield _seen(record, partition)
        if time.monotonic() > deadline:
            raise LogError(
                f"reading {log_topic}: no answer within {TIMEOUT_SECONDS:g} s", definite=True
            )


def _seen(record: Any, partition: int) -> Seen:
    headers = {name: value for name, value in record.headers() or () if isinstance(value, bytes)}
    return Seen(
        partition,
        record.offset() or 0,
        record.timestamp()[1],
        record.key() or b"",
        record.value() or b"",
        headers,
    )
