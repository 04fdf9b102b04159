"""Run one MQTT gateway, or retire one that will not come back."""

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.shared import options as _options
from cli.shared.audit_log import tell_log
from ingest.gateway.settings.gateway import GatewaySettings
from mqlake.settings import load

if TYPE_CHECKING:
    from ingest.gateway.process.retiring import Unsettled


@click.group(invoke_without_command=True)
@_options.config
@click.pass_context
def command(context: click.Context, config: Path | None) -> None:
    """Run one MQTT gateway, or retire one that will not come back.

    Without a subcommand it runs a gateway.
    """
    if context.invoked_subcommand is not None:
        return
    from ingest.gateway.process.app import main

    sys.exit(main(load(GatewaySettings, config)))


@command.command("retire")
@click.argument("name")
@_options.data_dir
@_options.log_servers
@_options.security_file
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=GatewaySettings.model_fields["lease_seconds"].default,
    help="As lease_seconds of the gateways: time to wait for a gateway that may still run.",
)
@_options.timeout
def retire(
    name: str,
    data_dir: Path,
    log_servers: str | None,
    security_file: Path | None,
    lease_seconds: float,
    timeout_seconds: float,
) -> None:
    """Remove a gateway that will not come back from the log.

    The other gateways settle its sessions and share groups; then its routes and its delivery topic
    are deleted. A running gateway is refused: drain and stop it first. Nothing is lost, and a
    gateway of the same name can be started later.
    """
    servers = _options.named_log(data_dir, log_servers, security_file)
    asyncio.run(_retire(name, servers, lease_seconds, timeout_seconds))
    tell_log(servers, "gateway retire", None, {"name": name})
    click.echo(f"{name} is retired")


async def _retire(name: str, servers: str, lease_seconds: float, timeout_seconds: float) -> None:
    from ingest.gateway.log.partitions import count_partitions
    from ingest.gateway.peers.hosts import LinuxHost
    from ingest.gateway.process.retiring import Retirement
    from mqlake.clock import SystemClock
    from mqlake.log.admin import ensure_delivery_topic, remove_delivery_topic
    from mqlake.log.contract import LogAccess
    from mqlake.log.kafka_ranges import KafkaRangeReader
    from mqlake.log.kafka_reader import KafkaLogReader
    from mqlake.log.kafka_writer import KafkaLogWriter

    writer = KafkaLogWriter(servers, client_id=name)
    ranges = KafkaRangeReader(servers, client_id=name)
    access = LogAccess(writer, partial(KafkaLogReader, servers, client_id=name), ranges)
    reader = access.open_reader()
    try:
        retirement = Retirement(
            name,
            access,
            await count_partitions(reader),
            lease_seconds,
            SystemClock(),
            LinuxHost(),
            partial(asyncio.to_thread, ensure_delivery_topic, servers, name),
            partial(asyncio.to_thread, remove_delivery_topic, servers, name),
        )
        await retirement.run(timeout_seconds, _tell)
    finally:
        await reader.close()
        await ranges.close()
        await writer.close()


def _tell(left: "Unsettled") -> None:
    click.echo(f"to be settled: {left}", err=True)
