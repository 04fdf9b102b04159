"""Outputs and marks of earlier reruns in the log, so that no dead letter is taken twice.

The next run of a rule begins by reading the records of the last one, from where it began:
outputs that are in the log, and marks that say which letters are done with. A run that was killed
between the two has outputs without marks.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from api.log.appending import CLIENT_ID
from mqlake.errors import InvalidRecord
from mqlake.log.admin import LogAdmin
from mqlake.log.blocking import BlockingReader
from mqlake.records.messages import DEAD_LETTERS, HEADER_OUTPUT, HEADER_STAGE, OUTPUTS, LogRecord
from mqlake.records.outputs import RERUN, decode_position, rule_record_key
from mqlake.records.versions import RECORD_VERSION

Place = tuple[int, int]
"""Partition and offset of a message in `mqlake.inbound`."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Position in the log at which the last run of a rule began.

    Attributes:
        outputs: Offsets of `mqlake.outputs`, by partition.
        letters: Offsets of `mqlake.dead_letters`, by partition.
    """

    outputs: dict[int, int]
    letters: dict[int, int]


@dataclass(slots=True)
class Left:
    """Outputs and marks that the last run has left.

    Attributes:
        made: Messages whose outputs are in the log, in their order there.
        marked: Messages that are marked, in their order there.
    """

    made: dict[Place, None] = field(default_factory=dict)
    marked: dict[Place, None] = field(default_factory=dict)


class RerunLog(Protocol):
    """The log as a run needs it."""

    def ends(self) -> Begin:
        """Return the present end of the log.

        Raises:
            LogError: It does not answer; the other method raises it too.
        """

    def left(self, tenant: str, rule: str, begin: Begin) -> Left:
        """Return the outputs and marks of a rule from an offset of each partition on."""


class KafkaRerunLog:
    """A `RerunLog` of a Kafka-compatible cluster.

    Args:
        bootstrap_servers: host:port[,host:port…].
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers

    def ends(self) -> Begin:
        admin = LogAdmin(self._servers)
        return Begin(admin.ends(OUTPUTS), admin.ends(DEAD_LETTERS))

    def left(self, tenant: str, rule: str, begin: Begin) -> Left:
        key = rule_record_key(tenant, rule)
        left = Left()

        def take_output(record: LogRecord) -> bool:
            if record.key == key:
                _note(_headers(record), left.made)
            return False

        def take_letter(record: LogRecord) -> bool:
            if record.key == key and (headers := _headers(record)).get(HEADER_STAGE) == b"rerun":
                _note(headers, left.marked, source="i")
            return False

        with BlockingReader(self._servers, CLIENT_ID) as reader:
            _read(reader, OUTPUTS, begin.outputs, take_output)
            _read(reader, DEAD_LETTERS, begin.letters, take_letter)
        return left


def _read(
    reader: BlockingReader,
    log_topic: str,
    begin: dict[int, int],
    take: Callable[[LogRecord], bool],
) -> None:
    """Hand over the records from a position on, up to the present end of the log."""
    first, ends = reader.admin.begins(log_topic), reader.admin.ends(log_topic)
    ranges = {one: (max(first[one], begin.get(one, 0)), end) for one, end in ends.items()}
    reader.read(log_topic, ranges, take)


def _headers(record: LogRecord) -> dict[str, bytes]:
    return {name: value for name, value in record.headers if isinstance(value, bytes)}


def _note(headers: dict[str, bytes], places: dict[Place, None], source: str = RERUN) -> None:
    try:
        position = decode_position(headers.get(HEADER_OUTPUT, b""))
    except InvalidRecord:
        return  # another program wrote it
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
