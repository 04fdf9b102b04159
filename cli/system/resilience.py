"""Test any MQTT broker with faults: run scenarios, check histories, report."""

import sys
from importlib.util import find_spec

import click

from mqlake.errors import OperationalError


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Test any MQTT broker with faults: `run`, `check`, `report`, `list`, `prove`.

    The tool has its own command line and works without the rest of mqlake.
    """
    if find_spec("resilience") is None:
        raise OperationalError("the fault tool is not installed: pip install mqlake-faults")
    from resilience.command import main

    sys.exit(main(arguments))
