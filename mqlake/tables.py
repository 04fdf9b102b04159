"""The Delta tables: names, columns with their units, keys and clustering.

`docs/tables.md` is this module in prose. Each table has one writer, the streaming application;
everything else reads. Columns are only ever added.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """Spark SQL type."""
    comment: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    comment: str
    columns: tuple[Column, ...]
    cluster_by: tuple[str, ...]


MESSAGES: Final = Table(
    name="messages",
    comment="Every accepted message, once; appended in the order of the log's partitions",
    columns=(
        Column("id", "string", "message identifier, 32 hexadecimal digits, sortable by time"),
        Column("tenant", "string", "tenant that owns the topic"),
        Column("topic", "string", "topic name"),
        Column("payload", "binary", "payload as published"),
        Column("qos", "tinyint", "QoS of the PUBLISH: 0, 1 or 2"),
        Column("retain", "boolean", "RETAIN flag of the PUBLISH"),
        Column("dup", "boolean", "DUP flag of the PUBLISH"),
        Column("client_id", "string", "client identifier of the publisher"),
        Column("username", "string", "user name of the publisher; null without one"),
        Column("protocol_level", "tinyint", "MQTT of the publisher: 3 (3.1), 4 (3.1.1) or 5 (5.0)"),
        Column("properties", "string", "5.0 message properties as a JSON object; null without any"),
        Column("origin", "string", "site/gateway that accepted the message"),
        Column("ts", "timestamp", "when the gateway accepted it, UTC, milliseconds"),
        Column("log_partition", "int", "partition of mqlake.inbound"),
        Column("log_offset", "bigint", "offset in that partition; with it the key of the row"),
    ),
    cluster_by=("tenant", "topic", "ts"),
)

TABLES: Final = (MESSAGES,)
