"""List and acknowledge alarms."""

from itertools import islice
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.tables import print_list
from mqlake.api_client import ApiClient, System


@click.group()
def command() -> None:
    """List and acknowledge alarms.

    The API keeps an alarm until its cause is gone, and reports it by webhook or mail.
    """


@command.command("list")
@_options.system
@click.option("--cleared", is_flag=True, help="List alarms that ended in the last week.")
@click.option("--limit", type=click.IntRange(1), default=1000, help="Maximum number of accounts.")
@_options.as_json
def list_alarms(system: System, cleared: bool, limit: int, as_json: bool) -> None:
    """List alarms, the most recent first."""
    state = "cleared" if cleared else "open"
    found = list(islice(ApiClient(system).items("/alarms", state=state), limit))
    titles = ("id", "severity", "what", "why", "tenant", "raised", "cleared", "acknowledged")
    print_list(found, titles, _row, as_json=as_json)


@command.command("acknowledge")
@click.argument("alarm_id", metavar="ID")
@_options.system
@click.option("--note", default="", help="Comment for other operators.")
@click.option("--undo", is_flag=True, help="Undo the acknowledgement.")
def acknowledge(alarm_id: str, system: System, note: str, undo: bool) -> None:
    """Acknowledge an alarm: no notifications until it is raised again."""
    client, path = ApiClient(system), f"/alarms/{alarm_id}/acknowledge"
    if undo:
        client.delete(path)
    else:
        client.post(path, {"note": note})
    done = "no longer acknowledged" if undo else "acknowledged"
    click.echo(f"alarm {alarm_id} is {done}", err=True)


def _row(alarm: dict[str, Any]) -> tuple[str, ...]:
    by = alarm["acknowledged_by"]
    return (
        alarm["id"],
        alarm["severity"],
        alarm["what"],
        alarm["detail"],
        alarm["tenant"] or "-",
        alarm["raised_at"],
        alarm["cleared_at"] or "-",
        "-" if by is None else f"{by}: {alarm['note']}" if alarm["note"] else by,
    )
