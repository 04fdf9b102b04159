"""What `up --balanced` starts; real HAProxy reads what is written for it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ingest.balancer.settings import BalancerSettings
from ingest.gateway.settings.gateway import GatewaySettings
from launcher.planning.balancing import (
    Balancing,
    ask_haproxy,
    find_haproxy,
    plan_balancing,
    proxied_listeners,
)
from launcher.planning.listeners import reachable_addresses
from launcher.settings import LocalSettings
from mqlake.errors import OperationalError
from mqlake.settings import load

pytestmark = pytest.mark.programs


def plan(config: Path | None = None, gateway: dict[str, Any] | None = None) -> Balancing:
    local = LocalSettings(session_shards=8)
    return plan_balancing(config, local, GatewaySettings(**(gateway or {})), 1883, 8083)


def test_haproxy_accepts_what_is_written_for_it(tmp_path: Path) -> None:
    balancing = plan()
    balancing.write_files(tmp_path)
    program, *rest = balancing.program_arguments()
    done = subprocess.run(
        [program, "-c", *rest], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_process_gets_the_settings_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "balancer.toml"
    config.write_text(
        'strategy = "weighted_cpu"\n[discovery]\ndns_servers = ["10.0.0.1"]\n'
        '[[frontends]]\nname = "tls"\nkind = "tls_passthrough"\nbind = "*:8883"\n'
    )
    balancing = plan(config)
    for name, value in balancing.environment().items():
        monkeypatch.setenv(name, value)
    loaded = load(BalancerSettings, config)
    assert loaded.model_dump() == balancing.settings.model_dump()
    assert [one.name for one in loaded.frontends] == ["mqtt", "websocket", "tls"]
    assert loaded.strategy == "weighted_cpu"
    assert loaded.discovery.gateways
    assert loaded.discovery.dns_servers == ("10.0.0.1",)
    assert loaded.predicted.session_shards == 8
    assert loaded.predicted.loads_file == Path("balancer/loads.csv")


def test_a_frontend_of_the_file_takes_the_place_of_its_name(tmp_path: Path) -> None:
    config = tmp_path / "balancer.toml"
    config.write_text('[[frontends]]\nname = "mqtt"\nbind = "10.0.0.1:1883"\n')
    found = plan(config, {"allow_anonymous": True})
    assert [one.bind for one in found.settings.frontends] == [
        "127.0.0.1:8083",
        "10.0.0.1:1883",
    ]


@pytest.mark.parametrize("bind", ["*:1883", "10.0.0.1:1883", ":::1883"])
def test_strangers_are_let_in_knowingly(tmp_path: Path, bind: str) -> None:
    config = tmp_path / "balancer.toml"
    config.write_text(f'[[frontends]]\nname = "mqtt"\nbind = "{bind}"\n')
    with pytest.raises(OperationalError, match="other machines reach the frontend mqtt"):
        plan(config)
    users = {"credentials_file": tmp_path / "users"}
    with pytest.raises(OperationalError, match="all who log in may do everything"):
        plan(config, users)
    assert plan(config, {**users, "rights_file": tmp_path / "rights.toml"})
    assert plan(config, {**users, "allow_everything": True})
    config.write_text('[[frontends]]\nname = "mqtt"\nbind = "127.0.0.1:1883"\n')
    assert plan(config)


def test_ports_are_checked_with_the_option_that_changes_them() -> None:
    wanted = plan(gateway={"host": "0.0.0.0", "allow_anonymous": True}).wanted_ports()
    assert [(one.host, one.port, one.option) for one in wanted] == [
        ("0.0.0.0", 1883, "--mqtt-port"),
        ("0.0.0.0", 8083, "--websocket-port"),
    ]


@pytest.mark.parametrize(
    ("gateway", "reference"),
    [
        ({}, "127.0.0.1:1883"),
        ({"host": "::1"}, "[::1]:1883"),
        ({"host": "0.0.0.0", "allow_anonymous": True}, ""),
        (
            {"host": "0.0.0.0", "allow_anonymous": True, "advertised_host": "mqtt.example.org"},
            "mqtt.example.org:1883",
        ),
        ({"server_reference": "elsewhere:1"}, "elsewhere:1"),
    ],
)
def test_clients_that_are_sent_away_are_sent_to_the_balancer(
    gateway: dict[str, Any], reference: str
) -> None:
    assert plan(gateway=gateway).server_reference == reference


def test_entrances_are_reached_from_this_machine() -> None:
    assert plan(gateway={"host": "::1"}).entrances == ("mqtt://[::1]:1883", "ws://[::1]:8083/mqtt")


def test_haproxy_comes_in_by_listeners_of_this_machine_that_say_so() -> None:
    assert reachable_addresses(proxied_listeners((5, 6))) == (
        "mqtt+proxy://127.0.0.1:5",
        "ws+proxy://127.0.0.1:6/mqtt",
    )


def test_a_machine_without_haproxy_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.planning.balancing._SEARCHED", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OperationalError, match="apt install haproxy"):
        find_haproxy()


@pytest.mark.parametrize("said", ["HAProxy version 2.4.22 2023", "nonsense"])
def test_an_old_haproxy_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    program = tmp_path / "haproxy"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(OperationalError, match=r"needs 2\.6 or later"):
        find_haproxy()


def test_a_haproxy_that_is_not_there_has_no_connections(tmp_path: Path) -> None:
    assert ask_haproxy(tmp_path / "no.sock") is None


def test_state_is_what_haproxy_begins_with(tmp_path: Path) -> None:
    folder = tmp_path / "balancer"
    folder.mkdir()
    node = {
        "name": "gateway-1",
        "address": "127.0.0.1",
        "ports": [["mqtt", 1884], ["mqtt+proxy", 20_001], ["ws+proxy", 20_002]],
        "weight": 70,
        "takes_clients": True,
        "slot": 1,
    }
    state = {"snapshot": {"nodes": [node], "buckets": []}, "draining": []}
    (folder / "state.json").write_text(json.dumps(state))
    plan().write_files(tmp_path)
    text = (folder / "haproxy.cfg").read_text()
    assert "server s1 127.0.0.1:20001 id 1 weight 70 " in text
    assert "server s1 127.0.0.1:20002 id 1 weight 70 " in text
    assert "127.0.0.1:1884" not in text
