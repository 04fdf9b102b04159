from pathlib import Path

import pytest

from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.settings.listeners import TlsListener, UnixListener, WebSocketListener
from launcher.planning.listeners import listeners_of, reachable_addresses, wanted_ports
from launcher.planning.preflight import check_ports
from launcher.ports import free_ports
from mqlake.errors import OperationalError

TLS = TlsListener(certificate=Path("server.pem"), key=Path("server.key"), host="0.0.0.0")
UNIX = UnixListener(file=Path("/run/mqtt.sock"))
SETTINGS = GatewaySettings(host="::1", listeners=(TLS, UNIX), allow_anonymous=True)


def test_first_gateway_has_a_websocket_listener_and_those_of_the_file() -> None:
    listeners = listeners_of(SETTINGS, 0, 8083)
    assert listeners == (WebSocketListener(host="::1", port=8083), TLS, UNIX)
    assert reachable_addresses(listeners) == (
        "ws://[::1]:8083/mqtt",
        "mqtts://127.0.0.1:8883",
        "unix:///run/mqtt.sock",
    )


def test_port_0_is_no_websocket_listener() -> None:
    assert listeners_of(SETTINGS, 0, 0) == (TLS, UNIX)


def test_ports_of_further_gateways_count_up() -> None:
    (listener,) = listeners_of(SETTINGS, 2, 8083)
    assert listener == TLS.model_copy(update={"port": 8885})


def test_every_port_is_checked_with_the_option_that_changes_it() -> None:
    wanted = wanted_ports("gateway-1", listeners_of(SETTINGS, 0, 8083))
    assert [(want.host, want.port, want.part, want.option) for want in wanted] == [
        ("::1", 8083, "MQTT by ws (gateway-1)", "--websocket-port"),
        ("0.0.0.0", 8883, "MQTT by tls (gateway-1)", "setting listeners"),
    ]


def test_port_wanted_twice_is_told() -> None:
    (port,) = free_ports(1)
    first = WebSocketListener(port=port)
    second = WebSocketListener(port=port, path="/other")
    with pytest.raises(OperationalError, match="choose another with --websocket-port"):
        check_ports(wanted_ports("gateway-1", (first, second)))
