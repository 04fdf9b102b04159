"""Add, change, list and remove accounts of the API and its dashboard."""

import json
from itertools import islice
from pathlib import Path

import click

from mqlake.access_records import ROLES
from mqlake.api_client import ApiClient
from mqlake.cli import _options
from mqlake.cli._passwords import read_password
from mqlake.cli._tables import print_table


@click.group()
def command() -> None:
    """Add, change, list and remove accounts: who logs in to the API with a password.

    They have nothing to do with the users of MQTT, see `bin/mqlake user`. The password is asked
    for; without a terminal it is the first line of standard input.
    """


@command.command("add")
@click.argument("name")
@_options.data_dir
@click.option("--role", type=click.Choice(ROLES), default="viewer", help="What it may do.")
def add(name: str, data_dir: Path, role: str) -> None:
    """Add an account."""
    body = {"name": name, "role": role, "password": read_password()}
    ApiClient(data_dir).post("/accounts", body)
    click.echo(f"account {name} added", err=True)


@command.command("set")
@click.argument("name")
@_options.data_dir
@click.option("--role", type=click.Choice(ROLES), help="Give it another role.")
@click.option("--password", is_flag=True, help="Give it another password; it is asked for.")
def change(name: str, data_dir: Path, role: str | None, password: bool) -> None:
    """Change an account."""
    body = {"role": role, "password": read_password() if password else None}
    ApiClient(data_dir).put(f"/accounts/{name}", body)
    click.echo(f"account {name} changed", err=True)


@command.command("list")
@_options.data_dir
@click.option("--limit", type=click.IntRange(1), default=1000, help="Most that are listed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_accounts(data_dir: Path, limit: int, as_json: bool) -> None:
    """List accounts."""
    found = list(islice(ApiClient(data_dir).items("/accounts"), limit))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        names = ("name", "role", "created_at", "created_by", "password_changed_at")
        titles = ("name", "role", "made", "by", "password from")
        print_table(titles, (tuple(one[name] for name in names) for one in found))


@command.command("remove")
@click.argument("name")
@_options.data_dir
def remove(name: str, data_dir: Path) -> None:
    """Remove an account; its sessions end."""
    ApiClient(data_dir).delete(f"/accounts/{name}")
    click.echo(f"account {name} removed", err=True)
