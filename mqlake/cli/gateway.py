"""Run one MQTT gateway."""

import sys
from pathlib import Path

import click

from mqlake.cli import _options
from mqlake.settings import load


@click.command()
@_options.config
def command(config: Path | None) -> None:
    """Run one MQTT gateway."""
    from ingest.gateway.app import main
    from ingest.gateway.settings import GatewaySettings

    sys.exit(main(load(GatewaySettings, config)))
