"""Query the tables of the running system in SQL, through its API."""

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import IO, Any, Final

import click

from cli.shared import options as _options
from cli.shared.tables import tell_complete
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError

TABLE_LIMIT: Final = 100
"""Rows of `--format table` unless `--limit` says otherwise."""
_FORMATS: Final = {"table": "json", "json": "jsonl", "csv": "csv", "parquet": "parquet"}
"""Format that the API is asked for."""
_PIECE: Final = 64 * 1024
_IN_MEMORY_BYTES: Final = 16 * 1024 * 1024
"""Part of an answer that stays in memory; the rest is in a temporary file."""


@click.command("sql")
@click.argument("query")
@_options.system
@click.option(
    "--format",
    "output_format",
    type=click.Choice(list(_FORMATS)),
    default="table",
    show_default=True,
    help="Output format.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=None,
    help="Maximum rows; 0: up to the limit of the API (1,000,000 by default). "
    f"Default: {TABLE_LIMIT} as table, 0 otherwise.",
)
@click.option("--timeout", type=click.FloatRange(min=1), default=300.0, help="Timeout in seconds.")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the messages.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Output file.  [default: standard output]",
)
def command(
    query: str,
    system: System,
    output_format: str,
    limit: int | None,
    timeout: float,
    tenant: str,
    output: Path | None,
) -> None:
    """Run one SELECT over the tables and print its rows.

    Example: mqlake sql "SELECT topic, count(*) FROM messages GROUP BY topic"

    The last line, on standard error, says up to when the tables had every message. docs/tables.md
    describes the tables, their columns and the functions. Times are UTC. Binary
    values are base64 in CSV and JSON; a table shows them as text if they are text. Interrupt the
    command to cancel the query.
    """
    if limit is None:
        limit = TABLE_LIMIT if output_format == "table" else 0
    if output_format == "parquet" and output is None and sys.stdout.isatty():
        raise OperationalError("Parquet is nothing for a terminal: name a file with --output")
    body = {
        "query": query,
        "format": _FORMATS[output_format],
        "limit": limit or None,
        "timeout_seconds": timeout,
    }
    client = ApiClient(system)
    with client.stream("/sql", body, timeout_seconds=timeout + 30.0, tenant=tenant) as answer:
        with _opened(output) as target, _read(answer, output) as found:
            if output_format == "table":
                target.write(_to_table(json.load(found), target.isatty()))
            elif output_format == "json":
                for piece in _to_array(found):
                    target.write(piece)
            else:
                shutil.copyfileobj(found, target, _PIECE)
        truncated = answer.headers["mqlake-truncated"] == "true"
        rows = answer.headers["mqlake-rows"]
        until = answer.headers["mqlake-complete-until"]
    if truncated:
        click.echo(f"first {rows} rows; --limit 0 gives as many as may be", err=True)
    tell_complete(until)


@contextmanager
def _opened(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        file = path.open("wb")
    except OSError as exc:
        raise OperationalError(f"{path} cannot be written: {exc.strerror}") from exc
    with file:
        yield file


@contextmanager
def _read(answer: HTTPResponse, output: Path | None) -> Iterator[IO[bytes]]:
    """Read an answer to its end first, if what reads our output may pause, as `less` does.

    The API ends an answer whose caller does not read.
    """
    if output is not None:
        yield answer
        return
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as kept:
        shutil.copyfileobj(answer, kept, _PIECE)
        kept.seek(0)
        yield kept


def _to_array(lines: Any) -> Iterator[bytes]:
    """Yield JSON lines as one array, an object a line."""
    yield b"["
    is_empty = True
    for line in lines:
        yield (b"\n " if is_empty else b",\n ") + line.rstrip(b"\n")
        is_empty = False
    yield b"]\n" if is_empty else b"\n]\n"


def _to_table(result: dict[str, Any], is_terminal: bool) -> bytes:
    from io import StringIO

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    types = [column["type"] for column in result["columns"]]
    for index, column in enumerate(result["columns"]):
        numeric = any(isinstance(row[index], int | float) for row in result["rows"])
        table.add_column(
            Text(_printable(column["name"])),
            justify="right" if numeric else "left",
            overflow="fold",
        )
    for row in result["rows"]:
        cells = (_text(value, type_) for value, type_ in zip(row, types, strict=True))
        table.add_row(*(Text(_printable(cell)) for cell in cells))
    output = StringIO()
    # Into a pipe every column gets the width it needs.
    width = shutil.get_terminal_size().columns if is_terminal else 10_000
    Console(file=output, width=width, highlight=False).print(table)
    return output.getvalue().encode()


def _text(value: Any, type_: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if type_ == "binary":
        data = base64.b64decode(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.hex()
    return str(value)


def _printable(text: str) -> str:
    """Return a text without codes that would move a terminal's cursor."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
