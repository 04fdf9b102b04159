"""Move the clients of a gateway to other gateways, or accept clients again."""

import time
from typing import Any, Final

import click

from cli.shared import options as _options
from cli.shared.progress import progress_bar
from mqlake.api_client import ApiClient, System
from mqlake.errors import OperationalError

_POLL_SECONDS: Final = 0.5
_BEGIN_SECONDS: Final = 15.0
"""A gateway that has not begun by then does not hear us."""


@click.command()
@click.argument("gateway")
@_options.system
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=50.0,
    help="Clients to disconnect per second.",
)
@click.option(
    "--server-reference",
    help="Server Reference for 5.0 clients.  [default: the gateway's setting, if any]",
)
@click.option(
    "--moved", is_flag=True, help="The gateway will not come back: send 0x9D instead of 0x9C."
)
@click.option("--undo", is_flag=True, help="Accept clients again.")
@click.option("--wait", is_flag=True, help="Wait until the gateway is drained.")
def command(
    gateway: str,
    system: System,
    rate: float,
    server_reference: str | None,
    moved: bool,
    undo: bool,
    wait: bool,
) -> None:
    """Disconnect the clients of a gateway, and accept no new ones.

    Nothing is lost: sessions are saved before their clients are disconnected. A drained gateway can
    be stopped. It accepts clients again after --undo or a restart.
    """
    api = ApiClient(system)
    path = f"/gateways/{gateway}/drain"
    if undo:
        api.delete(path)
    else:
        api.post(
            path,
            {
                "connections_per_second": rate,
                "server_reference": server_reference,
                "moved": moved,
            },
        )
    if wait:
        _await(api, gateway, "serving" if undo else "drained")
    else:
        click.echo(f"{gateway} was asked to {'take clients again' if undo else 'let clients go'}")


def _await(api: ApiClient, gateway: str, state: str) -> None:
    from rich.console import Console

    begin = time.monotonic()
    found = api.get(f"/gateways/{gateway}")
    first = found["clients"]
    with progress_bar(Console(stderr=True), quiet=state != "drained") as bar:
        step = bar.add_task("clients that have gone", total=max(first, 1))
        while found["state"] != state:
            if not found["alive"]:
                raise OperationalError(f"{gateway} is gone, its last state was {found['state']}")
            if time.monotonic() - begin > _BEGIN_SECONDS and not _is_moving(found, state):
                raise OperationalError(
                    f"{gateway} is still {found['state']}: see its log, or ask again"
                )
            time.sleep(_POLL_SECONDS)
            found = api.get(f"/gateways/{gateway}")
            bar.update(step, completed=first - found["clients"])
    click.echo(f"{gateway} is {state}")


def _is_moving(found: dict[str, Any], state: str) -> bool:
    return state == "drained" and found["state"] == "draining"
