# ruff: noqa: A005 - a command is named by its file
"""Show where a message went."""

import json
from typing import Any

import click

from cli.shared import options as _options
from cli.shared.tables import print_table, printable
from mqlake.api_client import ApiClient, System


@click.command()
@click.argument("message_id")
@_options.system
@click.option("--client", "client_id", help="Only at this client.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, help="Maximum number of subscribers."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--tenant", default="default", help="Tenant of the message.")
def command(
    message_id: str,
    system: System,
    client_id: str | None,
    limit: int,
    as_json: bool,
    tenant: str,
) -> None:
    """Show where a message went: subscribers, drops, rules, and unknown outcomes.

    Message identifiers are in the table messages and in the output of publish and tail --json.
    """
    path = f"/messages/{message_id.lower()}/trace"
    found = ApiClient(system).get(path, client_id=client_id, limit=limit, tenant=tenant)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    accepted = found["accepted"]
    click.echo(printable(found["summary"]))
    click.echo(
        printable(
            f"{accepted['at']} {accepted['topic_name']} QoS {accepted['qos']} from "
            f"{accepted['client_id']!r} by {accepted['origin']}, "
            f"{accepted['payload_bytes']} bytes, "
            f"partition {accepted['partition']} offset {accepted['offset']}"
        )
    )
    for one in found["routed"]:
        click.echo(f"routed to {one['gateway']} ({one['basis']})")
    if found["subscribers"]:
        titles = ("client", "filter", "outcome", "basis", "at", "detail")
        print_table(titles, map(_subscriber, found["subscribers"]))
    for rule in found["rules"]:
        _print_rule(rule)
    for line in found["not_known"]:
        click.echo(f"not known: {printable(line)}")


def _subscriber(one: dict[str, Any]) -> tuple[str, ...]:
    outcome = one["outcome"] if one["reason"] is None else f"{one['outcome']}: {one['reason']}"
    return (
        one["client_id"],
        one["topic_filter"],
        outcome,
        one["basis"],
        one["at"] or "",
        one["detail"],
    )


def _print_rule(rule: dict[str, Any]) -> None:
    name = f"rule {rule['rule_id']} version {rule['version']}"
    click.echo(printable(f"{name} ({rule['basis']}): {rule['detail']}"))
    for output in rule["outputs"]:
        click.echo(printable(f"  {json.dumps(output['row'], ensure_ascii=False)}"))
        for action in output["actions"]:
            told = f"{action['outcome']} ({action['basis']}): {action['detail']}"
            published = f" {action['message_id']}" if action["message_id"] else ""
            click.echo(printable(f"    {action['action']} {told}{published}"))
    for letter in rule["dead_letters"]:
        click.echo(printable(f"  dead letter, {letter['stage']}: {letter['error']}"))
