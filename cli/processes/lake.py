"""Run the lake: the Spark application for tables and stateful rules."""

import sys
from pathlib import Path

import click

from cli.shared import options as _options
from mqlake.settings import load


@click.command()
@_options.config
def command(config: Path | None) -> None:
    """Run the lake: the Spark application for tables and stateful rules."""
    from streaming.lake.app import main
    from streaming.settings.lake import LakeSettings

    sys.exit(main(load(LakeSettings, config)))
