"""Add, change, list and remove accounts of the API and its dashboard."""

from itertools import islice
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.passwords import read_password
from cli.shared.tables import print_list, shown_all
from mqlake.api_client import ApiClient, System
from mqlake.records.access import ROLES


@click.group()
def command() -> None:
    """Manage accounts: users that log in to the API with a password.

    They are separate from MQTT users, see `bin/mqlake user`. The command prompts for the password;
    without a terminal it reads the first line of standard input.
    """


@command.command("add")
@click.argument("name")
@_options.system
@click.option("--role", type=click.Choice(ROLES), default="viewer", help="Role of the account.")
@_options.topics
@_options.tenants
@click.option("--no-password", is_flag=True, help="Log in only at the identity provider.")
def add(
    name: str,
    system: System,
    role: str,
    topics: tuple[str, ...],
    tenants: tuple[str, ...],
    no_password: bool,
) -> None:
    """Add an account."""
    body = {
        "name": name,
        "role": role,
        "password": None if no_password else read_password(),
        "topic_filters": list(topics) or None,
        "tenants": list(tenants) or None,
    }
    ApiClient(system).post("/accounts", body)
    click.echo(f"account {name} added", err=True)


@command.command("set")
@click.argument("name")
@_options.system
@click.option("--role", type=click.Choice(ROLES), help="Change the role.")
@click.option("--password", is_flag=True, help="Change the password; the command prompts for it.")
@click.option("--topic", "topics", metavar="FILTER", multiple=True, help="Change the topics.")
@click.option("--all-topics", is_flag=True, help="Remove the restriction to topics.")
@click.option("--tenant", "tenants", metavar="NAME", multiple=True, help="Change the tenants.")
@click.option("--all-tenants", is_flag=True, help="Remove the restriction to tenants.")
def change(
    name: str,
    system: System,
    role: str | None,
    password: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    tenants: tuple[str, ...],
    all_tenants: bool,
) -> None:
    """Change an account."""
    if tenants and all_tenants:
        raise click.UsageError("--tenant and --all-tenants exclude each other")
    if topics and all_topics:
        raise click.UsageError("--topic and --all-topics exclude each other")
    body: dict[str, Any] = {"role": role, "password": read_password() if password else None}
    if topics or all_topics:
        body["topic_filters"] = list(topics) or None
    if tenants or all_tenants:
        body["tenants"] = list(tenants) or None
    ApiClient(system).put(f"/accounts/{name}", body)
    click.echo(f"account {name} changed", err=True)


@command.command("list")
@_options.system
@click.option("--limit", type=click.IntRange(1), default=1000, help="Maximum number of accounts.")
@_options.as_json
def list_accounts(system: System, limit: int, as_json: bool) -> None:
    """List accounts."""
    found = list(islice(ApiClient(system).items("/accounts"), limit))
    titles = ("name", "role", "topics", "tenants", "made", "by", "password from")
    print_list(found, titles, _row, as_json=as_json)


@command.command("remove")
@click.argument("name")
@_options.system
def remove(name: str, system: System) -> None:
    """Remove an account and end its sessions."""
    ApiClient(system).delete(f"/accounts/{name}")
    click.echo(f"account {name} removed", err=True)


def _row(account: dict[str, Any]) -> tuple[str, ...]:
    return (
        account["name"],
        account["role"],
        shown_all(account["topic_filters"]),
        shown_all(account["tenants"]),
        *(account[name] for name in ("created_at", "created_by", "password_changed_at")),
    )
