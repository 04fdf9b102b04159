"""The retained messages of shards as the table `retained` has them: where a copy begins.

They come in portions in the order of the store's index, in which many rows of a portion share a
page: the store takes them in two thirds of the time.
"""

from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Any, Final

from ingest.gateway.lake.table import TableReader
from ingest.gateway.store.retained import RetainedRow
from mqlake.tables.catalogue import RETAINED

# In the order of `RetainedRow`; times are whole microseconds.
_QUERY: Final = f"""
SELECT tenant, topic, payload, qos, properties, client_id,
    CAST(ts AS BIGINT) AS ts, CAST(expires_at AS BIGINT) AS expires_at, log_partition, log_offset
FROM {RETAINED.name}
WHERE log_partition IN ("""  # noqa: S608 - a constant

SORTED_ROWS: Final = 50_000
SORTED_BYTES: Final = 32 * 1024 * 1024
"""Bytes of payloads. A portion ends when either is reached."""

_ORDER: Final = attrgetter("shard", "tenant", "topic_name")


def read_retained(reader: TableReader, partitions: Collection[int]) -> Iterator[RetainedRow]:
    """Yield the rows of the table at the version that the reader is at.

    They have partition and offset as shard and rank, as the table has them.

    Args:
        reader: Reader of the table.
        partitions: Number of partitions of `mqlake.inbound`; at least one.

    Raises:
        TableError: The table cannot be read.
    """
    portion: list[RetainedRow] = []
    size = 0
    for rows in reader.rows(f"{_QUERY}{', '.join(map(str, partitions))})"):
        for row in map(_row, rows):
            portion.append(row)
            size += len(row.payload or b"")
            if len(portion) == SORTED_ROWS or size >= SORTED_BYTES:
                yield from sorted(portion, key=_ORDER)
                portion, size = [], 0
    yield from sorted(portion, key=_ORDER)


def _row(values: tuple[Any, ...]) -> RetainedRow:
    *message, properties, client_id, ts, expires_at, partition, offset = values
    tenant, topic_name, payload, qos = message
    return RetainedRow(
        tenant,
        topic_name,
        payload,
        qos,
        None if properties is None else properties.encode(),
        client_id or "",
        ts // 1000,
        None if expires_at is None else expires_at // 1000,
        partition,
        offset,
    )
