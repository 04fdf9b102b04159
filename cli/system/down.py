"""Stop the system of a data directory."""

import os
import signal
import time
from pathlib import Path

import click

from cli.shared import options as _options
from launcher.paths import DataDirectory
from launcher.planning.parts import SYSTEM_STOP_TIMEOUT_SECONDS
from mqlake.errors import OperationalError


@click.command()
@_options.data_dir
def command(data_dir: Path) -> None:
    """Stop the system of a data directory and wait until it has ended.

    It is not an error if the system does not run.
    """
    data = DataDirectory(data_dir)
    pid = data.holder()
    if pid is None:
        click.echo(f"no system runs on {data_dir}", err=True)
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + SYSTEM_STOP_TIMEOUT_SECONDS
    while data.holder() == pid:
        if time.monotonic() > deadline:
            raise OperationalError(
                f"the system did not stop within {SYSTEM_STOP_TIMEOUT_SECONDS:.0f} s: see "
                f"{data_dir / 'logs' / 'supervisor.log'}, or kill process {pid}"
            )
        time.sleep(0.05)
    click.echo("stopped", err=True)
