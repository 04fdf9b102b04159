"""What runs of dead letters have left in the log, so that none is taken twice.

The next run of a rule begins by reading what the last one has written, from where it began:
outputs that are in the log, and marks that say which letters are done with. A run that was killed
between the two has outputs without marks.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mqlake.errors import InvalidRecord, LogError
from mqlake.log.security import client_config
from mqlake.records import DEAD_LETTERS, HEADER_OUTPUT, HEADER_STAGE, OUTPUTS, RECORD_VERSION
from mqlake.rule_records import RERUN, decode_position, rule_record_key

TIMEOUT_SECONDS: Final = 20.0
"""Longest without a record."""
_BATCH: Final = 2_000

Place = tuple[int, int]
"""Partition and offset of a message in `mqlake.inbound`."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Where in the log the last run of a rule began.

    Attributes:
        outputs: Of `mqlake.outputs`, by partition.
        letters: Of `mqlake.dead_letters`, by partition.
    """

    outputs: dict[int, int]
    letters: dict[int, int]


@dataclass(slots=True)
class Left:
    """What the last run has left.

    Attributes:
        made: Messages whose outputs are in the log, in their order there.
        marked: Messages that are marked, likewise.
    """

    made: dict[Place, None] = field(default_factory=dict)
    marked: dict[Place, None] = field(default_factory=dict)


class RerunLog(Protocol):
    """What a run needs to know of the log."""

    def ends(self) -> Begin:
        """Return where the log ends now.

        Raises:
            LogError: It does not answer; the other method raises it too.
        """

    def left(self, tenant: str, rule: str, begin: Begin) -> Left:
        """Return what is there of a rule from a place on."""


class KafkaRerunLog:
    """A `RerunLog` by librdkafka.

    Args:
        bootstrap_servers: host:port[,host:port…].
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers

    def ends(self) -> Begin:
        consumer = self._consumer()
        try:
            return Begin(_ends(consumer, OUTPUTS), _ends(consumer, DEAD_LETTERS))
        except KafkaException as exc:
            raise LogError(f"reading {OUTPUTS}: {exc}", definite=True) from exc
        finally:
            consumer.close()

    def left(self, tenant: str, rule: str, begin: Begin) -> Left:
        key = rule_record_key(tenant, rule)
        left = Left()
        for headers in self._read(OUTPUTS, begin.outputs, key):
            _note(headers, left.made)
        for headers in self._read(DEAD_LETTERS, begin.letters, key):
            if headers.get(HEADER_STAGE) == b"rerun":
                _note(headers, left.marked, source="i")
        return left

    def _read(
        self, log_topic: str, begin: dict[int, int], key: bytes
    ) -> Iterator[dict[str, bytes]]:
        """Yield the headers of the records with a key, up to where the log ends now."""
        consumer = self._consumer()
        try:
            ends = _ends(consumer, log_topic)
            places = []
            for partition, end in ends.items():
                place = TopicPartition(log_topic, partition)
                first, _ = consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)
                offset = max(first, begin.get(partition, 0))
                if offset < end:
                    places.append(TopicPartition(log_topic, partition, offset))
            consumer.assign(places)
            unread = {place.partition for place in places}
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while unread:
                for record in consumer.consume(_BATCH, timeout=0.2):
                    deadline = time.monotonic() + TIMEOUT_SECONDS
                    error = record.error()
                    partition = record.partition() or 0
                    if error is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            unread.discard(partition)
                        continue  # librdkafka tries again by itself
                    if record.key() == key:
                        yield _headers(record)
                    if (record.offset() or 0) >= ends[partition] - 1:
                        unread.discard(partition)
                if time.monotonic() > deadline:
                    raise LogError(
                        f"reading {log_topic}: no answer within {TIMEOUT_SECONDS:g} s",
                        definite=True,
                    )
        except KafkaException as exc:
            raise LogError(f"reading {log_topic}: {exc}", definite=True) from exc
        finally:
            consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **client_config(self._servers),
                "client.id": "mqlake-api",
                "group.id": "mqlake-api",  # librdkafka wants a name; nothing is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 2,
            }
        )


def _ends(consumer: Consumer, log_topic: str) -> dict[int, int]:
    found = consumer.list_topics(log_topic, timeout=TIMEOUT_SECONDS).topics[log_topic]
    return {
        partition: consumer.get_watermark_offsets(
            TopicPartition(log_topic, partition), timeout=TIMEOUT_SECONDS
        )[1]
        for partition in found.partitions
    }


def _headers(record: Message) -> dict[str, bytes]:
    headers = record.headers() or []
    assert isinstance(headers, list)
    return {name: value for name, value in headers if isinstance(value, bytes)}


def _note(headers: dict[str, bytes], places: dict[Place, None], source: str = RERUN) -> None:
    try:
        position = decode_position(headers.get(HEADER_OUTPUT, b""))
    except InvalidRecord:
        return  # somebody else wrote it
    if position.source == source:
        places[position.partition, position.offset] = None


def encode_begin(begin: Begin) -> bytes:
    """Return the value of the record in `mqlake.rules` that says where a run began."""
    fields = {
        "v": RECORD_VERSION,
        "outputs": {str(partition): offset for partition, offset in begin.outputs.items()},
        "letters": {str(partition): offset for partition, offset in begin.letters.items()},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_begin(value: bytes) -> Begin:
    """Undo `encode_begin`.

    Raises:
        InvalidRecord: It is of another form.
    """
    try:
        fields: dict[str, Any] = json.loads(value)
        return Begin(_offsets(fields["outputs"]), _offsets(fields["letters"]))
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidRecord(f"beginning of a rerun is malformed: {exc!r}") from exc


def _offsets(fields: dict[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in fields.items()}
