"""The child process: takes small questions on its standard input and answers with Parquet files.

It ends with its input, so also when the API is killed, when nothing was asked for a while, and when
an answer takes more memory than it may.
"""

import json
import os
import resource
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from api.sql.direct.payloads import Unclear, as_variant

NICENESS: Final = 5
"""Clients go before those that ask about the past."""
MOST_BYTES: Final = 1024 * 1024 * 1024
"""Bound of its memory, with what the libraries need."""
MOST_PAYLOADS: Final = 10_000
"""Rows whose payloads are read as JSON here; Spark is faster with more."""
IDLE_SECONDS: Final = 120.0
"""Without a question; a new process takes a second."""
_ROW_GROUP_ROWS: Final = 64 * 1024
_TYPES: Final = {
    "string": pa.string(),
    "tinyint": pa.int8(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
    # As JSON.
    "variant": pa.string(),
    "array<bigint>": pa.string(),
}
_CONFIG: Final = {
    "datafusion.execution.target_partitions": "2",
    "datafusion.execution.parquet.pushdown_filters": "true",
}


class Tables:
    """The tables under a folder, each at its newest version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, DeltaTable] = {}

    def newest(self, name: str) -> DeltaTable:
        table = self._known.pop(name, None)
        if table is None:
            table = DeltaTable(str(self._folder / name))
        else:
            table.update_incremental()
        self._known[name] = table
        return table


def answer(tables: Tables, table: str, sql: str, types: list[str], most: int, target: Path) -> int:
    """Write the rows of a question into a file; return how many there are.

    Args:
        tables: Among them the one that is read.
        table: Its name.
        sql: `SmallQuestion.first`.
        types: Types of the columns, as Spark calls them.
        most: Rows that are written; there may be more.
        target: The file.

    Raises:
        Unclear: Spark may show a payload in another way.
        Exception: Any, of the library; the table cannot be read.
    """
    schema = pa.schema([(f"c{number}", _TYPES[type_]) for number, type_ in enumerate(types)])
    builder = QueryBuilder(_CONFIG).register(table, tables.newest(table))
    rows = 0
    with pq.ParquetWriter(target, schema, compression="snappy") as writer:
        for batch in builder.execute(sql):
            kept = pa.record_batch(batch).slice(0, most - rows)
            rows += kept.num_rows
            if "variant" in types and rows > MOST_PAYLOADS:
                raise Unclear
            arrays = [_stored(kept.column(number), type_) for number, type_ in enumerate(types)]
            writer.write_batch(pa.record_batch(arrays, schema=schema), _ROW_GROUP_ROWS)
            if rows >= most:
                break
    return rows


def _stored(column: pa.Array, type_: str) -> pa.Array:
    if type_ == "variant":
        return pa.array([as_variant(value) for value in column.to_pylist()], pa.string())
    if type_ == "array<bigint>":
        texts = [
            None if value is None else json.dumps(value, separators=(",", ":"))
            for value in column.to_pylist()
        ]
        return pa.array(texts, pa.string())
    return column.cast(_TYPES[type_])


def serve(tables: Tables, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests, a line each, until there are no more for a while."""
    while select.select([requests], [], [], IDLE_SECONDS)[0] and (line := requests.readline()):
        table, sql, types, most, target = json.loads(line)
        try:
            rows = answer(tables, table, sql, types, most, Path(target))
            said: dict[str, Any] = {"rows": rows}
        except Unclear:
            said = {"error": "a payload is for Spark"}
        except Exception as exc:  # noqa: BLE001 - files that cannot be read raise no other
            said = {"error": str(exc).partition("\n")[0]}
        answers.write(json.dumps(said).encode() + b"\n")
        answers.flush()


def _end_with_requests() -> None:
    """End the process when its caller is gone, in the middle of an answer too."""
    poll = select.poll()
    poll.register(0, 0)  # tells of its end alone
    poll.poll()
    os._exit(0)


def main() -> None:
    # The terminal's interrupt is for the API; we end when it does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    threading.Thread(target=_end_with_requests, daemon=True).start()
    with open(0, "rb", buffering=0) as requests:  # each line is in one write
        serve(Tables(Path(sys.argv[1])), requests, sys.stdout.buffer)
    # Past the interpreter's end, which would complain of answers that are not read.
    os._exit(0)


if __name__ == "__main__":
    main()
