"""Rights of clients: plan and apply a file for all gateways, export the current ones."""

import time
from pathlib import Path
from typing import Any, Final

import click

from cli.shared import options as _options
from cli.shared.tables import print_list
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError
from mqlake.rights.documents import write_rights
from mqlake.rights.files import RightsError, parse_rights
from mqlake.rights.model import RightsFile

CHANGES_EXIT_CODE: Final = 2
_FOLLOW_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.3
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}

_file = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group()
def command() -> None:
    """Manage the rights of clients at all gateways.

    After the first `apply` the rights are in the log, and gateways ignore their rights_file.
    """


@command.command("plan")
@_file
@_options.system
def plan(file: Path, system: System) -> None:
    """Show what `apply` would change.

    The exit code is 0 if nothing would change, 2 if something would.
    """
    found = _plan(ApiClient(system), _read(file))
    if not found["changes"]:
        click.echo("nothing to change")
        return
    _print(found["diff"])
    raise SystemExit(CHANGES_EXIT_CODE)


@command.command("apply")
@_file
@_options.system
@click.option(
    "--version", type=click.IntRange(0), help="Version that must be in force.  [default: any]"
)
def apply(file: Path, system: System, version: int | None) -> None:
    """Apply the rights of a file at all gateways.

    Waits until each gateway uses them, and lists those that do not.
    """
    api, rights = ApiClient(system), _read(file)
    found = _plan(api, rights)
    _print(found["diff"])
    body = {**_body(rights), "version": found["version"] if version is None else version}
    applied = api.put("/rights", body)["version"]
    word = "applied" if found["changes"] else "was in force already"
    click.echo(f"version {applied} {word}")
    if late := _await_gateways(api, applied):
        raise OperationalError(f"not heard to go by it yet: {', '.join(late)}")


@command.command("export")
@_options.system
@click.option("--version", type=click.IntRange(1), help="An earlier version.")
def export(system: System, version: int | None) -> None:
    """Print the current rights in the file format."""
    api = ApiClient(system)
    found = api.get("/rights" if version is None else f"/rights/versions/{version}")
    rights = RightsFile.model_validate({"roles": found["roles"], "rules": found["rules"]})
    click.echo(write_rights(rights), nl=False)


@command.command("versions")
@_options.system
@_options.as_json
def versions(system: System, as_json: bool) -> None:
    """List the stored versions, newest first."""
    found = ApiClient(system).get("/rights/versions")["items"]
    names = ("version", "rule_count", "applied_at", "applied_by")
    titles = ("version", "rules", "applied", "by")
    print_list(found, titles, lambda one: [str(one[name]) for name in names], as_json=as_json)


def _read(path: Path) -> RightsFile:
    try:
        return parse_rights(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise OperationalError(f"{path} cannot be read: {exc}") from exc
    except RightsError as exc:
        raise RightsError(f"{path}: {exc}") from exc


def _body(rights: RightsFile) -> dict[str, Any]:
    return rights.model_dump(mode="json", exclude_defaults=True)


def _plan(api: ApiClient, rights: RightsFile) -> dict[str, Any]:
    found: dict[str, Any] = api.post("/rights/plan", _body(rights))
    return found


def _await_gateways(api: ApiClient, version: int) -> list[str]:
    """Wait for all gateways that live; return those that do not say so in time."""
    ends_at = time.monotonic() + _FOLLOW_SECONDS
    while True:
        late = [
            one["name"]
            for one in api.items("/gateways")
            if one["alive"] and one["rights_version"] < version
        ]
        if not late or time.monotonic() >= ends_at:
            return late
        time.sleep(_POLL_SECONDS)


def _print(diff: str) -> None:
    for line in diff.splitlines():
        click.secho(line, fg=_COLOURS.get(line[:1]))
