"""Run the query application."""

import sys
from pathlib import Path

import click

from cli.shared import options as _options
from mqlake.settings import load


@click.command()
@_options.config
def command(config: Path | None) -> None:
    """Run the query application: Spark for SQL, trials and jobs, while it is in use."""
    from streaming.query.app import main
    from streaming.settings.query import QuerySettings

    sys.exit(main(load(QuerySettings, config)))
