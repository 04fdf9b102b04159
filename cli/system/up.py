"""Start the whole system on this machine."""

import sys
from contextlib import closing
from pathlib import Path

import click

from cli.shared import options as _options
from launcher.launch import run_detached, run_here
from launcher.paths import CONFIG
from launcher.planning.planning import Options
from launcher.progress import choose_progress


@click.command()
@_options.data_dir
@click.option("--gateways", type=click.IntRange(1, 64), default=1, help="Number of MQTT gateways.")
@click.option(
    "--mqtt-port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port of the first gateway; further ones count up.  [default: 1883]",
)
@click.option(
    "--websocket-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Port of the first gateway for MQTT over WebSocket; 0 for none.  [default: 8083]",
)
@click.option(
    "--api-port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port of the REST API.  [default: 8080]",
)
@click.option(
    "--balanced",
    is_flag=True,
    help="Distribute clients over the gateways with HAProxy: it uses --mqtt-port and "
    "--websocket-port, the gateways use the ports after them.",
)
@click.option(
    "--federation",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Federate this site with others by its log, as in this file (conf/federation.toml).",
)
@click.option(
    "--log-servers",
    default=None,
    metavar="HOST:PORT,…",
    help="Use this Kafka-compatible log instead of an embedded one.",
)
@click.option(
    "--detach", is_flag=True, help="Return when the system is ready and leave it running."
)
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=CONFIG,
    show_default="conf",
    help="Folder with local.toml, gateway.toml, router.toml, lake.toml and so on.",
)
def command(
    data_dir: Path,
    gateways: int,
    mqtt_port: int | None,
    websocket_port: int | None,
    api_port: int | None,
    balanced: bool,
    federation: Path | None,
    log_servers: str | None,
    detach: bool,
    config_dir: Path,
) -> None:
    """Start the whole system on this machine.

    When ready, it prints one line `ready mqtt://… http://…`. Ctrl-C or `mqlake down` stops it.
    """
    options = Options(
        data_dir,
        config_dir.absolute(),
        gateways,
        mqtt_port,
        api_port,
        websocket_port,
        balanced,
        None if federation is None else federation.absolute(),
        log_servers,
    )
    if detach:
        sys.exit(run_detached(options))
    with closing(choose_progress()) as progress:
        sys.exit(run_here(options, progress))
