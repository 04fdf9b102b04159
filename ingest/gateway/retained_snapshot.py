"""The retained messages as the table `retained` has them: where a starting gateway begins."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from ingest.gateway.delta_table import TableReader
from ingest.gateway.store.retained import RetainedRow
from mqlake.tables import RETAINED

BATCH_ROWS: Final = 1_000
"""Rows that the loop gets at a time; it stores them in about 5 ms."""

# In the order of `RetainedRow`; times are whole microseconds.
_QUERY: Final = f"""
SELECT tenant, topic, payload, qos, properties, client_id,
    CAST(ts AS BIGINT) AS ts, CAST(expires_at AS BIGINT) AS expires_at, log_partition, log_offset
FROM {RETAINED.name}
"""  # noqa: S608 - a constant

RowsConsumer = Callable[[list[RetainedRow]], Awaitable[None]]
"""Takes some rows and is awaited before it gets more."""


async def read_retained(data_dir: Path, on_rows: RowsConsumer) -> dict[int, int]:
    """Hand over all rows of the table `retained` under `<data_dir>/tables`.

    Returns:
        Partition of `mqlake.inbound` -> the offset from which to go on in the log. Empty when
        nothing is known: without a table, or when none of its commits says it.

    Raises:
        TableError: The table cannot be read.
    """
    loop = asyncio.get_running_loop()
    reader = TableReader(data_dir / "tables" / RETAINED.name)
    thread = ThreadPoolExecutor(1, "retained-snapshot")
    try:
        if not await loop.run_in_executor(thread, reader.refresh):
            return {}
        offsets = await loop.run_in_executor(thread, reader.next_offsets)
        batches = _batches(reader)
        while rows := await loop.run_in_executor(thread, next, batches, None):
            await on_rows(rows)
    finally:
        thread.shutdown(wait=False)
    return offsets


def _batches(reader: TableReader) -> Iterator[list[RetainedRow]]:
    for rows in reader.rows(_QUERY):
        for start in range(0, len(rows), BATCH_ROWS):
            yield [_row(values) for values in rows[start : start + BATCH_ROWS]]


def _row(values: tuple[Any, ...]) -> RetainedRow:
    tenant, topic_name, payload, qos, properties, client_id, ts, expires_at, *position = values
    return RetainedRow(
        tenant,
        topic_name,
        payload,
        qos,
        None if properties is None else properties.encode(),
        client_id or "",
        ts // 1000,
        None if expires_at is None else expires_at // 1000,
        *position,
    )
