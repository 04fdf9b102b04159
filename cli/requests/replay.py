"""Publish stored messages again."""

import click

from cli.shared import options as _options
from cli.shared.jobs import await_job
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError


@click.command()
@click.argument("query", required=False)
@_options.system
@click.option("--prefix", default="", help="Prefix for each topic, such as replay/.")
@click.option("--client", "client_id", help="Send only to this client, which must be connected.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    help="1 keeps the time between messages, 10 makes it a tenth.  [default: no delay]",
)
@click.option(
    "--rate",
    type=click.IntRange(1, 50_000),
    help="Maximum messages per second.  [default: 1000, to one client 100]",
)
@click.option("--limit", type=click.IntRange(1), help="Only this many messages, the earliest.")
@click.option("--keep-retain", is_flag=True, help="Retained messages replace the current ones.")
@click.option("--resume", metavar="JOB", help="Resume a replay that was interrupted or cancelled.")
@click.option("--tenant", default="default", help="Tenant of the messages.")
def command(
    query: str | None,
    system: System,
    prefix: str,
    client_id: str | None,
    speed: float | None,
    rate: int | None,
    limit: int | None,
    keep_retain: bool,
    resume: str | None,
    tenant: str,
) -> None:
    """Publish the result of QUERY, a SELECT over messages, in order of time.

    Example: mqlake replay "SELECT * FROM messages WHERE topic LIKE 'plant/%'" --prefix replay/

    Without --prefix the messages go to their original topics, and subscribers and rules receive
    them again. Interrupt the command to cancel; see docs/replay.md.
    """
    if (query is None) == (resume is None):
        raise OperationalError("give a query, or --resume and a job")
    api = ApiClient(system)
    if resume is not None:
        started = api.post(f"/jobs/{resume}/resume", {})
    else:
        asked = {
            "query": query,
            "prefix": prefix,
            "client_id": client_id,
            "speed": speed,
            "rate": rate,
            "limit": limit,
            "keep_retain": keep_retain,
        }
        started = api.post("/replay", asked, tenant=tenant)
    click.echo(f"job {started['id']}", err=True)
    job = await_job(api, started, quiet=False)
    result = job["result"]
    click.echo(f"{result['sent']:,} messages in {job['seconds']:.1f} s")
    if result["refused"]:
        click.echo(f"{result['refused']:,} left out: {result['refused_because']}", err=True)
