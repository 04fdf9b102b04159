"""Show the settings of a process: every key with its default."""

import importlib
from pathlib import Path
from typing import Final

import click

from cli.shared.settings_file import render
from mqlake.settings import ProcessSettings

CLASSES: Final = {
    "api": "api.settings:ApiSettings",
    "balancer": "ingest.balancer.settings:BalancerSettings",
    "federation": "ingest.federation.settings:FederationSettings",
    "gateway": "ingest.gateway.settings.gateway:GatewaySettings",
    "lake": "streaming.settings.lake:LakeSettings",
    "local": "launcher.settings:LocalSettings",
    "query": "streaming.settings.query:QuerySettings",
    "router": "streaming.settings.router:RouterSettings",
    "rules": "rules.runner.settings:RulesSettings",
}
"""Name of a file in `conf/` -> the class that is read from it."""


def settings_class(name: str) -> type[ProcessSettings]:
    """Return the class of a file in `conf/`."""
    module, _, attribute = CLASSES[name].partition(":")
    found: type[ProcessSettings] = getattr(importlib.import_module(module), attribute)
    return found


@click.command()
@click.argument("name", type=click.Choice([*CLASSES]), required=False)
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Write the files of all processes to this folder, replacing existing ones.",
)
def command(name: str | None, folder: Path | None) -> None:
    """Show the settings of one process as a TOML file with every key commented out.

    The settings in force are in the folder of `bin/mqlake up --config-dir`.
    """
    if (name is None) == (folder is None):
        raise click.UsageError(f"name one of {', '.join(CLASSES)}, or --write FOLDER")
    if name is not None:
        click.echo(render(settings_class(name)), nl=False)
    if folder is not None:
        for one in CLASSES:
            (folder / f"{one}.toml").write_text(render(settings_class(one)), encoding="utf-8")
