"""Make a Kafka cluster of your own the log, and tell how it keeps what is acknowledged."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from mqlake.cli import _options
from mqlake.cli._audit_log import tell_log
from mqlake.cli._tables import print_table
from mqlake.local.settings import LocalSettings
from mqlake.log.durability import MEANING, Durability
from mqlake.log.security import LogServers
from mqlake.tenants import DEFAULT_TENANT

_OF_LOCAL = LocalSettings.model_fields
_TIMEOUT_SECONDS = 60.0

_servers = click.argument("servers", metavar="HOST:PORT[,HOST:PORT…]")


@click.group()
def command() -> None:
    """Make a Kafka cluster of your own the log, and look at it.

    `bin/mqlake up` does the same with the log that it starts.
    """


@command.command("prepare")
@_servers
@_options.security_file
@click.option(
    "--durability",
    type=click.Choice([*Durability]),
    default=Durability.D2,
    help="Class of what is acknowledged.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=_OF_LOCAL["log_partitions"].default,
    help="Of a new log; they stay, as they decide the order of topics.",
)
@click.option(
    "--session-shards",
    type=click.IntRange(1),
    default=_OF_LOCAL["session_shards"].default,
    help="Of a new log; they stay. Many gateways need more, 64 for some dozens.",
)
@click.option(
    "--retention-bytes",
    type=click.IntRange(1),
    default=_OF_LOCAL["log_retention_bytes"].default,
    help="As log_retention_bytes in conf/streaming.toml: of little the log makes small segments.",
)
def prepare(
    servers: str,
    security_file: Path | None,
    durability: Durability,
    partitions: int,
    session_shards: int,
    retention_bytes: int,
) -> None:
    """Create the log topics that there are not, with three copies where there are three brokers.

    Likewise have those that there are keep their records as the class says. Gateways and the Spark
    application start after this.
    """
    from mqlake.log.admin import ensure_log_topics

    log = LogServers(servers, security_file)
    ensure_log_topics(
        log,
        inbound_partitions=partitions,
        session_shards=session_shards,
        retention_bytes=retention_bytes,
        timeout_seconds=_TIMEOUT_SECONDS,
        durability=durability,
    )
    asked = {"durability": durability, "partitions": partitions, "session_shards": session_shards}
    tell_log(log, "log prepare", DEFAULT_TENANT, asked)
    click.echo(f"durability {durability}: {MEANING[durability]}")


@command.command("durability")
@_servers
@_options.security_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tell(servers: str, security_file: Path | None, as_json: bool) -> None:
    """Tell the class of each log topic that has what is acknowledged."""
    from mqlake.log.admin import REQUEST_SECONDS, keepings
    from mqlake.log.log_topics import ACKNOWLEDGED_LOG_TOPICS

    log = LogServers(servers, security_file)
    found = keepings(log, ACKNOWLEDGED_LOG_TOPICS, REQUEST_SECONDS)
    if as_json:
        rows = {
            name: {"durability": keeping.durability, **asdict(keeping)}
            for name, keeping in found.items()
        }
        click.echo(json.dumps(rows, indent=2))
        return
    print_table(
        ("log topic", "durability", "copies", "acknowledge", "flushed"),
        (
            (
                name,
                keeping.durability,
                str(keeping.copies),
                str(keeping.acknowledged),
                "yes" if keeping.is_flushed else "no",
            )
            for name, keeping in found.items()
        ),
    )
