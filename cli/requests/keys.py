"""Create, list and revoke keys of the API."""

from itertools import islice
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.spans import time_after
from cli.shared.tables import print_list, shown_all
from mqlake.api_client import ApiClient, System
from mqlake.records.access import ROLES


@click.group()
def command() -> None:
    """Create, list and revoke keys of the API.

    A key is shown only when it is created: the system stores a hash.
    """


@command.command("create")
@click.argument("description")
@_options.system
@click.option("--role", type=click.Choice(ROLES), default="viewer", help="Role of the account.")
@click.option("--expires", metavar="SPAN", help="Lifetime: 12h, 30d, 8w.  [default: forever]")
@_options.topics
@_options.tenants
def create(
    description: str,
    system: System,
    role: str,
    expires: str | None,
    topics: tuple[str, ...],
    tenants: tuple[str, ...],
) -> None:
    """Create a key and print it."""
    body = {
        "description": description,
        "role": role,
        "expires_at": time_after("--expires", expires),
        "topic_filters": list(topics) or None,
        "tenants": list(tenants) or None,
    }
    click.echo(ApiClient(system).post("/keys", body)["key"])


@command.command("list")
@_options.system
@click.option("--limit", type=click.IntRange(1), default=1000, help="Maximum number of accounts.")
@_options.as_json
def list_keys(system: System, limit: int, as_json: bool) -> None:
    """List keys, including expired ones."""
    found = list(islice(ApiClient(system).items("/keys"), limit))
    titles = ("id", "role", "topics", "tenants", "description", "made", "by", "ends")
    print_list(found, titles, _row, as_json=as_json)


@command.command("revoke")
@click.argument("key_id", metavar="ID")
@_options.system
def revoke(key_id: str, system: System) -> None:
    """Revoke a key: it gives no access any more."""
    ApiClient(system).delete(f"/keys/{key_id}")
    click.echo(f"key {key_id} revoked", err=True)


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    ends = key["expires_at"] or "never"
    return (
        key["id"],
        key["role"],
        shown_all(key["topic_filters"]),
        shown_all(key["tenants"]),
        key["description"],
        key["created_at"],
        key["created_by"],
        f"{ends} (expired)" if key["expired"] else ends,
    )
