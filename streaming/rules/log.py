"""The log as the rule controller uses it: it follows rules and metrics and appends changes."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from mqlake.log.blocking import Append as Record
from mqlake.log.blocking import BlockingWriter
from mqlake.log.options import consumer_options
from mqlake.records.messages import ACCESS, GATEWAYS, METRICS, RULES
from mqlake.records.rules import rules_barrier_key
from rules.actions.contract import NewRecord
from streaming.rules.signatures import Signatures

CLIENT_ID: Final = "mqlake-rule-controller"
APPEND_SECONDS: Final = 5.0
"""Longest that an append takes. Twice as long is less than the evaluation waits at a barrier, so a
change that is not decided in time is not decided later either."""
_REQUEST_SECONDS: Final = 5.0
_MOST_RECORDS: Final = 1000
_CHANGE: Final = "a change of rules was not written"


class RuleRecord(NamedTuple):
    """A record of a log topic that the controller follows."""

    log_topic: str
    key: bytes
    value: bytes | None
    is_ours: bool = True
    """False for an activation that is not signed as ours are: it is not put in force."""


class RuleLog(Protocol):
    """The log, as the controller needs it."""

    def read(self, timeout_seconds: float) -> list[RuleRecord]:
        """Return new records, all of `mqlake.rules` and `mqlake.access`; wait for some a while."""

    def is_caught_up(self) -> bool:
        """Tell whether all was read that these two had at this moment."""

    def append_barriers(self, change: int) -> dict[str, tuple[int, ...]]:
        """Append the barrier of a change to every partition of the sources; return where.

        Raises:
            LogError: Not in time; some of them may be there.
        """

    def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Append records to `mqlake.rules`, in order, and wait until they are safe.

        Raises:
            LogError: Not in time; the first of them may be there.
        """

    @property
    def is_unsigned(self) -> bool:
        """Tell whether unsigned activations count, as all were unsigned when they were written."""

    def note_signed(self) -> None:
        """Let none of those count any more: all have been written again."""

    def close(self) -> None:
        """Let go of connections."""


class KafkaRuleLog:
    """A `RuleLog` by librdkafka; each call blocks.

    Args:
        bootstrap_servers: host:port[,host:port…].
        partitions: Returns how many each source has; None for a reader that changes no rules.
        is_controllers: Whether `mqlake.access` and `mqlake.gateways` are followed too, and
            `mqlake.metrics` from its end on.
        signatures: Signatures of activations; None: they have none.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        partitions: Callable[[], Mapping[str, int]] | None = None,
        *,
        is_controllers: bool,
        signatures: Signatures | None = None,
    ) -> None:
        self._partitions = partitions
        self._known: dict[str, int] = {}  # partitions that the writer knows
        self._lock = threading.Lock()
        self._signatures = signatures
        self._servers = bootstrap_servers
        self._writer: BlockingWriter | None = None  # once something is written
        self._consumer = Consumer(
            consumer_options(
                bootstrap_servers,
                CLIENT_ID,
                {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 500},
            )
        )
        whole = (RULES, ACCESS) if is_controllers else (RULES,)
        followed = [TopicPartition(one, 0, OFFSET_BEGINNING) for one in whole]
        if is_controllers:
            # Gateways write without end: the start does not wait until all of that is read.
            followed.append(TopicPartition(GATEWAYS, 0, OFFSET_BEGINNING))
            followed.append(TopicPartition(METRICS, 0, OFFSET_END))
        self._consumer.assign(followed)
        self._next = dict.fromkeys(whole, 0)

    def read(self, timeout_seconds: float) -> list[RuleRecord]:
        records: list[RuleRecord] = []
        # To ask for many would wait for many: the first one ends the wait.
        first = self._consumer.poll(timeout_seconds)
        if first is None:
            return records
        for message in (first, *self._consumer.consume(_MOST_RECORDS, 0)):
            if message.error() is not None:
                continue  # librdkafka tries again by itself
            log_topic = message.topic() or ""
            if log_topic in self._next:
                self._next[log_topic] = (message.offset() or 0) + 1
            records.append(self._record(message))
        return records

    def _record(self, message: Message) -> RuleRecord:
        key, value = _bytes(message.key()) or b"", _bytes(message.value())
        log_topic = message.topic() or ""
        is_ours = True
        if log_topic == RULES and self._signatures is not None:
            headers: Any = message.headers() or []
            is_ours = self._signatures.is_ours(key, value, headers)
        return RuleRecord(log_topic, key, value, is_ours or self.is_unsigned)

    @property
    def is_unsigned(self) -> bool:
        return self._signatures is not None and self._signatures.is_first

    def note_signed(self) -> None:
        if self._signatures is not None:
            self._signatures.note_signed()

    def is_caught_up(self) -> bool:
        return all(self._is_read(log_topic) for log_topic in self._next)

    def _is_read(self, log_topic: str) -> bool:
        place = TopicPartition(log_topic, 0)
        try:
            _, end = self._consumer.get_watermark_offsets(place, timeout=_REQUEST_SECONDS)
        except KafkaException:
            return False
        positions = self._consumer.position([place])
        return end == 0 or max(self._next[log_topic], positions[0].offset) >= end

    def append_barriers(self, change: int) -> dict[str, tuple[int, ...]]:
        key = rules_barrier_key(change)
        assert self._partitions is not None, "of the controller"
        partitions = self._partitions()
        writer = self._writing()
        for log_topic, count in partitions.items():
            if self._known.get(log_topic, count) < count:  # it refuses those that it does not know
                writer.use_partitions(log_topic, count)
            self._known[log_topic] = count
        places = [(one, at) for one, count in partitions.items() for at in range(count)]
        barriers = [(log_topic, Record(at, key, None, [])) for log_topic, at in places]
        offsets = iter(writer.append_each(barriers, what=_CHANGE))
        return {
            log_topic: tuple(next(offsets) for _ in range(count))
            for log_topic, count in partitions.items()
        }

    def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        signatures = self._signatures
        signed = [
            Record(0, key, value, [] if signatures is None else signatures.headers(key, value))
            for key, value in records
        ]
        self._writing().append_all(RULES, signed, what=_CHANGE)

    def append(self, records: Sequence[NewRecord]) -> None:
        """Append records to the one partition of their log topics and wait until they are safe.

        Raises:
            LogError: Not in time; the first of them may be there.
        """
        placed = [
            (one.log_topic, Record(0, one.key or b"", one.value, one.headers, one.timestamp_ms))
            for one in records
        ]
        self._writing().append_each(placed, what=_CHANGE)

    def followed(self) -> frozenset[str]:
        """Return the log topics that are read."""
        return frozenset(one.topic for one in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()
        if self._writer is not None:
            self._writer.close()

    def _writing(self) -> BlockingWriter:
        with self._lock:
            if self._writer is None:
                self._writer = BlockingWriter(self._servers, CLIENT_ID, APPEND_SECONDS)
            return self._writer


def _bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
