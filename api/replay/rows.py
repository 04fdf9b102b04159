"""From a row of a replay's result to the message that is sent."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from api.replay.order import COLUMNS, Place, ReplayOrder
from api.sql.results import Result
from mqlake.errors import InvalidRecord, InvalidTopic, MqlakeError
from mqlake.records.messages import Properties, decode_properties
from mqlake.topics.names import is_system, validate_levels, validate_topic_name

if TYPE_CHECKING:
    import pyarrow as pa


class RowError(MqlakeError):
    """A row is no message."""


class MessageLimits(NamedTuple):
    """Limits of a message that is sent, as of one that a client publishes."""

    payload_bytes: int
    topic_levels: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of the history."""

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties | None
    client_id: str
    message_id: str
    at_us: int
    """When it was accepted, microseconds UTC."""
    partition: int
    offset: int

    @property
    def place(self) -> Place:
        return Place(self.at_us, self.partition, self.offset)


def read_rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the rows of the result of `ordered_query`."""
    for batch in result.batches():
        yield from _rows(batch)


def _rows(batch: "pa.RecordBatch") -> Iterator[dict[str, Any]]:
    columns = [column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(COLUMNS, values, strict=True))


def read_row(row: dict[str, Any], order: ReplayOrder, most: MessageLimits) -> StoredMessage:
    """Return the message of a row, under its new name.

    Raises:
        RowError: It cannot be sent; the message says why.
    """
    topic, payload = row["topic"], row["payload_bytes"]
    if not isinstance(topic, str) or not isinstance(payload, bytes | None):
        raise RowError("topic is no text, or payload_bytes no binary")
    name = order.prefix + topic
    try:
        validate_topic_name(name)
        validate_levels(name, most.topic_levels)
        properties = row["properties"]
        read = decode_properties(properties.encode()) if properties else None
    except (InvalidTopic, InvalidRecord, AttributeError) as exc:
        raise RowError(str(exc)) from exc
    if is_system(name):
        raise RowError(f"topic {name[:100]!r}: those below $SYS are the gateways' own")
    if not order.may_go_to(name):
        raise RowError(f"{order.username} has no right to {name[:100]!r}")
    if payload is not None and len(payload) > most.payload_bytes:
        raise RowError(f"a payload has {len(payload)} bytes, {most.payload_bytes} at most")
    at, qos = row["ts"], row["qos"]
    if not isinstance(at, datetime) or qos not in (0, 1, 2):
        raise RowError("ts is no time, or qos not 0, 1 or 2")
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return StoredMessage(
        topic_name=name,
        payload=payload or b"",
        qos=int(qos),
        retain=bool(row["retain"]),
        properties=read,
        client_id=str(row["client_id"] or ""),
        message_id=str(row["id"] or ""),
        at_us=round(at.timestamp() * 1_000_000),
        partition=int(row["log_partition"]),
        offset=int(row["log_offset"]),
    )
