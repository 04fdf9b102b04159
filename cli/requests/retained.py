"""List retained messages."""

from itertools import chain, islice
from typing import Any, Final

import click

from cli.shared import options as _options
from cli.shared.tables import print_list, tell_complete
from mqlake.api_client import ApiClient, System

_SHOWN_CHARACTERS: Final = 60


@click.command()
@click.argument("topic_filter", metavar="[FILTER]", required=False)
@_options.system
@click.option("--limit", type=click.IntRange(1), default=1000, help="Maximum number of messages.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; payloads up to 64 KiB.")
def command(topic_filter: str | None, system: System, limit: int, as_json: bool) -> None:
    """List retained messages, all or those whose topics match an MQTT topic filter.

    The table `retained` is some seconds behind; the last line on standard error says how far it is.
    """
    pages = ApiClient(system).pages(
        "/retained",
        topic_filter=topic_filter,
        max_payload_bytes=65_536 if as_json else 4 * _SHOWN_CHARACTERS,
    )
    first = next(pages)
    found = chain.from_iterable(page["items"] for page in chain([first], pages))
    messages = list(islice(found, limit))
    titles = ("topic", "QoS", "bytes", "payload", "published", "by", "expires")
    print_list(messages, titles, _row, as_json=as_json)
    if next(found, None) is not None:
        click.echo(f"there are more than {limit}: see --limit", err=True)
    tell_complete(first["complete_until"])


def _row(message: dict[str, Any]) -> tuple[str, ...]:
    return (
        message["topic_name"],
        str(message["qos"]),
        str(message["payload_bytes"]),
        shown(message["payload"]),
        message["received_at"],
        message["client_id"],
        message["expires_at"] or "",
    )


def shown(payload: str | None) -> str:
    """Return the beginning of a payload that is text, else an ellipsis."""
    if payload is None or not payload.isprintable():
        return "…"
    return payload if len(payload) <= _SHOWN_CHARACTERS else payload[: _SHOWN_CHARACTERS - 1] + "…"
