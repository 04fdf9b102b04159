"""Prepare a Kafka cluster of your own as the log, add partitions, and show durability."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from cli.shared import options as _options
from cli.shared.audit_log import tell_log
from cli.shared.tables import print_table
from launcher.settings import LocalSettings
from mqlake.log.durability import MEANING, Durability
from mqlake.log.security import LogServers

_OF_LOCAL = LocalSettings.model_fields
_TIMEOUT_SECONDS = 60.0

_servers = click.argument("servers", metavar="HOST:PORT[,HOST:PORT…]")


@click.group()
def command() -> None:
    """Prepare a Kafka cluster of your own as the log, add partitions, and show durability.

    `bin/mqlake up` prepares the log that it starts.
    """


@command.command("prepare")
@_servers
@_options.security_file
@click.option(
    "--durability",
    type=click.Choice([*Durability]),
    default=Durability.D2,
    help="Durability class of acknowledged messages.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=4,
    help="Partitions of a new log; `log grow` adds more and keeps the order of topics.",
)
@click.option(
    "--session-shards",
    type=click.IntRange(1),
    default=_OF_LOCAL["session_shards"].default,
    help="Session shards of a new log; cannot be changed later. Many gateways need more, "
    "several dozen need 64.",
)
@click.option(
    "--retention-bytes",
    type=click.IntRange(1),
    default=_OF_LOCAL["log_retention_bytes"].default,
    help="As log_retention_bytes in conf/lake.toml: a small value makes the log's segments small.",
)
def prepare(
    servers: str,
    security_file: Path | None,
    durability: Durability,
    partitions: int,
    session_shards: int,
    retention_bytes: int,
) -> None:
    """Create missing log topics, with three replicas if there are three brokers.

    Existing topics get the durability settings of the class. Start gateways and the Spark
    applications afterwards.
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
    tell_log(log, "log prepare", None, asked)
    click.echo(f"durability {durability}: {MEANING[durability]}")


@command.command("grow")
@_options.data_dir
@_options.log_servers
@_options.security_file
@click.option(
    "--partitions",
    type=click.IntRange(1),
    required=True,
    help="New number of partitions: a multiple of the present one.",
)
@_options.timeout
def grow(
    data_dir: Path,
    log_servers: str | None,
    security_file: Path | None,
    partitions: int,
    timeout_seconds: float,
) -> None:
    """Add partitions while the system runs; each MQTT topic keeps its order.

    More partitions are read by more tasks in parallel. Kafka cannot remove partitions. If it was
    interrupted, run the command again to continue.
    """
    from api.log.appending import LogAppender
    from mqlake.log.admin import LogAdmin
    from mqlake.log.grow import grow as grow_log
    from mqlake.log.growth import Growth, encode_growth
    from mqlake.log.growth_watch import GrowthWatch
    from mqlake.records.messages import GATEWAYS, GROWTH_KEY

    servers = _options.named_log(data_dir, log_servers, security_file)
    appender = LogAppender(servers)

    def say(growth: Growth) -> None:
        value = encode_growth(growth)
        appender.append(GATEWAYS, GROWTH_KEY, value, what="a step of the log's growth")

    def tell(waiting: str) -> None:
        click.echo(waiting, err=True)

    grow_log(GrowthWatch(servers), LogAdmin(servers), say, tell, partitions, timeout_seconds)
    tell_log(servers, "log grow", None, {"partitions": partitions})
    click.echo(f"messages are in {partitions} partitions")


@command.command("durability")
@_servers
@_options.security_file
@_options.as_json
def tell(servers: str, security_file: Path | None, as_json: bool) -> None:
    """Show the class of each log topic with acknowledged records."""
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
