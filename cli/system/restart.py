"""Restart a process of a running system; the router without interruption."""

import time
from pathlib import Path
from typing import Final

import click

from cli.shared import options as _options
from launcher.paths import DataDirectory
from launcher.planning.parts import NEXT
from launcher.supervision.requests import Requests
from mqlake.errors import OperationalError
from mqlake.processes.status import ProcessReport, read_state

_TIMEOUT_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.1


@click.command()
@click.argument("process")
@_options.data_dir
def command(process: str, data_dir: Path) -> None:
    """Restart PROCESS, named as by `bin/mqlake status`, and wait until it is healthy.

    A new router starts beside the running one, which ends only when all messages flow through the
    new one, so that no message waits. Other processes are stopped first.
    """
    before = _find(data_dir, process)
    if before is None or before.pid is None:
        raise OperationalError(f"no process {process} runs: bin/mqlake status lists those that do")
    requests = Requests(DataDirectory(data_dir.absolute()).restarts)
    requests.ask(process)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not _is_done(data_dir, process, before.pid):
        if failure := requests.failure(process):
            raise OperationalError(f"{process} was not started again: {failure}")
        if time.monotonic() > deadline:
            seen = "" if not requests.is_waiting(process) else ", which has not seen that"
            raise OperationalError(
                f"{process} was not started again within {_TIMEOUT_SECONDS:.0f} s: see the "
                f"supervisor's log {data_dir / 'logs' / 'supervisor.log'}{seen}"
            )
        time.sleep(_LOOK_SECONDS)
    click.echo(f"{process} was started again", err=True)


def _find(data_dir: Path, name: str) -> ProcessReport | None:
    return next((one for one in read_state(data_dir).processes if one.name == name), None)


def _is_done(data_dir: Path, process: str, pid: int) -> bool:
    now = _find(data_dir, process)
    return (
        now is not None
        and now.pid not in (None, pid)
        and now.healthy
        and _find(data_dir, NEXT.format(process)) is None
    )
