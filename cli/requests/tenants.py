"""Tenants of all gateways: list, create, suspend, resume, delete, apply a file."""

from pathlib import Path
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.jobs import await_job
from cli.shared.tables import print_list
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError
from mqlake.records.tenants import Tenant, TenantsError, parse_tenants

_name = click.argument("name")


@click.group()
def command() -> None:
    """Manage the tenants whose clients gateways let in, in addition to their own."""


@command.command("list")
@_options.system
@_options.as_json
def list_tenants(system: System, as_json: bool) -> None:
    """List tenants, including those not created."""
    found = list(ApiClient(system).items("/tenants"))
    names = ("name", "state", "description", "sessions", "rules", "changed_at", "changed_by")
    titles = ("name", "state", "description", "sessions", "rules", "changed", "by")
    print_list(found, titles, lambda one: [str(one[name] or "") for name in names], as_json=as_json)


@command.command("create")
@_name
@_options.system
@click.option("--description", default="", help="Description for readers.")
def create(name: str, system: System, description: str) -> None:
    """Create a tenant."""
    api = ApiClient(system)
    if _find(api, name) is not None:
        raise OperationalError(f"there is a tenant {name!r} already")
    _put(api, name, Tenant(description=description))


@command.command("suspend")
@_name
@_options.system
def suspend(name: str, system: System) -> None:
    """Disconnect the clients of a tenant, and refuse new ones."""
    _change(system, name, {"state": "suspended"})


@command.command("resume")
@_name
@_options.system
def resume(name: str, system: System) -> None:
    """Let clients of a suspended tenant in again."""
    _change(system, name, {"state": "active"})


@command.command("delete")
@_name
@_options.system
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, system: System, yes: bool) -> None:
    """Delete a tenant with all its data; this cannot be undone.

    Ctrl-C interrupts it; POST /jobs/{id}/resume continues.
    """
    if not yes:
        click.confirm(f"Delete the tenant {name} and all its data?", abort=True)
    api = ApiClient(system)
    job = await_job(api, api.delete(f"/tenants/{name}"), quiet=False)
    shown = ", ".join(f"{count} {what}" for what, count in job["result"].items())
    click.echo(f"tenant {name} is deleted: {shown}", err=True)


@command.command("apply")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_options.system
def apply(file: Path, system: System) -> None:
    """Create the tenants of a file, and change those that differ.

    Tenants that are not in the file are not changed.
    """
    api = ApiClient(system)
    try:
        wanted = parse_tenants(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise OperationalError(f"{file} cannot be read: {exc}") from exc
    except TenantsError as exc:
        raise TenantsError(f"{file}: {exc}") from exc
    for name, tenant in sorted(wanted.items()):
        if _find(api, name) != tenant:
            _put(api, name, tenant)


def _find(api: ApiClient, name: str) -> Tenant | None:
    """Return a tenant that was created."""
    found = next((one for one in api.items("/tenants") if one["name"] == name), None)
    if found is None or found["state"] is None:
        return None
    return Tenant.model_validate({key: found[key] for key in Tenant.model_fields})


def _change(system: System, name: str, fields: dict[str, Any]) -> None:
    api = ApiClient(system)
    found = _find(api, name)
    if found is None:
        raise OperationalError(f"no tenant {name!r} was created")
    _put(api, name, found.model_copy(update=fields))


def _put(api: ApiClient, name: str, tenant: Tenant) -> None:
    put = api.put(f"/tenants/{name}", tenant.model_dump(mode="json"))
    click.echo(f"tenant {name} is {put['state']}", err=True)
