"""haproxy.cfg, and the commands that change a proxy; HAProxy itself checks the text."""

from pathlib import Path
from typing import Any

import pytest
import trustme

from ingest.balancer.haproxy.commands import (
    ServerSlot,
    commands,
    is_as_wanted,
    missing_slots,
    parse_map,
    parse_servers,
    sessions_of,
    wanted_servers,
)
from ingest.balancer.haproxy.configuration import (
    Frontend,
    Kind,
    Proxy,
    ProxyLayout,
    maps_of,
    render,
    render_map,
)
from ingest.balancer.placement import STRATEGIES, Strategy
from ingest.balancer.settings import BalancerSettings
from ingest.balancer.snapshot import PlacedNode, Snapshot
from mqlake.errors import InvalidRecord
from tests.ingest.balancer.harness import Haproxy

pytestmark = pytest.mark.programs

SNAPSHOT = Snapshot(
    (
        PlacedNode("a", "10.0.0.1", (("mqtt", 1883), ("ws", 8083)), 70, True, 1),
        PlacedNode("b", "2001:db8::1", (("mqtt", 1883),), 13, False, 2),
    ),
    (1, 2, 1, 1),
    (("00AB", 2), ("01CD", 1)),
)
FRONTEND = Frontend("mqtt", "tcp", "*:1883")


def layout(
    strategy: Strategy = "weighted_cpu", *frontends: Frontend, peer: str = ""
) -> ProxyLayout:
    proxies = (Proxy("one", "/run/one.sock", "/run/one.map", "/run/own.map", peer),)
    return ProxyLayout(strategy, frontends or (FRONTEND,), proxies, "default", 3, 4, 100)


@pytest.mark.parametrize("peers", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_haproxy_accepts_every_kind_of_frontend(
    strategy: Strategy, peers: bool, haproxy: str, tmp_path: Path
) -> None:
    pem = tmp_path / "server.pem"
    trustme.CA().issue_cert("a.test").private_key_and_cert_chain_pem.write_to_path(str(pem))
    kinds: list[tuple[Kind, bool]] = [
        ("tcp", False),
        ("tls", True),
        ("tls_passthrough", False),
        ("websocket", False),
        ("websocket", True),
    ]
    frontends = [
        {
            "name": f"front-{number}",
            "kind": kind,
            "bind": f"*:{20_000 + number}",
            "certificate": str(pem) if has_certificate else None,
            "send_proxy": bool(number % 2),
            "accept_proxy": not number % 2,
            "sticky_by_source": number > 1,
            "tenants": {"a.test": "acme", "b.test": "other"},
        }
        for number, (kind, has_certificate) in enumerate(kinds)
    ]
    proxy = Haproxy(haproxy, tmp_path)
    given: dict[str, Any] = {
        "strategy": strategy,
        "proxies": [proxy.settings(peer="127.0.0.1:20100" if peers else "")],
        "frontends": frontends,
    }
    settings = BalancerSettings(**given)
    proxy.write(settings)
    assert proxy.check() == ""


def test_servers_begin_as_the_snapshot_has_them() -> None:
    one = layout().proxies[0]
    text = render(layout(), one, SNAPSHOT)
    options = "check inter 2s fall 3 rise 1"
    assert f"server s1 10.0.0.1:1883 id 1 weight 70 {options}\n" in text
    assert f"server s2 ipv6@2001:db8::1:1883 id 2 weight 13 {options} disabled\n" in text
    assert f"server s3 127.0.0.1:1 id 3 weight 1 {options} disabled\n" in text


def test_maps_have_the_slot_of_each_bucket_and_talker() -> None:
    maps = maps_of(layout("predicted"), layout().proxies[0], SNAPSHOT)
    assert {file: render_map(entries) for file, entries in maps.items()} == {
        "/run/one.map": "0 s1\n1 s2\n2 s1\n3 s1\n",
        "/run/own.map": "00AB s2\n01CD s1\n",
    }


def test_there_are_maps_only_where_they_are_asked() -> None:
    proxy = layout().proxies[0]
    web = Frontend("web", "websocket", "*:80")
    assert maps_of(layout("weighted_cpu"), proxy, SNAPSHOT) == {}
    assert maps_of(layout("predicted", web), proxy, SNAPSHOT) == {}
    assert maps_of(layout("predicted"), proxy, Snapshot()) == {}
    assert ".map" not in render(layout("weighted_cpu"), proxy, SNAPSHOT)
    assert ".map" not in render(layout("predicted", web), proxy, SNAPSHOT)


def test_names_in_stick_tables_are_not_cut_at_32_characters() -> None:
    text = render(layout("round_robin"), layout().proxies[0], SNAPSHOT)
    assert "stick-table type string len 128 " in text
    assert "stick-table" not in render(layout("predicted"), layout().proxies[0], SNAPSHOT)


def test_a_frontend_leads_to_nodes_that_have_its_port() -> None:
    web = layout("weighted_cpu", Frontend("web", "websocket", "*:80"))
    assert wanted_servers(web, SNAPSHOT) == {
        ("nodes_web", 1): ServerSlot("10.0.0.1", 8083, 70, is_ready=True)
    }
    fixed = layout("weighted_cpu", Frontend("web", "websocket", "*:80", node_port=9))
    assert wanted_servers(fixed, SNAPSHOT)["nodes_web", 2].port == 9


def test_only_what_differs_is_changed() -> None:
    wanted = wanted_servers(layout(), SNAPSHOT)
    found = {
        ("nodes_mqtt", slot): ServerSlot("127.0.0.1", 1, 1, is_ready=False) for slot in (1, 2, 3)
    }
    assert list(commands(layout(), wanted, found)) == [
        "set server nodes_mqtt/s1 addr 10.0.0.1 port 1883",
        "set server nodes_mqtt/s1 weight 70",
        "set server nodes_mqtt/s1 state ready",
        "set server nodes_mqtt/s2 addr 2001:db8::1 port 1883",
        "set server nodes_mqtt/s2 weight 13",
    ]
    assert not is_as_wanted(wanted, found)
    found |= wanted
    assert not list(commands(layout(), wanted, found))
    assert is_as_wanted(wanted, found)


def test_a_server_moves_while_it_takes_no_clients_and_forgets_its_own() -> None:
    wanted = wanted_servers(layout(), SNAPSHOT)
    found = wanted | {
        ("nodes_mqtt", 1): ServerSlot("10.0.0.9", 1883, 70, is_ready=True),
        ("nodes_mqtt", 3): ServerSlot("10.0.0.8", 1883, 70, is_ready=True),
    }
    assert list(commands(layout(), wanted, found)) == [
        "set server nodes_mqtt/s1 state maint",
        "set server nodes_mqtt/s1 addr 10.0.0.1 port 1883",
        "clear table nodes_mqtt data.server_id eq 1",
        "set server nodes_mqtt/s1 state ready",
        "set server nodes_mqtt/s3 state maint",
    ]


def test_what_a_configuration_lacks_is_named() -> None:
    wanted = wanted_servers(layout(), SNAPSHOT)
    server = ServerSlot("127.0.0.1", 1, 1, is_ready=False)
    assert missing_slots(layout(), wanted, {("nodes_mqtt", 1): server}) == ["nodes_mqtt/s2"]
    assert "nodes_mqtt" in missing_slots(layout(), wanted, {})


@pytest.mark.parametrize("text", ["", "Unknown command", "1\n# be_name srv_name\nx s1\n"])
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord):
        parse_servers(text)


def test_answers_are_read() -> None:
    assert parse_map("0x55 0 s1\n0x56 17 s22\n\n") == {"0": "s1", "17": "s22"}
    with pytest.raises(InvalidRecord, match="Unknown"):
        parse_map("Unknown map identifier.\n")
    line = "{}: proto=tcpv4 src=127.0.0.1:5 fe=mqtt be=nodes_mqtt srv={} ts=00 age=1s\n"
    text = line.format("0x1", "s1") + line.format("0x2", "s2") + line.format("0x3", "s1")
    assert sessions_of(text, {"nodes_mqtt/s1"}) == ["0x1", "0x3"]
