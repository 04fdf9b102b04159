"""Place clients over gateways: the control plane of HAProxy."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.shared import options as _options
from mqlake.processes.control_socket import ask_balancer
from mqlake.settings import load

if TYPE_CHECKING:
    from rich.table import Table


@click.group(invoke_without_command=True)
@_options.config
@click.pass_context
def command(context: click.Context, config: Path | None) -> None:
    """Place clients over gateways: the control plane of HAProxy.

    Without a subcommand it runs until it is stopped.
    """
    from ingest.balancer.settings import BalancerSettings

    context.obj = load(BalancerSettings, config)
    if context.invoked_subcommand is None:
        from ingest.balancer.app import main

        sys.exit(main(context.obj))


@command.command()
@_options.as_json
@click.pass_obj
def status(settings: Any, as_json: bool) -> None:
    """Show nodes, proxies, and the snapshot version of each proxy.

    The exit code is 0 only if all are in the desired state.
    """
    found = ask_balancer(settings.control_socket, action="status")
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_status(found)
    sys.exit(0 if found["healthy"] else 1)


@command.command()
@click.argument("node")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=50.0,
    help="Connections to close per second.",
)
@click.pass_obj
def drain(settings: Any, node: str, rate: float) -> None:
    """Move the clients of NODE to others, and give it no new ones."""
    ask_balancer(settings.control_socket, action="drain", node=node, connections_per_second=rate)
    click.echo(f"{node} is drained; `status` shows how far that has come")


@command.command()
@click.argument("node")
@click.pass_obj
def undrain(settings: Any, node: str) -> None:
    """Give NODE new clients again."""
    ask_balancer(settings.control_socket, action="undrain", node=node)
    click.echo(f"{node} takes clients again")


@command.command()
@click.argument("proxy")
@click.pass_obj
def configuration(settings: Any, proxy: str) -> None:
    """Print haproxy.cfg of PROXY, with the nodes of the last snapshot."""
    from ingest.balancer.haproxy.configuration import render
    from ingest.balancer.state_file import load_state

    layout = settings.layout()
    found = next((one for one in layout.proxies if one.name == proxy), None)
    if found is None:
        names = ", ".join(one.name for one in layout.proxies) or "none"
        raise click.UsageError(f"there is no proxy {proxy}; the settings have: {names}")
    click.echo(render(layout, found, load_state(settings.state_file).snapshot), nl=False)


@command.command()
@click.option("--nodes", type=click.IntRange(2, 1000), default=100)
@click.option("--clients", type=click.IntRange(1, 10_000_000), default=1_000_000)
@click.option("--seed", type=int, default=1)
@_options.as_json
@click.pass_obj
def simulate(settings: Any, nodes: int, clients: int, seed: int, as_json: bool) -> None:
    """Simulate clients and nodes; nodes come, go and become overloaded.

    Uses the production code, and the settings of `predicted`.
    """
    from ingest.balancer.simulation import Size, simulate

    predicted = settings.predicted
    size = Size(nodes, clients, predicted.session_shards, predicted.buckets_per_shard)
    report = simulate(size, slack=predicted.slack, seed=seed)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(
        f"{clients} clients, {nodes} nodes, {predicted.session_shards} shards: "
        f"{report['microseconds_per_client']:.2f} µs for each client"
    )
    for step in report["steps"]:
        click.echo(
            f"{step['step']:<32} moved {step['moved_percent']:6.2f} % of clients"
            f" (must {step['must_move_percent']:5.2f} %), fullest node"
            f" {step['most_of_bound_percent']:6.1f} % of its bound, at their session"
            f" {step['home_percent']:5.1f} %, {step['milliseconds']:.0f} ms"
        )


def _print_status(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(_table_of_nodes(found["nodes"]))
    console.print(_table_of_proxies(found["proxies"], found["version"]))
    for one in found["drains"]:
        console.print(escape(f"drain of {one['node']}: {one['state']}, {one['closed']} closed"))
    loads = found["loads"]
    told = f"expected loads of {loads['made_at']}" if loads["made_at"] else "no expected loads yet"
    if loads["problem"]:
        told += f" ({loads['problem']})"
    console.print(escape(f"{found['talkers']} clients placed together; {told}"))
    console.print(
        f"[dim]{found['strategy']} version {found['version'][:12]}: {escape(found['detail'])}[/]"
    )


def _table(*titles: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title)
    return table


def _table_of_nodes(nodes: list[dict[str, Any]]) -> "Table":
    from rich.markup import escape

    table = _table("node", "address", "slot", "weight", "clients", "cpu", "overload", "why not")
    for node in nodes:
        reasons = [
            f"{name}: {factor['reason'] or 'not known yet'}"
            for name, factor in node["factors"].items()
            if not factor["healthy"]
        ]
        reasons += ["drained"] * node["draining"] + ["overloaded"] * node["overloaded"]
        cpu, level = node["cpu_percent"], node["overload_level"]
        table.add_row(
            escape(node["name"]),
            escape(f"{node['address']} {node['ports']}"),
            str(node["slot"]),
            str(node["weight"]),
            "[green]takes[/]" if node["takes_clients"] else "[red]none[/]",
            "-" if cpu is None else f"{cpu:.0f} %",
            "-" if level is None else str(level),
            escape("; ".join(reasons)),
        )
    return table


def _table_of_proxies(proxies: list[dict[str, Any]], version: str) -> "Table":
    from rich.markup import escape

    table = _table("proxy", "version", "repairs", "problem")
    for proxy in proxies:
        shown = proxy["version"][:12] + ("" if proxy["version"] == version else " (old)")
        table.add_row(escape(proxy["name"]), shown, str(proxy["repairs"]), escape(proxy["problem"]))
    return table
