"""Show messages as they arrive."""

import json
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.tables import printable
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError


@click.command()
@click.argument("topic_filters", metavar="FILTER...", nargs=-1, required=True)
@_options.system
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@click.option(
    "--max-rate", type=click.IntRange(1, 1000), default=1000, help="Maximum messages per second."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--tenant", default="default", help="Tenant of the topics.")
def command(
    topic_filters: tuple[str, ...],
    system: System,
    count: int | None,
    max_rate: int,
    as_json: bool,
    tenant: str,
) -> None:
    """Show messages whose topics match one of the MQTT topic filters, until interrupted.

    They are read from the log, without a session or a client. Quote a `#`.
    """
    client = ApiClient(system)
    shown = 0
    while True:
        events = client.events(
            "/live/messages",
            topic_filter=topic_filters,
            max_rate=max_rate,
            max_payload_bytes=65_536,
            tenant=tenant,
        )
        for name, data in events:
            if name == "message":
                click.echo(json.dumps(data) if as_json else _line(data))
                shown += 1
                if shown == count:
                    return
            elif name == "left_out":
                left_out = data["rate"] + data["slow"]
                click.echo(f"… {left_out} messages left out", err=True)
            elif name == "end" and data["code"] == "unauthenticated":
                raise OperationalError(data["detail"])


def _line(message: dict[str, Any]) -> str:
    payload = message["payload"]
    if payload is None:
        payload = f"({message['payload_bytes']} bytes)"
    return printable(f"{message['received_at']} {message['topic_name']} {payload}")
