"""A thread that reads log topics from their beginning and follows them, for views of the API."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, NamedTuple, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from api.log.appending import CLIENT_ID
from mqlake.errors import InvalidRecord, LogError, MqlakeError
from mqlake.log.options import LOST_CODES, consumer_options

_logger = logging.getLogger(__name__)

BATCH_RECORDS: Final = 2_000
POLL_SECONDS: Final = 0.2
"""Between two looks at whether to stop."""
RETRY_SECONDS: Final = 1.0
METADATA_SECONDS: Final = 10.0


class Followed(NamedTuple):
    """A record of a followed log topic."""

    log_topic: str
    offset: int
    key: bytes
    value: bytes | None
    """None: a tombstone."""
    at_ms: int = 0
    """UTC epoch; by the log's clock where the log topic has that."""


class Taker(ABC):
    """Takes the records that are read, from the beginning of the log on."""

    @abstractmethod
    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        """Apply records in their order; return errors of those that could not be read.

        Args:
            records: Records of one log topic.
            is_old: They may have been there before the reading began.
        """

    @abstractmethod
    def complete(self) -> None:
        """All that was in the log when the reading began has been taken."""


class Followable(Protocol):
    """Something that a follower keeps as the log has it."""

    def taking(self) -> AbstractContextManager[Taker]:
        """Begin again and yield the object that takes the records."""
        ...


class KeptInMemory(Taker):
    """Takes records into memory; safe to use from any thread."""

    @abstractmethod
    def forget(self) -> None:
        """Begin again."""

    @contextmanager
    def taking(self) -> Iterator[Taker]:
        """Begin again and yield the object that takes the records."""
        self.forget()
        yield self


class LogFollower:
    """Reads until stopped; begins again when the log is not as it was.

    Args:
        servers: Bootstrap servers of the log.
        name: Name of the thread; in the process's log, a word for the records.
        kept: Log topic -> view that takes its records; those of a partition come in their order.
        pace_seconds: How long a batch may take to fill, where records come by the thousand; they
            are seen that much later. 0: each is taken when it comes.
    """

    def __init__(
        self,
        servers: str,
        name: str,
        kept: Mapping[str, Sequence[Followable]],
        *,
        pace_seconds: float = 0.0,
    ) -> None:
        self._servers = servers
        self._name = name
        self._kept = kept
        self._pace_seconds = pace_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name} follower", daemon=True)
        self._problem = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop; returns when the thread has ended."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except (MqlakeError, KafkaException) as exc:
                if str(exc) != self._problem:  # said once, not each second
                    _logger.warning(
                        "%s cannot be read", self._name, extra={"fields": {"reason": exc}}
                    )
                self._problem = str(exc)
            self._stop.wait(RETRY_SECONDS)

    def _follow(self) -> None:
        """Read until it is stopped.

        Raises:
            LogError: The log has no such topic (yet), or no longer the records to read.
            OperationalError: The records cannot be kept.
        """
        consumer = self._consumer()
        partitions = _partitions(consumer, tuple(self._kept))
        unread = set(partitions)
        try:
            consumer.assign([TopicPartition(*one, OFFSET_BEGINNING) for one in partitions])
            with ExitStack() as stack:
                takers = [
                    (log_topic, stack.enter_context(one.taking()))
                    for log_topic, kept in self._kept.items()
                    for one in kept
                ]
                while not self._stop.is_set():
                    records, ended = _split(self._batch(consumer))
                    for log_topic, taker in takers:
                        of_this = [one for one in records if one.log_topic == log_topic]
                        for refused in taker.take(of_this, is_old=bool(unread)) if of_this else ():
                            _refuse(refused)
                    if unread and not (unread := unread - ended):
                        for _, taker in takers:
                            taker.complete()
                        self._problem = ""
                        _logger.info("%s are read", self._name)
        finally:
            consumer.close()

    def _batch(self, consumer: Consumer) -> list[KafkaMessage]:
        if self._pace_seconds:
            return consumer.consume(BATCH_RECORDS, timeout=self._pace_seconds)
        return take_batch(consumer, BATCH_RECORDS, POLL_SECONDS)

    def _consumer(self) -> Consumer:
        options = {
            "enable.partition.eof": True,
            # The broker answers when there is so much, else after this: 2 requests/s when idle.
            "fetch.min.bytes": 65_536 if self._pace_seconds else 1,
            "fetch.wait.max.ms": round(self._pace_seconds * 1000) or 500,
            "queued.max.messages.kbytes": 16_384,
            "topic.metadata.propagation.max.ms": 1_000,
        }
        return Consumer(consumer_options(self._servers, CLIENT_ID, options))


def take_batch(consumer: Consumer, most_records: int, wait_seconds: float) -> list[KafkaMessage]:
    """Return the first record as soon as there is one, and those that have come with it."""
    first = consumer.poll(wait_seconds)
    return [] if first is None else [first, *consumer.consume(most_records, timeout=0)]


def _partitions(consumer: Consumer, log_topics: Sequence[str]) -> list[tuple[str, int]]:
    """Return all partitions of log topics.

    Raises:
        LogError: There is no such log topic (yet).
    """
    partitions = []
    for log_topic in log_topics:
        metadata = consumer.list_topics(log_topic, timeout=METADATA_SECONDS).topics[log_topic]
        if not metadata.partitions:
            raise LogError(f"log topic {log_topic} does not exist", definite=True)
        partitions += [(log_topic, partition) for partition in sorted(metadata.partitions)]
    return partitions


def _split(batch: list[KafkaMessage]) -> tuple[list[Followed], set[tuple[str, int]]]:
    """Return the records of a batch and the partitions whose end has come."""
    records: list[Followed] = []
    ended: set[tuple[str, int]] = set()
    for record in batch:
        error = record.error()
        log_topic = record.topic() or ""
        if error is None:
            key, value, offset = record.key() or b"", record.value(), record.offset()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes | None)
            assert offset is not None
            at_ms = record.timestamp()[1]
            records.append(Followed(log_topic, offset, key, value, at_ms))
        elif error.code() == KafkaError._PARTITION_EOF:
            partition = record.partition()
            assert partition is not None
            ended.add((log_topic, partition))
        elif error.code() in LOST_CODES:
            raise LogError(f"reading {log_topic}: {error.str()}", definite=True)
    return records, ended


def _refuse(error: InvalidRecord) -> None:
    _logger.warning("record ignored", extra={"fields": {"reason": str(error)}})
