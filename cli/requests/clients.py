"""List the clients with a stored session or a will."""

from itertools import islice
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.tables import print_list
from mqlake.api_client import ApiClient, System


@click.command()
@_options.system
@click.option(
    "--connected/--offline",
    default=None,
    help="Only connected, or only disconnected clients.",
    show_default=False,
)
@click.option("--username", help="Only those of this user.")
@click.option("--gateway", help="Only clients connected to this gateway, or last seen there.")
@click.option("--prefix", help="Only client identifiers with this prefix.")
@click.option("--limit", type=click.IntRange(1), default=1000, help="Maximum number of accounts.")
@_options.as_json
def command(
    system: System,
    connected: bool | None,
    username: str | None,
    gateway: str | None,
    prefix: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the clients with a stored session or a will.

    A client whose session ends with its connection and that has no will is not listed.
    """
    found = ApiClient(system).items(
        "/clients",
        connected=connected,
        username=username,
        gateway=gateway,
        client_id_prefix=prefix,
    )
    clients = list(islice(found, limit))
    titles = ("client", "state", "gateway", "user", "MQTT", "subscriptions", "since", "why it left")
    print_list(clients, titles, _row, as_json=as_json)
    if next(found, None) is not None:
        click.echo(f"there are more than {limit}: see --limit", err=True)


def _row(client: dict[str, Any]) -> tuple[str, ...]:
    since = client["connected_at"] if client["connected"] else client["disconnected_at"]
    return (
        client["client_id"],
        "connected" if client["connected"] else "offline",
        client["gateway"],
        client["username"] or "",
        client["protocol_version"],
        str(client["subscription_count"]),
        since or "",
        client["disconnect_reason"] or "",
    )
