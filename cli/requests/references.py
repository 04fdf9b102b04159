"""Reference tables that rules join: list, upload, print, restore, delete."""

import csv
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from cli.shared import options as _options
from cli.shared.tables import print_list, print_table
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError

_CONTENT_TYPES: Final = {
    ".csv": "text/csv",
    ".tsv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
}


@click.group()
def command() -> None:
    """Manage reference tables.

    A rule joins one by its name: JOIN machines AS m ON m.id = payload.machine
    """


@command.command("list")
@_options.system
@_options.as_json
def list_references(system: System, as_json: bool) -> None:
    """List the reference tables."""
    found = list(ApiClient(system).items("/references"))
    titles = ("table", "state", "version", "rows", "key", "columns", "changed", "problem")
    print_list(found, titles, _row, as_json=as_json)


@command.command("put")
@click.argument("reference_id")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_options.system
@click.option("--key", help="Key columns, separated by commas.  [default: the first column]")
@click.option(
    "--schema", help='Columns with types, "name STRING, limit DOUBLE".  [default: detected]'
)
@click.option(
    "--delimiter",
    type=click.Choice(["comma", "semicolon", "tab", "bar"]),
    help="CSV delimiter.  [default: comma, tab for .tsv files]",
)
@click.option("--description", help="Description for readers.")
def put_reference(
    reference_id: str,
    file: Path,
    system: System,
    key: str | None,
    schema: str | None,
    delimiter: str | None,
    description: str | None,
) -> None:
    """Create a reference table, or replace all its rows.

    FILE is CSV with column names in the first line, or JSON: an array of objects (.json) or one
    object per line (.jsonl).
    """
    suffix = file.suffix.lower()
    if suffix not in _CONTENT_TYPES:
        raise OperationalError(f"{file} is none of {', '.join(_CONTENT_TYPES)}")
    if delimiter is None and suffix == ".tsv":
        delimiter = "tab"
    found = ApiClient(system).upload(
        f"/references/{reference_id}",
        file.read_bytes(),
        _CONTENT_TYPES[suffix],
        key=key,
        schema=schema,
        delimiter=delimiter,
        description=description,
    )
    _print_change(found)


@command.command("get")
@click.argument("reference_id")
@_options.system
@click.option("--version", type=click.IntRange(0), help="An earlier version.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of rows to print.")
@_options.as_json
def get_reference(
    reference_id: str, system: System, version: int | None, limit: int | None, as_json: bool
) -> None:
    """Print the rows of a reference table as CSV, sorted by key."""
    rows = islice(
        ApiClient(system).items(f"/references/{reference_id}/rows", version=version), limit
    )
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    writer: Any = None
    for row in rows:
        if writer is None:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(row)
        writer.writerow(map(_cell, row.values()))


@command.command("versions")
@click.argument("reference_id")
@_options.system
def list_versions(reference_id: str, system: System) -> None:
    """List the versions of a reference table, newest first."""
    found = ApiClient(system).items(f"/references/{reference_id}/versions")
    print_table(
        ("version", "rows", "columns", "made", "what"),
        (
            (
                str(one["version"]),
                str(one["rows"]),
                _columns(one),
                one["created_at"],
                "" if one["of_version"] is None else f"version {one['of_version']} again",
            )
            for one in found
        ),
    )


@command.command("rollback")
@click.argument("reference_id")
@click.argument("version", type=click.IntRange(0))
@_options.system
def roll_back(reference_id: str, version: int, system: System) -> None:
    """Restore the rows of an earlier version, as a new version."""
    path = f"/references/{reference_id}/versions/{version}/rollback"
    _print_change(ApiClient(system).post(path))


@command.command("delete")
@click.argument("reference_ids", nargs=-1, required=True)
@_options.system
def delete_references(reference_ids: tuple[str, ...], system: System) -> None:
    """Delete reference tables with all their versions."""
    api = ApiClient(system)
    for reference_id in reference_ids:
        api.delete(f"/references/{reference_id}")
        click.echo(f"deleted {reference_id}")


def _print_change(found: dict[str, Any]) -> None:
    if found["state"] == "failed":
        raise OperationalError(f"{found['id']} was not written: {found['error']}")
    if found["state"] == "writing":
        click.echo(f"{found['id']} is kept, and written when Spark comes to it")
    else:
        click.echo(f"{found['id']}: version {found['version']}, {found['rows']:,} rows")


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        found["id"],
        found["state"],
        "" if found["version"] is None else str(found["version"]),
        str(found["rows"]),
        ", ".join(found["key"]),
        _columns(found),
        found["updated_at"] or "",
        found["error"] or "",
    )


def _columns(found: dict[str, Any]) -> str:
    return ", ".join(f"{one['name']} {one['type']}" for one in found["columns"])


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
