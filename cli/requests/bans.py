"""Ban clients from all gateways, list and lift bans."""

from itertools import islice
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.spans import time_after
from cli.shared.tables import print_list
from mqlake.api_client import ApiClient, System


@click.group()
def command() -> None:
    """Ban clients from all gateways, list and lift bans.

    Bans in a gateway's bans_file are not included.
    """


_KINDS = ("client_ids", "users", "addresses", "tokens")


@command.command("add")
@_options.system
@click.option(
    "--client-id",
    "client_ids",
    multiple=True,
    help="Client identifier; a final * matches any suffix.",
)
@click.option("--user", "users", multiple=True, help="User name.")
@click.option(
    "--address", "addresses", multiple=True, help="Address, or network such as 10.0.0.0/8."
)
@click.option("--token", "tokens", multiple=True, help="Claim jti of a token (JWT).")
@click.option("--for", "span", metavar="SPAN", help="Duration: 12h, 30d, 8w.  [default: forever]")
@click.option("--reason", default="", help="Sent to 5.0 clients, and listed.")
def add(system: System, span: str | None, **ban: Any) -> None:
    """Ban clients that match, and print the identifier of the ban."""
    if not any(ban[kind] for kind in _KINDS):
        raise click.UsageError("expected --client-id, --user, --address or --token")
    click.echo(ApiClient(system).post("/bans", {**ban, "until": time_after("--for", span)})["id"])


@command.command("list")
@_options.system
@click.option("--limit", type=click.IntRange(1), default=1000, help="Maximum number of accounts.")
@_options.as_json
def list_bans(system: System, limit: int, as_json: bool) -> None:
    """List bans, including expired ones."""
    found = list(islice(ApiClient(system).items("/bans"), limit))
    titles = (
        "id",
        "client ids",
        "users",
        "addresses",
        "tokens",
        "reason",
        "made",
        "by",
        "until",
    )
    print_list(found, titles, _row, as_json=as_json)


@command.command("lift")
@click.argument("ban_id", metavar="ID")
@_options.system
def lift(ban_id: str, system: System) -> None:
    """Lift a ban."""
    ApiClient(system).delete(f"/bans/{ban_id}")
    click.echo(f"ban {ban_id} lifted", err=True)


def _row(ban: dict[str, Any]) -> tuple[str, ...]:
    until = ban["until"] or "for good"
    names = {kind: [*ban[kind]] for kind in _KINDS}
    for client in ban["clients"]:  # as this user
        names["client_ids"].append(client["client_id"])
        names["users"].append(client["user"] or "-")
    return (
        ban["id"],
        *(" ".join(names[kind]) for kind in _KINDS),
        ban["reason"],
        ban["created_at"],
        ban["created_by"],
        f"{until} (over)" if ban["over"] else until,
    )
