"""Run the Spark application."""

import sys
from pathlib import Path

import click

from mqlake.cli import _options
from mqlake.settings import load


@click.command()
@_options.config
def command(config: Path | None) -> None:
    """Run the Spark application."""
    from streaming.app import main
    from streaming.settings import StreamingSettings

    sys.exit(main(load(StreamingSettings, config)))
