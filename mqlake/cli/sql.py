"""`mqlake sql`: query the tables of the running system through Spark Connect."""

import csv
import json
import logging
import math
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from mqlake.cli.select_check import QueryError, check_select
from mqlake.errors import OperationalError
from mqlake.local.state import connect_token, read_state

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

TABLE_LIMIT: Final = 100
"""Rows of `--format table` unless `--limit` says otherwise; the other formats have no limit."""
_CONNECT_TIMEOUT_SECONDS: Final = 5.0


@click.command("sql")
@click.argument("query")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Data directory of the running system.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How rows are printed.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=None,
    help=f"Most rows printed, 0 for all. Default: {TABLE_LIMIT} as table, all otherwise.",
)
def command(query: str, data_dir: Path, output_format: str, limit: int | None) -> None:
    """Run one SELECT over the tables and print its rows.

    Example: mqlake sql "SELECT topic, count(*) FROM messages GROUP BY topic"

    Binary values that are text are shown as text, others as hexadecimal digits; times are UTC.
    """
    # The client library logs what it also raises, and it is the exception that we show.
    logging.disable()
    check_select(query)
    if limit is None:
        limit = TABLE_LIMIT if output_format == "table" else 0
    spark = _connect(data_dir)
    try:
        names, rows, more = _run(spark, query, limit)
    finally:
        spark.stop()
    output = sys.stdout
    if output_format == "csv":
        _print_csv(names, rows, output)
    elif output_format == "json":
        _print_json(names, rows, output)
    else:
        _print_table(names, rows, output)
    if more:
        click.echo(f"first {limit} rows; --limit 0 prints all", err=True)


def _connect(data_dir: Path) -> Any:
    """Open a `pyspark.sql.connect` session on the running system.

    Raises:
        OperationalError: No system runs there, or its Spark does not answer.
    """
    state = read_state(data_dir)
    try:
        token = connect_token(data_dir)
    except OSError as exc:
        raise OperationalError(f"cannot read {exc.filename}: {exc.strerror}") from exc
    address = ("127.0.0.1", state.connect_port)
    try:
        # The client library would try for minutes.
        socket.create_connection(address, timeout=_CONNECT_TIMEOUT_SECONDS).close()
    except OSError as exc:
        raise OperationalError(
            f"Spark does not answer on port {state.connect_port}: {exc.strerror or exc}; "
            "see: bin/mqlake status"
        ) from exc
    # Half a second of imports: only when there is somebody to talk to.
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    # By this name and no other the client sends a token without TLS, and only over loopback.
    url = f"sc://localhost:{state.connect_port}/;token={token}"
    try:
        return SparkSession(url)
    except PySparkException as exc:
        raise OperationalError(f"Spark does not take the session: {_sentence(exc)}") from exc


def _run(spark: Any, query: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Return column names, rows ready to print, and whether there are more.

    Raises:
        QueryError: Spark does not take the query.
    """
    from pyspark.errors import PySparkException

    try:
        frame = spark.sql(query)
        if limit:
            frame = frame.limit(limit + 1)
        names = list(frame.columns)
        rows = list(_rows(frame))
    except PySparkException as exc:
        raise QueryError(_sentence(exc)) from exc
    return names, list(islice(rows, limit)) if limit else rows, bool(limit) and len(rows) > limit


def _rows(frame: "DataFrame") -> Iterator[tuple[Any, ...]]:
    for batch in frame.toArrow().to_batches():
        yield from zip(*([_plain(v) for v in c.to_pylist()] for c in batch.columns), strict=True)


def _sentence(error: Exception) -> str:
    """Reduce Spark's error to one sentence and its position."""
    message = str(error).strip()
    first = message.partition("\n")[0].strip().removesuffix(".")
    context = message.partition("== SQL")[2].partition("==")[0].strip(" ()")
    return f"{first} ({context})" if context.startswith("line") else first


def _plain(value: Any) -> Any:
    """Return a value as numbers, text, lists and maps only."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, datetime):
        return _iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _iso(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="milliseconds")
    precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _print_csv(names: list[str], rows: list[tuple[Any, ...]], output: TextIO) -> None:
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_text(value) for value in row] for row in rows)


def _print_json(names: list[str], rows: list[tuple[Any, ...]], output: TextIO) -> None:
    """Print a JSON array, one object a line; an SQL null is a JSON null."""
    output.write("[")
    for number, row in enumerate(rows):
        output.write(",\n " if number else "\n ")
        output.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
    output.write("\n]\n" if rows else "]\n")


def _print_table(names: list[str], rows: list[tuple[Any, ...]], output: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(names):
        numeric = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row))
    terminal = output.isatty()
    # Into a pipe every column gets the width it needs.
    Console(file=output, width=None if terminal else 10_000, highlight=False).print(table)
