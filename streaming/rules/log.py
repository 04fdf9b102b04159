"""The log as the rule controller uses it: it follows rules and metrics and appends changes."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from mqlake.errors import LogError
from mqlake.log.security import client_config
from mqlake.records import ACCESS, METRICS, RULES, Headers
from mqlake.rule_records import rules_barrier_key
from rules.actions.contract import Append
from streaming.rules.signatures import Signatures

APPEND_SECONDS: Final = 5.0
"""Longest that an append takes. Twice as long is less than the evaluation waits at a barrier, so a
change that is not decided in time is not decided later either."""
_REQUEST_SECONDS: Final = 5.0
_MOST_RECORDS: Final = 1000

_Placed = tuple[str, int, bytes | None, bytes | None, Headers]
"""Log topic, partition, key, value and headers of a record."""


class RuleRecord(NamedTuple):
    """A record of `mqlake.rules`, `mqlake.access` or `mqlake.metrics`."""

    log_topic: str
    key: bytes
    value: bytes | None
    is_ours: bool = True
    """False for an activation that is not signed as ours are: nobody puts it in force."""


class RuleLog(Protocol):
    """What the controller needs of a log."""

    def read(self, timeout_seconds: float) -> list[RuleRecord]:
        """Return what is new, all of `mqlake.rules` and `mqlake.access`; wait for it a while."""

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
        """Whether activations count that are not signed, as none was when they were written."""

    def note_signed(self) -> None:
        """Let none of those count any more: all have been written anew."""

    def close(self) -> None:
        """Let go of connections."""


class KafkaRuleLog:
    """A `RuleLog` by librdkafka; each call blocks.

    Args:
        bootstrap_servers: host:port[,host:port…].
        partitions: Of each source; none for whoever changes no rules.
        is_controllers: Whether `mqlake.access` is followed too, and `mqlake.metrics` from its end
            on.
        signatures: Of activations; None: they have none.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        partitions: dict[str, int],
        *,
        is_controllers: bool,
        signatures: Signatures | None = None,
    ) -> None:
        self._partitions = partitions
        self._signatures = signatures
        common = {
            **client_config(bootstrap_servers),
            "client.id": "mqlake-rule-controller",
            "allow.auto.create.topics": False,
            "log_level": 2,
        }
        self._producer = Producer(
            {
                **common,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "delivery.timeout.ms": round(APPEND_SECONDS * 1000),
                "queue.buffering.max.messages": 100_000,
            }
        )
        self._consumer = Consumer(
            {
                **common,
                "group.id": "mqlake",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 500,
            }
        )
        whole = (RULES, ACCESS) if is_controllers else (RULES,)
        followed = [TopicPartition(one, 0, OFFSET_BEGINNING) for one in whole]
        if is_controllers:
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
        places: list[_Placed] = [
            (log_topic, partition, key, None, [])
            for log_topic, count in self._partitions.items()
            for partition in range(count)
        ]
        offsets = iter(self._append(places))
        return {
            log_topic: tuple(next(offsets) for _ in range(count))
            for log_topic, count in self._partitions.items()
        }

    def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        signatures = self._signatures
        self._append(
            [
                (RULES, 0, key, value, [] if signatures is None else signatures.headers(key, value))
                for key, value in records
            ]
        )

    def append(self, records: Sequence[Append]) -> None:
        """Append records to the one partition of their log topics and wait until they are safe.

        Raises:
            LogError: Not in time; the first of them may be there.
        """
        self._append([(one.log_topic, 0, one.key, one.value, one.headers) for one in records])

    def followed(self) -> frozenset[str]:
        """Return the log topics that are read."""
        return frozenset(one.topic for one in self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()

    def _append(self, records: Sequence[_Placed]) -> list[int]:
        """Append records; return their offsets."""
        offsets: dict[int, int] = {}
        errors: list[KafkaError] = []

        def report(number: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets[number] = message.offset() or 0

        for number, (log_topic, partition, key, value, headers) in enumerate(records):
            self._producer.produce(
                log_topic,
                value,
                key,
                partition,
                on_delivery=partial(report, number),
                headers=[*headers],
            )
        left = self._producer.flush(2 * APPEND_SECONDS)
        if errors or left or len(offsets) < len(records):
            reason = errors[0].str() if errors else "no answer"
            raise LogError(f"a change of rules was not written: {reason}", definite=False)
        return [offsets[number] for number in range(len(records))]


def _bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
