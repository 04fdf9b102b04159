"""Result of a query: a Parquet file that Spark has written, read a little at a time.

Spark Connect would keep a whole result in the memory that other queries need; a file costs a tenth
of a second, and errors of a query are known before the first byte of the answer.
"""

import base64
import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import pyarrow as pa

_FORMULA: Final = re.compile(r"[=@\t\r]|[+-](?!\.?[0-9][0-9.eE+-]*$)")
"""Beginnings of cells that spreadsheets evaluate; a number with its sign is none."""

Format = Literal["json", "jsonl", "csv", "parquet"]
MEDIA_TYPES: Final[dict[Format, str]] = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}

_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Python's text -> Spark's, of doubles that are no numbers of JSON."""

_BATCH_BYTES: Final = 2 * 1024 * 1024
"""About so much is in memory at once, several times over while it is written in another form."""
_MOST_BATCH_ROWS: Final = 4096
_READ_BUFFER: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """Name as the query gives it, which may come twice; type as Spark calls it."""

    name: str
    type: str
    is_json: bool
    """Spark has written it as JSON text: nested values and variants."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result on disk.

    Attributes:
        files: In the order of their rows.
        rows: As many as may be shown.
        is_truncated: There were more.
        complete_until: Up to when the tables had all messages, as answers have it; None: unknown.
    """

    columns: tuple[ResultColumn, ...]
    files: tuple[Path, ...]
    rows: int
    is_truncated: bool
    complete_until: str | None = None

    def touch(self) -> None:
        """Say that it is still read, when that takes hours."""
        for folder in {path.parent.parent for path in self.files}:
            os.utime(folder)

    def batches(self) -> Iterator["pa.RecordBatch"]:
        """Yield the rows; columns are called c0, c1 and so on."""
        import pyarrow.parquet as pq

        left = self.rows
        for path in self.files:
            if left <= 0:
                return
            with pq.ParquetFile(path, buffer_size=_READ_BUFFER, pre_buffer=False) as file:
                size = _batch_rows(file.metadata)
                for batch in file.iter_batches(size, use_threads=False):
                    yield batch.slice(0, left)
                    left -= batch.num_rows
                    if left <= 0:
                        return


def _batch_rows(metadata: Any) -> int:
    widest = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        widest = max(widest, group.total_byte_size // max(1, group.num_rows))
    return max(1, min(_MOST_BATCH_ROWS, _BATCH_BYTES // widest))


def write(result: Result, form: Format) -> Iterator[bytes]:
    """Yield a result in one of the forms."""
    return _WRITERS[form](result)


def _json(result: Result) -> Iterator[bytes]:
    """One object: columns, rows as arrays, one a line, and facts about them."""
    columns = [{"name": column.name, "type": column.type} for column in result.columns]
    yield f'{{"columns": {_dumps(columns)},\n"rows": ['.encode()
    is_first = True
    for rows in _texts(result):
        lines = ",\n".join(f"[{', '.join(row)}]" for row in rows)
        yield f"{'' if is_first else ','}\n{lines}".encode()
        is_first = False
    end = {
        "row_count": result.rows,
        "truncated": result.is_truncated,
        "complete_until": result.complete_until,
    }
    yield f"],\n{_dumps(end)[1:]}\n".encode()


def _json_lines(result: Result) -> Iterator[bytes]:
    names = [json.dumps(name, ensure_ascii=False) for name in unique_names(result.columns)]
    for rows in _texts(result):
        lines = (
            "{"
            + ", ".join(f"{name}: {text}" for name, text in zip(names, row, strict=True))
            + "}\n"
            for row in rows
        )
        yield "".join(lines).encode()


def _csv(result: Result) -> Iterator[bytes]:
    """RFC 4180: a header, then a line for each row; a null is an empty field.

    A text that a spreadsheet would take for a formula gets an apostrophe before it: anybody who
    may publish writes texts.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow([_no_formula(column.name) for column in result.columns])
    for batch in result.batches():
        columns = [[_field(value) for value in _values(column)] for column in batch.columns]
        writer.writerows(zip(*columns, strict=True))
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def _parquet(result: Result) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = _Sink()
    names = unique_names(result.columns)
    schema: pa.Schema | None = None
    writer: Any = None
    for batch in result.batches():
        if writer is None:
            schema = pa.schema(
                [field.with_name(name) for field, name in zip(batch.schema, names, strict=True)]
            )
            writer = pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd")
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        yield sink.taken()
    if writer is None:
        file = pq.ParquetFile(result.files[0]) if result.files else None
        empty = file.schema_arrow if file is not None else pa.schema([])
        schema = pa.schema([f.with_name(n) for f, n in zip(empty, names, strict=False)])
        writer = pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema)
    writer.close()
    yield sink.taken()


_WRITERS: Final[dict[Format, Callable[[Result], Iterator[bytes]]]] = {
    "json": _json,
    "jsonl": _json_lines,
    "csv": _csv,
    "parquet": _parquet,
}


class _Sink(io.RawIOBase):
    """Keeps the written bytes until they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def taken(self) -> bytes:
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole


def unique_names(columns: tuple[ResultColumn, ...]) -> list[str]:
    """Return names of which none comes twice: the second `n` is `n_2`."""
    names: list[str] = []
    for column in columns:
        name, number = column.name, 2
        while name in names:
            name, number = f"{column.name}_{number}", number + 1
        names.append(name)
    return names


def _texts(result: Result) -> Iterator[Iterator[tuple[str, ...]]]:
    """Yield the rows of each batch as JSON texts."""
    for batch in result.batches():
        columns = [
            [
                "null" if value is None else value if column.is_json else _dumps(_plain(value))
                for value in _values(values)
            ]
            for column, values in zip(result.columns, batch.columns, strict=True)
        ]
        yield zip(*columns, strict=True)


def _values(column: "pa.Array") -> list[Any]:
    """Return the values of a column; times beyond the years that Python has as their text."""
    import pyarrow as pa

    try:
        found: list[Any] = column.to_pylist()
    except OverflowError:
        texts = column.cast(pa.string()).to_pylist()
        return [text and re.sub(r"000(Z?)\Z", r"\1", text).replace(" ", "T") for text in texts]
    return found


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: bytes in base64, times in UTC, NaN as text like Spark's."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS[str(value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return _iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return str(value)


def _iso(value: datetime) -> str:
    precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
    if value.tzinfo is None:
        return value.isoformat(timespec=precision)
    return value.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _no_formula(value)
    plain = _plain(value)
    return "" if plain is None else str(plain)


def _no_formula(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text
