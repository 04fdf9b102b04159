"""Listeners of each gateway of a one-machine system beside its MQTT port."""

from collections.abc import Iterable

from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.settings.listeners import (
    ListenerSettings,
    UnixListener,
    WebSocketListener,
    address_of,
)
from launcher.planning.preflight import WantedPort
from mqlake.processes.status import url_host


def listeners_of(
    settings: GatewaySettings, number: int, websocket_port: int
) -> tuple[ListenerSettings, ...]:
    """Return the further listeners of one gateway.

    Args:
        settings: Settings of all gateways of this machine. Their listeners' ports count up with the
            number, as the MQTT port does; Unix sockets are the first gateway's alone.
        number: 0 for the first gateway.
        websocket_port: Port of the first gateway; 0 for none.
    """
    if number == 0:
        more = (
            (WebSocketListener(host=settings.host, port=websocket_port),) if websocket_port else ()
        )
        return (*more, *settings.listeners)
    return tuple(
        listener.model_copy(update={"port": listener.port + number})
        for listener in settings.listeners
        if not isinstance(listener, UnixListener)
    )


def wanted_ports(gateway: str, listeners: Iterable[ListenerSettings]) -> list[WantedPort]:
    """Return the ports to be checked before anything starts."""
    wanted = []
    for listener in listeners:
        if not isinstance(listener, UnixListener):
            option = (
                "--websocket-port"
                if isinstance(listener, WebSocketListener)
                else "setting listeners"
            )
            part = f"MQTT by {listener.kind} ({gateway})"
            wanted.append(WantedPort(listener.host, listener.port, part, option))
    return wanted


def reachable_addresses(listeners: Iterable[ListenerSettings]) -> tuple[str, ...]:
    """Return URLs by which the listeners are reached from this machine."""
    return tuple(
        address_of(
            listener, host=None if isinstance(listener, UnixListener) else url_host(listener.host)
        )
        for listener in listeners
    )
