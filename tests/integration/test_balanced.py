"""`bin/mqlake up --balanced`: clients use one port; API, dashboard and doctor see the balancer."""

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from playwright.sync_api import expect

from launcher.testing.systems import LocalSystem, await_condition, running_system
from mqlake.api_client import ApiClient
from tests.integration.dashboard.browser import WIDE, open_page, running_browser
from tests.integration.thrift import NO_STATE_TABLES

pytestmark = [
    pytest.mark.campaign("tests/ingest/balancer does the same with HAProxy alone"),
    pytest.mark.system,
    pytest.mark.timeout(700),
]

CLIENTS = 12
"""More than one gateway gets all of by chance, were both as idle."""
MOST_CLIENTS = 20 * CLIENTS
"""A gateway that has much to do gets few, and tests beside this one give it much."""


class Client:
    """A client of 5.0 whose session outlives its connection."""

    def __init__(self, port: int, client_id: str) -> None:
        self.client_id = client_id
        self.received: list[bytes] = []
        self.cut: list[Any] = []
        self.references: list[str | None] = []
        self.mqtt = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        self.mqtt.on_message = lambda _client, _data, message: self.received.append(
            bytes(message.payload)
        )
        self.mqtt.on_disconnect = self._disconnected
        self.granted: list[Any] = []
        self.mqtt.on_subscribe = lambda _client, _data, _packet_id, codes, _properties: (
            self.granted.extend(codes)
        )
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        self.mqtt.connect("127.0.0.1", port, properties=properties, clean_start=False)
        self.mqtt.loop_start()
        await_condition(self.mqtt.is_connected, f"{client_id} is connected")

    def _disconnected(self, _client: Any, _data: Any, _flags: Any, code: Any, more: Any) -> None:
        self.cut.append(code)
        self.references.append(getattr(more, "ServerReference", None))

    def close(self) -> None:
        self.mqtt.disconnect()
        self.mqtt.loop_stop()


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    # A path that is longer than what a Unix socket's may be.
    folder = tmp_path_factory.mktemp("balanced" + "-" * 80)
    environment = NO_STATE_TABLES
    with running_system(
        folder / "data", gateways=2, balanced=True, environment=environment
    ) as system:
        yield system
    assert system.left_processes() == []


@pytest.fixture(scope="module")
def clients(balanced: LocalSystem) -> Iterator[list[Client]]:
    balanced.await_healthy()
    await_condition(
        lambda: [one["takes_clients"] for one in balancer(balanced)["nodes"]] == [True, True],
        "both gateways take clients",
    )
    made: list[Client] = []
    while len(by_gateway(balanced)) < 2 and len(made) < MOST_CLIENTS:
        made += [
            Client(balanced.mqtt_port, f"balanced-{len(made) + number}")
            for number in range(CLIENTS)
        ]
        await_table(balanced, made)
    yield made
    for client in made:
        client.close()


def by_gateway(balanced: LocalSystem) -> Counter[str]:
    found = ApiClient(balanced.data_dir).get("/clients", connected="true", limit=1000)
    return Counter(one["gateway"] for one in found["items"])


def await_table(balanced: LocalSystem, clients: list[Client]) -> None:
    await_condition(
        lambda: by_gateway(balanced).total() == len(clients), "all clients are in the table"
    )


def balancer(balanced: LocalSystem) -> dict[str, Any]:
    found: dict[str, Any] = ApiClient(balanced.data_dir).get("/balancer")
    return found


def test_clients_use_one_port_and_land_on_both_gateways(
    balanced: LocalSystem, clients: list[Client]
) -> None:
    assert set(by_gateway(balanced)) == {"gateway-1", "gateway-2"}
    for client in clients:
        client.mqtt.subscribe("balanced/all", 1)
    # They are at two gateways: the other's subscriptions count once they are acknowledged.
    await_condition(lambda: all(client.granted for client in clients), "all are subscribed")
    clients[0].mqtt.publish("balanced/all", b"to everybody", 1)
    await_condition(
        lambda: all(client.received == [b"to everybody"] for client in clients),
        "everybody has the message",
    )


def test_everything_is_shown(balanced: LocalSystem, clients: list[Client]) -> None:
    status = balanced.status()
    names = [process["name"] for process in status["processes"]]
    assert names[-4:] == ["gateway-1", "gateway-2", "balancer", "haproxy"]
    port = balanced.mqtt_port
    assert status["entrances"][0] == f"mqtt://127.0.0.1:{port}"
    await_condition(  # it is looked at every few seconds
        lambda: f"{len(clients)} connections" in balanced.process("haproxy")["detail"],
        "all connections are shown",
    )
    found = balancer(balanced)
    assert found["healthy"], found["detail"]
    for node in found["nodes"]:
        assert node["takes_clients"]
        assert {"mqtt", "mqtt+proxy", "ws+proxy"} <= set(node["ports"])
        assert isinstance(node["overload_level"], int)
        assert all(factor["healthy"] for factor in node["factors"].values())
    assert [one["version"] for one in found["proxies"]] == [found["version"]]
    await_condition(
        lambda: all(one["cpu_percent"] is not None for one in balancer(balanced)["nodes"]),
        "each gateway has said where its metrics are",
    )
    balanced.await_healthy()  # the lake starts last
    doctor = json.loads(balanced.run("doctor", "--json").stdout)
    mine = [one for one in doctor["findings"] if one["check"] in ("balancer", "ports")]
    assert {one["level"] for one in mine} == {"ok"}, mine
    assert [one for one in doctor["findings"] if one["level"] == "error"] == []
    await_condition(  # it was asked when Spark had just started
        lambda: balancer(balanced)["loads"]["problem"] == "", "the history is asked"
    )


def test_websockets_come_in_by_one_port(balanced: LocalSystem) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "over-ws", transport="websockets")
    client.ws_set_options("/mqtt")
    client.connect("127.0.0.1", balanced.websocket_port)
    client.loop_start()
    await_condition(client.is_connected, "it is connected")
    client.disconnect()
    client.loop_stop()


def test_a_dead_control_plane_changes_nothing(balanced: LocalSystem, clients: list[Client]) -> None:
    version = balancer(balanced)["version"]
    balanced.kill("balancer")
    late = Client(balanced.mqtt_port, "while-it-is-dead")
    late.close()
    balanced.await_healthy()
    assert balancer(balanced)["version"] == version
    assert not any(client.cut for client in clients)


def test_a_drain_from_the_dashboard_moves_clients_and_is_undone(
    balanced: LocalSystem, clients: list[Client]
) -> None:
    balanced.await_healthy()
    with running_browser() as browser:
        context = browser.new_context(viewport=WIDE, base_url=balanced.api_url)
        answer = context.request.post("/api/v1/login", data={"token": balanced.api_token})
        assert answer.ok, answer.text()
        with open_page(context, balanced) as dashboard:
            page = dashboard.page
            dashboard.open("balancer")
            nodes = page.get_by_role("region", name="Nodes")
            row = nodes.get_by_role("row").filter(has_text="gateway-1")
            expect(row).to_contain_text("takes")
            dashboard.keep_picture("balancer")
            row.get_by_role("button", name="Drain gateway-1").click()
            page.get_by_role("dialog").get_by_role("button", name="Drain").click()
            expect(row).to_contain_text("drained")
            await_condition(
                lambda: by_gateway(balanced) == {"gateway-2": len(clients)},
                "all clients have come back at the other gateway",
            )
            moved = [client for client in clients if client.cut]
            assert 0 < len(moved) < len(clients)
            reference = f"127.0.0.1:{balanced.mqtt_port}"
            assert {one for client in moved for one in client.references} == {reference}
            row.get_by_role("button", name="Undo the drain of gateway-1").click()
            expect(row).to_contain_text("takes")
        context.close()
    await_condition(
        lambda: all(one["takes_clients"] for one in balancer(balanced)["nodes"]),
        "both gateways take clients again",
    )


def test_where_a_port_is_taken_it_says_so(balanced: LocalSystem, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other = LocalSystem.in_folder(tmp_path / "data", 2, balanced=True)
        taken.bind(("127.0.0.1", other.mqtt_port))
        taken.listen()
        result = other.run("up", *other.up_arguments())
    assert result.returncode != 0
    assert f"port {other.mqtt_port} for HAProxy (mqtt) is in use" in result.stderr
