"""Schemas of payloads: list, show, register, delete."""

import json
from pathlib import Path
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.tables import print_list, print_table
from mqlake.api_client import ApiClient, ApiError, System
from mqlake.errors import OperationalError

_TYPES = {".avsc": "avro", ".json": "avro", ".proto": "protobuf"}
_NOT_FOUND = 404


@click.group()
def command() -> None:
    """Manage schemas: Avro and Protobuf, which rules use to decode payloads."""


@command.command("list")
@_options.system
@_options.as_json
def list_schemas(system: System, as_json: bool) -> None:
    """List the schemas."""
    schemas = list(ApiClient(system).items("/schemas"))
    titles = ("schema", "type", "version", "message", "description")
    print_list(schemas, titles, _row, as_json=as_json)


@command.command("show")
@click.argument("name")
@_options.system
@click.option("--version", type=click.IntRange(1), help="An earlier version.")
@_options.as_json
def show_schema(name: str, system: System, version: int | None, as_json: bool) -> None:
    """Print the text of a schema."""
    path = f"/schemas/{name}" if version is None else f"/schemas/{name}/versions/{version}"
    schema = ApiClient(system).get(path)
    click.echo(json.dumps(schema, indent=2) if as_json else schema["source"])


@command.command("versions")
@click.argument("name")
@_options.system
def list_versions(name: str, system: System) -> None:
    """List the versions of a schema."""
    versions = ApiClient(system).get(f"/schemas/{name}/versions")["items"]
    rows = [(str(one["version"]), one["created_at"], one["description"]) for one in versions]
    print_table(("version", "since", "description"), rows)


@command.command("put")
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_options.system
@click.option(
    "--type",
    "type_",
    type=click.Choice(["avro", "protobuf"]),
    help="Kind of schema.  [default: by the file name]",
)
@click.option("--message", help="Message type of the payload, in a .proto file.")
@click.option("--description", default="", help="Description for readers.")
def put_schema(
    name: str,
    file: Path,
    system: System,
    type_: str | None,
    message: str | None,
    description: str,
) -> None:
    """Register a schema from a file, or a new version of it.

    FILE is .avsc (Avro) or .proto (Protobuf).
    """
    type_ = type_ or _TYPES.get(file.suffix)
    if type_ is None:
        raise OperationalError(f"{file} ends neither in .avsc nor in .proto: say --type")
    body: dict[str, Any] = {
        "type": type_,
        "source": file.read_text(encoding="utf-8"),
        "message_type": message,
        "description": description,
    }
    api = ApiClient(system)
    try:
        schema = api.put(f"/schemas/{name}", body)
    except ApiError as exc:
        if exc.status != _NOT_FOUND:
            raise
        schema = api.post("/schemas", {**body, "name": name})
    click.echo(f"{schema['name']} is at version {schema['version']}")


@command.command("delete")
@click.argument("name")
@_options.system
@click.option("--version", type=click.IntRange(1), help="Only this version.")
def delete_schema(name: str, system: System, version: int | None) -> None:
    """Delete a schema that no rule uses."""
    path = f"/schemas/{name}" if version is None else f"/schemas/{name}/versions/{version}"
    ApiClient(system).delete(path)
    click.echo(f"deleted {name}" if version is None else f"deleted {name}:{version}")


def _row(schema: dict[str, Any]) -> tuple[str, ...]:
    return (
        schema["name"],
        schema["type"],
        str(schema["version"] or ""),
        schema["message_type"] or "",
        schema["description"],
    )
