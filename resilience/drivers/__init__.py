"""Drivers: programs that act as MQTT clients and write histories."""

from collections.abc import Callable
from typing import Final

from resilience.drivers.client import MqttClient
from resilience.drivers.frames import Addresses, FrameClient
from resilience.errors import ScenarioError
from resilience.history import Writer

Hold = Callable[[Callable[[], None]], None]

DRIVERS: Final = ("raw", "paho")


def make(
    driver: str,
    name: str,
    history: Writer,
    addresses: Addresses,
    *,
    on_lost: Callable[[], None],
    hold: Hold | None,
) -> FrameClient:
    """Make a client; a driver's library is imported only when it is used."""
    if driver == "raw":
        from resilience.drivers.raw import open_tcp

        return MqttClient(name, history, open_tcp(addresses), on_lost=on_lost, hold=hold)
    if driver == "paho":
        from resilience.drivers.paho import PahoClient

        return PahoClient(name, history, addresses, on_lost=on_lost)
    raise ScenarioError(f"no driver {driver!r}; there are {', '.join(DRIVERS)}")
