"""Publish messages over the API."""

import base64
import sys
from pathlib import Path
from typing import Any, Final

import click

from cli.shared import options as _options
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError

_BULK: Final = 500
"""Lines that are published at once."""


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.argument("payload", metavar="[PAYLOAD]", required=False)
@_options.system
@click.option("--qos", type=click.IntRange(0, 2), default=0, help="QoS of the message.")
@click.option("--retain", is_flag=True, help="Retain the message for later subscribers.")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Publish the contents of this file.",
)
@click.option("--lines", is_flag=True, help="Publish each line of standard input.")
@click.option("--tenant", default="default", help="Tenant of the topic.")
def command(
    topic: str,
    payload: str | None,
    system: System,
    qos: int,
    retain: bool,
    path: Path | None,
    lines: bool,
    tenant: str,
) -> None:
    """Publish a message to TOPIC; it is in the log when the command ends.

    Without PAYLOAD, --file and --lines the message is empty.
    """
    if sum((payload is not None, path is not None, lines)) > 1:
        raise click.UsageError("PAYLOAD, --file and --lines exclude each other")
    client = ApiClient(system)
    common: dict[str, Any] = {"topic_name": topic, "qos": qos, "retain": retain}
    if not lines:
        data = path.read_bytes() if path is not None else (payload or "").encode()
        answer = client.post("/publish", {**common, **_payload(data)}, tenant=tenant)
        click.echo(f"{answer['message_id']} at {answer['partition']}:{answer['offset']}", err=True)
        return
    count = 0
    waiting: list[dict[str, Any]] = []
    for line in sys.stdin.buffer:
        waiting.append({**common, **_payload(line.rstrip(b"\r\n"))})
        if len(waiting) == _BULK:
            count += _publish(client, waiting, tenant)
            waiting = []
    count += _publish(client, waiting, tenant)
    click.echo(f"{count} messages published", err=True)


def _publish(client: ApiClient, messages: list[dict[str, Any]], tenant: str) -> int:
    if not messages:
        return 0
    answer = client.post("/publish/bulk", {"messages": messages}, tenant=tenant)
    if answer["failed"]:
        (error, *_) = [one["error"] for one in answer["items"] if one["error"]]
        raise OperationalError(f"{answer['failed']} messages were not published: {error}")
    return len(messages)


def _payload(data: bytes) -> dict[str, str]:
    try:
        return {"payload": data.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(data).decode()}
