"""Delta tables for tests, with the columns of `mqlake.tables.catalogue`, written without Spark."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from arro3.core import Array, DataType
from arro3.core import Table as ArrowTable
from deltalake import CommitProperties, write_deltalake

from mqlake.records.messages import Message
from mqlake.tables.catalogue import Table

_TYPES: Final = {
    "string": DataType.string(),
    "binary": DataType.binary(),
    "boolean": DataType.bool(),
    "tinyint": DataType.int8(),
    "int": DataType.int32(),
    "bigint": DataType.int64(),
}
_TIMESTAMP: Final = DataType.timestamp("us", tz="UTC")


def append(
    data_dir: Path,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    next_offsets: Mapping[int, int] | None = None,
    metadata: str | None = None,
) -> None:
    """Append rows in one commit; times are whole microseconds, absent columns null."""
    columns: dict[str, Any] = {}
    for column in table.columns:
        values = [row.get(column.name) for row in rows]
        if column.type == "timestamp":
            columns[column.name] = Array(values, type=DataType.int64()).cast(_TIMESTAMP)
        else:
            columns[column.name] = Array(values, type=_TYPES[column.type])
    if next_offsets is not None:
        metadata = json.dumps({"next_offsets": {str(p): at for p, at in next_offsets.items()}})
    said = None if metadata is None else {"userMetadata": metadata}
    data: Any = ArrowTable.from_pydict(columns)  # its stubs and those of deltalake do not meet
    write_deltalake(
        data_dir / "tables" / table.name,
        data,
        mode="append",
        commit_properties=CommitProperties(custom_metadata=said),
    )


def row_of(message: Message, partition: int, offset: int, *, at_ms: int) -> dict[str, Any]:
    """Return the row of `messages` of a message that was accepted at a time, UTC epoch."""
    return {
        "id": message.message_id.hex(),
        "tenant": message.tenant,
        "topic": message.topic_name,
        "payload": message.payload,
        "qos": message.qos,
        "retain": False,
        "dup": False,
        "client_id": message.client_id,
        "protocol_level": 4,
        "origin": message.origin,
        "ts": at_ms * 1000,
        "log_partition": partition,
        "log_offset": offset,
    }
