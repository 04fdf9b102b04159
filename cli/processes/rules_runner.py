"""Run the actions of rules."""

import sys
from pathlib import Path

import click

from cli.shared import options as _options
from mqlake.settings import load


@click.command()
@_options.config
def command(config: Path | None) -> None:
    """Run the actions of rules."""
    from rules.runner.app import main
    from rules.runner.settings import RulesSettings

    sys.exit(main(load(RulesSettings, config)))
