"""Run the REST API."""

import sys
from pathlib import Path

import click

from cli.shared import options as _options
from mqlake.settings import load


@click.command()
@_options.config
def command(config: Path | None) -> None:
    """Run the REST API."""
    from api.app import main
    from api.settings import ApiSettings

    sys.exit(main(load(ApiSettings, config)))
