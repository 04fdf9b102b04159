"""Show every process of a running system."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from cli.shared import options as _options
from mqlake.errors import OperationalError
from mqlake.log.durability import MEANING, Durability
from mqlake.processes.status import read_state, report

_POLL_SECONDS = 0.2


@click.command()
@_options.data_dir
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait up to this time for the system to be healthy.",
)
@_options.as_json
def command(data_dir: Path, wait: float, as_json: bool) -> None:
    """Show every process of a running system.

    The exit code is 0 only if all are healthy.
    """
    system = _await_healthy(data_dir, wait)
    if as_json:
        click.echo(json.dumps(system, indent=2))
    else:
        _print_table(system)
    sys.exit(0 if system["healthy"] else 1)


def _await_healthy(data_dir: Path, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while True:
        try:
            system = report(read_state(data_dir))
        except OperationalError:
            if time.monotonic() >= deadline:
                raise
        else:
            if system["healthy"] or time.monotonic() >= deadline:
                return system
        time.sleep(_POLL_SECONDS)


def _print_table(system: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("process", "health", "pid", "uptime", "memory", "cpu", "restarts"):
        table.add_column(title, justify="left" if title in {"process", "health"} else "right")
    table.add_column("detail", overflow="fold")
    for process in system["processes"]:
        detail = escape(process["detail"])
        if process["last_exit"]:
            detail += f" [dim](last end: {escape(process['last_exit'])})[/]"
        table.add_row(
            process["name"],
            "[green]healthy[/]" if process["healthy"] else "[red]not healthy[/]",
            str(process["pid"] or "-"),
            _duration(process["uptime_seconds"]),
            f"{process['rss_bytes'] / 1e6:.0f} MB",
            f"{process['cpu_percent']:.1f} %",
            str(process["restarts"]),
            detail,
        )
    addresses = [*system["entrances"]]
    addresses += [url for urls in system["listeners"].values() for url in urls]
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(table)
    console.print(f"[dim]{' '.join(addresses)} {system['api']} log {system['log']}[/]")
    durability = Durability(system["durability"])
    console.print(f"[dim]durability {durability}: {MEANING[durability]}[/]")
    shown = " ".join(f"{name}={url}" for name, url in system["metrics"].items())
    if shown:
        console.print(f"[dim]metrics {shown}[/]")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
