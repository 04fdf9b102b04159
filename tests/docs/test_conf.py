"""The files in `conf/` show every setting with its default."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from api.settings import ApiSettings
from ingest.balancer.settings import (
    BalancerSettings,
    DnsSettings,
    FrontendSettings,
    NodeSettings,
    ProxySettings,
)
from ingest.federation.settings import (
    BrokerSettings,
    FederationSettings,
    ListenSettings,
    NeighborSettings,
    OverlaySettings,
    PrefixSettings,
)
from ingest.gateway.listeners.settings import (
    SecureWebSocketListener,
    TcpListener,
    TlsListener,
    UnixListener,
    WebSocketListener,
)
from ingest.gateway.settings import GatewaySettings
from mqlake.local.settings import LocalSettings
from mqlake.settings import LogSettings, ProcessSettings
from rules.runner.settings import (
    HttpSettings,
    KafkaConnection,
    PostgresConnection,
    RulesSettings,
    SecretSettings,
)
from streaming.query.settings import QuerySettings
from streaming.settings import StreamingSettings

CONF = Path(__file__).parents[2] / "conf"

SHOWN_BY_EXAMPLE = {
    "allow_anonymous",
    "authenticate_by",
    "authenticators",
    "bans_file",
    "connect_token",
    "connections",
    "cores",
    "credentials_file",
    "discovery",
    "frontends",
    "heartbeat_file",
    "history",
    "host",
    "http",
    "lake_dir",
    "listen",
    "listeners",
    "log_dir",
    "log_file",
    "log_max_bytes",
    "log_port",
    "log_retention_hours",
    "log_security_file",
    "max_log_bytes",
    "neighbors",
    "nodes",
    "oidc",
    "overlay",
    "predicted",
    "prefixes",
    "probe",
    "proxies",
    "rights_file",
    "rules_key",
    "secrets",
    "spark",
    "state_dir",
    "store_dir",
}
"""No default that could be written down."""

FILES = pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gateway", GatewaySettings),
        ("streaming", StreamingSettings),
        ("query", QuerySettings),
        ("api", ApiSettings),
        ("rules", RulesSettings),
        ("balancer", BalancerSettings),
        ("local", LocalSettings),
        ("federation", FederationSettings),
    ],
)


def uncommented(name: str) -> dict[str, object]:
    """Read a file as if every key in it were set."""
    lines = (CONF / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    pattern = re.compile(r"#? ?([a-z0-9_]+ = .*|\[.*)")
    settings = [found[1] for line in lines if (found := pattern.match(line))]
    return tomllib.loads("\n".join(settings))


LISTENER_KINDS = (
    TcpListener,
    TlsListener,
    WebSocketListener,
    SecureWebSocketListener,
    UnixListener,
)


@FILES
def test_file_as_it_is_changes_nothing(name: str, settings: type[ProcessSettings]) -> None:
    shipped = tomllib.loads((CONF / f"{name}.toml").read_text(encoding="utf-8"))
    assert all(table == {} for table in shipped.values())


@FILES
def test_file_shows_every_key_with_its_default(name: str, settings: type[ProcessSettings]) -> None:
    shown = uncommented(name)
    assert set(shown) >= set(settings.model_fields) - SHOWN_BY_EXAMPLE
    assert set(shown) <= set(settings.model_fields)
    for key, value in shown.items():
        default = settings.model_fields[key].default
        if key in SHOWN_BY_EXAMPLE or default is None:
            continue
        if isinstance(default, BaseModel):
            default = default.model_dump()
            assert isinstance(value, dict)
            # What has no default is shown by an example.
            value = {name: default[name] and one for name, one in value.items()}
        elif isinstance(default, tuple):
            default = list(default)
        elif isinstance(default, Path):
            default = str(default)
        assert value == default, f"{name}.toml: {key}"


def test_gateway_file_shows_every_key_of_every_kind_of_listener() -> None:
    tables = uncommented("gateway")["listeners"]
    assert isinstance(tables, list)
    shown = {table["kind"]: table for table in tables}
    assert len(shown) == len(tables) == len(LISTENER_KINDS)
    common = set(shown["tcp"])
    required = {"port", "certificate", "key", "file"}  # shown by example
    optional = {"name", "max_connections", "key_password", "ca_certificates"}
    with_certificates = {"revoked_certificates"}  # only where clients show some
    for settings in LISTENER_KINDS:
        kind = settings.model_fields["kind"].default
        given = {key: one for key, one in shown[kind].items() if key not in with_certificates}
        read = settings.model_validate(given)
        inherited = common if kind != "wss" else {*common, *shown["tls"], *shown["ws"]}
        assert set(settings.model_fields) <= {*shown[kind], *inherited}, kind
        for key in set(given) - required - optional:
            default = settings.model_fields[key].default
            assert getattr(read, key) == default, f"{kind}: {key}"


def test_rules_file_shows_every_key_of_connections_and_http() -> None:
    shown = uncommented("rules")
    http = shown["http"]
    assert isinstance(http, dict)
    assert HttpSettings.model_validate(http | {"ca_certificates": None}) == HttpSettings()
    assert set(http) == set(HttpSettings.model_fields)
    tables = shown["connections"]
    assert isinstance(tables, dict)
    for table, settings in (
        (tables["warehouse"], PostgresConnection),
        (tables["analytics"], KafkaConnection),
    ):
        assert set(table) == set(settings.model_fields)
        for key, field in settings.model_fields.items():
            by_example = "password" in key or key == "ca_certificates" or field.is_required()
            shown_value = tuple(table[key]) if key == "tenants" else table[key]
            assert by_example or shown_value == field.default, key
    secrets = shown["secrets"]
    assert isinstance(secrets, dict)
    assert set(secrets["hook"]) == set(SecretSettings.model_fields)
    assert SecretSettings.model_validate(secrets["hook"] | {"value": ""})


def test_federation_file_shows_every_key_of_brokers_and_prefixes() -> None:
    shown = uncommented("federation")
    neighbours, prefixes = shown["neighbors"], shown["prefixes"]
    assert isinstance(neighbours, list)
    assert isinstance(prefixes, list)
    host = BrokerSettings.model_validate(shown["host"])
    assert set(BrokerSettings.model_fields) == host.model_fields_set
    assert NeighborSettings.model_validate(neighbours[0]).is_secure
    overlay = OverlaySettings.model_validate(shown["overlay"])
    assert set(OverlaySettings.model_fields) == overlay.model_fields_set
    assert overlay.finds
    defaults = OverlaySettings()
    for key in ("least_links", "most_links", "allow_uris", "allow_sites", "max_sites"):
        assert getattr(overlay, key) == getattr(defaults, key), key
    assert set(shown["listen"]) == set(ListenSettings.model_fields)  # type: ignore[call-overload]
    log = LogSettings.model_validate(shown["log"])
    assert set(LogSettings.model_fields) == log.model_fields_set
    assert log.bootstrap_servers == LogSettings().bootstrap_servers
    assert PrefixSettings.model_validate(prefixes[0]).federated == "federated/plant-a/"


def test_balancer_file_shows_every_key_of_its_tables() -> None:
    shown = uncommented("balancer")
    defaults = BalancerSettings()
    by_example = {"username", "password", "loads_file", "data_dir", "dns"}
    for group in ("discovery", "probe", "predicted", "history"):
        table, settings = shown[group], getattr(defaults, group)
        assert isinstance(table, dict)
        assert set(table) == set(type(settings).model_fields), group
        for key in set(table) - by_example:
            value = getattr(settings, key)
            assert table[key] == (list(value) if isinstance(value, tuple) else value), key
    discovery = shown["discovery"]
    assert isinstance(discovery, dict)
    for table, kind in (
        (discovery["dns"], DnsSettings),
        (shown["nodes"], NodeSettings),
        (shown["proxies"], ProxySettings),
        (shown["frontends"], FrontendSettings),
    ):
        assert isinstance(table, list)
        assert set(table[0]) == set(kind.model_fields)
        for key, field in kind.model_fields.items():
            if (
                key not in ("map_file", "talkers_file", "tenants")
                and not field.is_required()
                and field.default
            ):
                assert table[0][key] == field.default, key
