"""Connect this site with others, by its log or its MQTT broker."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from cli.shared import options as _options
from mqlake.errors import OperationalError
from mqlake.settings import load

BYSTANDERS: Final = (1, 2, 4, 5, 6, 9)
"""Nodes of the published grid at which there is no client."""


@click.group(invoke_without_command=True)
@_options.config
@click.pass_context
def command(context: click.Context, config: Path | None) -> None:
    """Connect this site with others, by its log or its MQTT broker.

    Runs the federator of one site until it is stopped; SIGHUP reloads its neighbours.
    """
    if context.invoked_subcommand is None:
        from ingest.federation.app import main
        from ingest.federation.settings import FederationSettings

        settings = load(FederationSettings, config)
        if settings.log is None:
            _require_federator()
        sys.exit(main(settings, config))


def _require_federator() -> None:
    if find_spec("ingest.federation.brokers") is None:
        raise OperationalError(
            "the federator of brokers is not installed: pip install mqlake-federator"
        )


@command.command()
@_options.config
@_options.data_dir
@_options.as_json
def status(config: Path | None, data_dir: Path, as_json: bool) -> None:
    """Show links and meshes of a federator on this machine.

    Without settings, it shows the federator of the system in the data directory. The exit code is 0
    only if it is healthy.
    """
    from ingest.federation.process import heartbeat_path
    from ingest.federation.settings import FederationSettings
    from launcher.paths import DataDirectory
    from launcher.planning.parts import FEDERATION
    from mqlake.processes.heartbeat import read_heartbeat

    path = heartbeat_path(load(FederationSettings, config))
    if path is None:
        path = DataDirectory(data_dir).heartbeat(FEDERATION)
    beat = read_heartbeat(path)
    if beat is None or not beat.is_fresh():
        raise OperationalError(f"no federator runs with {path}")
    if as_json:
        click.echo(json.dumps({"healthy": beat.healthy, "detail": beat.detail, **beat.figures}))
    else:
        click.echo(f"{beat.name}: {beat.detail}")
        (_print if "meshes" in beat.figures else _print_site)(beat.figures)
        _print_map(beat.figures["overlay"])
    sys.exit(0 if beat.healthy else 1)


def _print(figures: dict[str, Any]) -> None:
    click.echo("\nsite        link  there  waiting  dropped  broker")
    for link in figures["links"]:
        click.echo(
            f"{link['site']:<10}  {_yes(link['link'])}   {_yes(link['there'])}    "
            f"{link['waiting']:>7}  {link['dropped']:>7}  {link['uri']} {link['reason']}"
        )
    click.echo(f"\nstate    core        hops  to            filter (of {figures['mesh_count']})")
    for mesh in figures["meshes"]:
        to = ",".join(map(str, sorted({*mesh["parents"], *mesh["children"]})))
        core = "-" if mesh["core"] is None else mesh["core"]
        click.echo(
            f"{mesh['state']:<7}  {core:<10}  {mesh['distance']:>4}  {to:<12}  {mesh['filter']}"
        )


def _print_site(figures: dict[str, Any]) -> None:
    click.echo("\nsite        there  wants  waiting   behind      sent  gone  held  federator")
    for link in figures["links"]:
        click.echo(
            f"{link['site']:<10}  {_yes(link['there'])}    {link['wants']:>5}  "
            f"{link['waiting']:>7}  {link['behind']:>7}  "
            f"{link['counters']['sent']:>8}  {link['gone']:>4}  {link['held']:>4}  "
            f"{link['uri']} {link['reason'] or link['held_because']}"
        )
    counters = figures["counters"]
    click.echo(
        f"\n{counters['received']} messages came, {counters['appended']} of them new, "
        f"{counters['duplicates']} had before, {counters['echoes']} of this site; "
        f"{figures['gaps']} gaps in {figures['streams']} partitions of other sites; "
        f"{figures['interests']} filters are wanted here\n"
        f"of {figures['retained']} topics the latest retained message is known; "
        f"{counters['outdated']} that came were older"
    )


def _print_map(overlay: dict[str, Any]) -> None:
    click.echo("\nsite        state    links to          where")
    for one in overlay["sites"]:
        state = "apart" if one["site"] in overlay["apart"] else one["state"]
        links = ",".join(map(str, one["links"]))
        click.echo(f"{one['site']:<10}  {state:<7}  {links:<16}  {one['uri']}")


def _yes(value: bool) -> str:
    return "yes" if value else "no "


@command.command()
@click.option(
    "--messages", default=500, type=click.IntRange(1), help="Messages published at node 7."
)
@click.option("--rate", default=100.0, type=click.FloatRange(1), help="Messages per second.")
@click.option(
    "--redundancy", default=2, type=click.IntRange(1, 4), help="Number of parents in a mesh."
)
@click.option(
    "--protocol", default="5.0", type=click.Choice(("5.0", "3.1.1")), help="MQTT version."
)
@click.option(
    "--logs", is_flag=True, help="Measure three mqlake sites in a row, connected by their logs."
)
@click.option(
    "--outage",
    default=10_000,
    type=click.IntRange(1),
    help="With --logs: messages while the federator in the middle is down.",
)
@click.option(
    "--kill",
    type=click.Choice(
        [f"{part}-{node}" for part in ("broker", "federator") for node in BYSTANDERS]
    ),
    help="Kill that federator half-way, and measure how long messages waited for the repair.",
)
@_options.as_json
def bench(
    messages: int,
    rate: float,
    redundancy: int,
    protocol: str,
    logs: bool,
    outage: int,
    kill: str | None,
    as_json: bool,
) -> None:
    """Measure the published grid of nine brokers, next to the published figures.

    Starts nine Mosquitto brokers, a federator for each, and a client at nodes 3, 7 and 8. With
    --logs: three logs and federators in a row.
    """
    if logs:
        from bench import sites

        result = sites.measure_sites(messages, rate, outage)
        lines = sites.to_lines(result)
    else:
        _require_federator()
        from bench import federation

        result = federation.measure_grid(
            messages, rate, redundancy=redundancy, protocol=protocol, kill=kill
        )
        lines = federation.to_lines(result)
    click.echo(json.dumps(result) if as_json else "\n".join(lines))
