import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.settings.listeners import (
    SecureWebSocketListener,
    TcpListener,
    TlsListener,
    UnixListener,
    WebSocketListener,
    address_of,
    to_json,
)
from mqlake.errors import SettingsError
from mqlake.settings import load

TLS: dict[str, Any] = {"certificate": "server.pem", "key": "server.key"}


def test_host_and_port_are_the_first_listener() -> None:
    settings = GatewaySettings(host="::1", port=1884)
    assert settings.all_listeners == (TcpListener(host="::1", port=1884),)


def test_further_listeners_are_tables_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        """
        port = 1884
        [[listeners]]
        kind = "wss"
        certificate = "server.pem"
        key = "server.key"
        origins = ["https://example.org"]
        versions = ["5.0"]
        [[listeners]]
        kind = "unix"
        file = "mqtt.sock"
        """
    )
    first, second, third = load(GatewaySettings, file).all_listeners
    assert first == TcpListener(port=1884)
    assert second == SecureWebSocketListener(
        certificate=Path("server.pem"),
        key=Path("server.key"),
        origins=("https://example.org",),
        versions=("5.0",),
    )
    assert third == UnixListener(file=Path("mqtt.sock"))


def test_listeners_pass_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = (
        TlsListener(
            name="secure",
            certificate=Path("/etc/server.pem"),
            key=Path("/etc/server.key"),
            key_password=SecretStr("s3cret"),
        ),
        WebSocketListener(max_connections=7, versions=("3.1",)),
        UnixListener(file=Path("/run/mqtt.sock"), mode="0600"),
    )
    monkeypatch.setenv("MQLAKE_GATEWAY_LISTENERS", to_json(listeners))
    assert load(GatewaySettings).listeners == listeners


@pytest.mark.parametrize(
    ("listener", "problem"),
    [
        ({"kind": "udp"}, "listeners.0: Input tag 'udp'"),
        ({"kind": "tcp"}, "listeners.0.tcp.port: Field required"),
        ({"kind": "tcp", "port": 0}, "listeners.0.tcp.port"),
        ({"kind": "tcp", "port": 1884, "path": "/mqtt"}, "listeners.0.tcp.path: there is no"),
        ({"kind": "tcp", "port": 1884, "versions": []}, "listeners.0.tcp.versions"),
        ({"kind": "tcp", "port": 1884, "versions": ["4.0"]}, "listeners.0.tcp.versions.0"),
        ({"kind": "tls"}, "listeners.0.tls.certificate: Field required"),
        ({"kind": "tls", **TLS, "minimum_tls_version": "1.1"}, "listeners.0.tls.minimum_tls"),
        (
            {"kind": "wss", **TLS, "client_certificates": "required"},
            "client_certificates is 'required', ca_certificates is missing",
        ),
        ({"kind": "ws", "path": "mqtt"}, "listeners.0.ws.path"),
        ({"kind": "unix", "file": "mqtt.sock", "mode": "660"}, "listeners.0.unix.mode"),
        ({"kind": "unix", "file": "mqtt.sock", "port": 1}, "listeners.0.unix.port"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, listener: dict[str, Any], problem: str
) -> None:
    monkeypatch.setenv("MQLAKE_GATEWAY_LISTENERS", json.dumps([listener]))
    with pytest.raises(SettingsError) as refused:
        load(GatewaySettings)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("listener", "address"),
    [
        (TcpListener(port=1883), "mqtt://127.0.0.1:1883"),
        (TcpListener(host="::1", port=1883), "mqtt://[::1]:1883"),
        (TcpListener(host="", port=1883), "mqtt://*:1883"),
        (TlsListener(host="0.0.0.0", **TLS), "mqtts://0.0.0.0:8883"),
        (WebSocketListener(), "ws://127.0.0.1:8083/mqtt"),
        (WebSocketListener(path="*"), "ws://127.0.0.1:8083/"),
        (SecureWebSocketListener(path="/a/b", **TLS), "wss://127.0.0.1:8084/a/b"),
        (UnixListener(file=Path("/run/mqtt.sock")), "unix:///run/mqtt.sock"),
    ],
)
def test_address_is_a_url(listener: Any, address: str) -> None:
    assert address_of(listener) == address


def test_address_can_be_shown_as_one_can_connect_to_it() -> None:
    assert address_of(TcpListener(host="", port=1), host="127.0.0.1") == "mqtt://127.0.0.1:1"
    assert address_of(TcpListener(host="::1", port=1), host="[::1]") == "mqtt://[::1]:1"


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({"host": "0.0.0.0"}, "mqtt://0.0.0.0:1883"),
        ({"host": ""}, "mqtt://*:1883"),
        ({"host": "::"}, "mqtt://[::]:1883"),
        ({"host": "192.168.1.5"}, "mqtt://192.168.1.5:1883"),
        ({"host": "gateway.example.org"}, "mqtt://gateway.example.org:1883"),
        ({"listeners": [{"kind": "ws", "host": "::"}]}, "ws://[::]:8083/mqtt"),
        (
            {"listeners": [{"kind": "tls", "host": "10.0.0.1", "key_password": "hidden", **TLS}]},
            "mqtts://10.0.0.1:8883",
        ),
    ],
)
def test_strangers_from_other_machines_are_not_let_in_by_default(
    settings: dict[str, Any], address: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load(GatewaySettings, **settings)
    assert str(refused.value).startswith(f"other machines reach {address}, and clients need")
    assert "allow_anonymous = true" in str(refused.value)
    assert "hidden" not in str(refused.value)
    assert load(GatewaySettings, **settings, allow_anonymous=True)
    with pytest.raises(SettingsError, match="and all who log in may do everything: set rights_fil"):
        load(GatewaySettings, **settings, credentials_file="users")
    for written in ({"rights_file": "rights.toml"}, {"allow_everything": True}):
        assert load(GatewaySettings, **settings, credentials_file="users", **written)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"host": "127.3.2.1"},
        {"host": "::1"},
        {"host": "localhost"},
        {"listeners": [{"kind": "unix", "file": "mqtt.sock"}]},
        {
            "listeners": [
                {
                    "kind": "tls",
                    "host": "0.0.0.0",
                    "client_certificates": "required",
                    "ca_certificates": "ca.pem",
                    **TLS,
                }
            ]
        },
    ],
)
def test_what_this_machine_alone_reaches_asks_nobody(settings: dict[str, Any]) -> None:
    assert load(GatewaySettings, **settings)


def test_secrets_of_a_listener_are_not_in_what_is_wrong_with_it() -> None:
    listener = {"kind": "tls", "client_certificates": "required", "key_password": "hidden", **TLS}
    with pytest.raises(SettingsError, match="ca_certificates is missing") as refused:
        load(GatewaySettings, listeners=[listener])
    assert "hidden" not in str(refused.value)
