"""Run the router: the Spark application for routing and stateless rules."""

import sys
from pathlib import Path

import click

from cli.shared import options as _options
from mqlake.settings import load


@click.command()
@_options.config
@click.option(
    "--beside",
    is_flag=True,
    help="Start beside the running router of the data directory, and take over when it ends.",
)
def command(config: Path | None, beside: bool) -> None:
    """Run the router: the Spark application for routing and stateless rules."""
    from streaming.router.app import main
    from streaming.settings.router import RouterSettings

    sys.exit(main(load(RouterSettings, config), beside=beside))
