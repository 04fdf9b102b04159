"""Run the router: Spark that routes messages and evaluates stateless rules."""

import sys
from pathlib import Path

import click

from cli import _options
from mqlake.settings import load


@click.command()
@_options.config
@click.option(
    "--beside",
    is_flag=True,
    help="Begin beside the router that runs on the data directory, and follow it when it ends.",
)
def command(config: Path | None, beside: bool) -> None:
    """Run the router: Spark that routes messages and evaluates stateless rules."""
    from streaming.router.app import main
    from streaming.settings.router import RouterSettings

    sys.exit(main(load(RouterSettings, config), beside=beside))
