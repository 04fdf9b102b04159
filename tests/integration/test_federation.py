"""`bin/mqlake up --federation`: two systems, each with its own log, one topic space."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from click.testing import CliRunner
from paho.mqtt.enums import CallbackAPIVersion

from cli.processes.federation import command
from launcher.ports import free_ports
from launcher.testing.systems import LocalSystem, await_condition, running_system
from mqlake.api_client import ApiClient
from mqlake.errors import OperationalError
from tests.integration.tables import rows_of
from tests.integration.thrift import NO_STATE_TABLES

pytestmark = [
    pytest.mark.promise,
    pytest.mark.campaign(
        "tests/ingest/federation/brokers/test_service.py kills sites without their systems"
    ),
    pytest.mark.system,
    pytest.mark.timeout(500),
]

SETTINGS = """
filters_in = ["plant/#"]
filters_out = ["plant/#"]
reconnect_max_seconds = 0.5
[host]
id = {site}
[listen]
port = {port}
[[neighbors]]
id = {neighbour}
uri = "mqtt://127.0.0.1:{neighbour_port}"
password = "of the link"
"""
MESSAGES = 200


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalSystem, LocalSystem]]:
    folder = tmp_path_factory.mktemp("sites")
    ports = dict(zip((1, 2), free_ports(2), strict=True))

    def settings(site: int) -> dict[str, Any]:
        neighbour = 3 - site
        path = folder / f"federation-{site}.toml"
        path.write_text(
            SETTINGS.format(
                site=site,
                port=ports[site],
                neighbour=neighbour,
                neighbour_port=ports[neighbour],
            )
        )
        environment = {
            "MQLAKE_GATEWAY_SITE": f"site-{site}",
            "MQLAKE_GATEWAY_SUBACK_SITES_SECONDS": "60",
            "MQLAKE_LOCAL_LOG_PARTITIONS": "2",
            **NO_STATE_TABLES,
        }
        return {"federation": path, "environment": environment}

    with (
        running_system(folder / "a", **settings(1)) as a,
        running_system(folder / "b", **settings(2)) as b,
    ):
        yield a, b
    assert a.left_processes() == b.left_processes() == []


class Client:
    """A client that keeps what it gets and waits until each of its messages is acknowledged."""

    def __init__(self, system: LocalSystem, name: str) -> None:
        self.received: list[bytes] = []
        self.mqtt = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
        self.mqtt.on_message = lambda _client, _data, message: self.received.append(
            bytes(message.payload)
        )
        self.granted: list[Any] = []
        self.mqtt.on_subscribe = lambda _client, _data, _packet_id, codes, _properties: (
            self.granted.extend(codes)
        )
        self.mqtt.connect("127.0.0.1", system.mqtt_port)
        self.mqtt.loop_start()
        await_condition(self.mqtt.is_connected, f"{name} is connected")

    def subscribe(self, topic_filter: str) -> None:
        self.mqtt.subscribe(topic_filter, 1)
        await_condition(lambda: bool(self.granted), "the subscription is granted")

    def publish(self, topic: str, payload: bytes) -> None:
        self.mqtt.publish(topic, payload, 1).wait_for_publish(60)

    def close(self) -> None:
        self.mqtt.disconnect()
        self.mqtt.loop_stop()


Connect = Callable[[LocalSystem, str], Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return what makes clients; they end with the test, or they would disturb the next one."""
    with ExitStack() as clients:

        def make(system: LocalSystem, name: str) -> Client:
            client = Client(system, name)
            clients.callback(client.close)
            return client

        yield make


def neighbour_is_there(system: LocalSystem) -> bool:
    return bool(link_of(system)["there"])


def are_linked(*systems: LocalSystem) -> bool:
    try:
        return all(neighbour_is_there(one) for one in systems)
    except OperationalError:  # says nothing yet
        return False


def link_of(system: LocalSystem) -> dict[str, Any]:
    (link,) = ApiClient(system.data_dir).get("/federation")["links"]
    found: dict[str, Any] = link
    return found


def test_a_subscriber_gets_what_is_published_at_the_other_site_whatever_is_killed(
    sites: tuple[LocalSystem, LocalSystem], connect: Connect
) -> None:
    a, b = sites
    await_condition(lambda: are_linked(*sites), "the neighbours are there")
    publisher, subscriber = connect(a, "publisher"), connect(b, "subscriber")
    subscriber.subscribe("plant/#")  # SUBACK waits for the other site
    for number in range(MESSAGES):
        publisher.publish("plant/line", b"%d" % number)
        if number == MESSAGES // 4:
            b.kill("federation")
        if number == MESSAGES // 2:
            a.kill("federation")
    expected = [b"%d" % number for number in range(MESSAGES)]
    await_condition(lambda: subscriber.received[-1:] == expected[-1:], "the last message is there")
    assert subscriber.received == expected
    query = (
        "SELECT count(*), count(DISTINCT id), min(origin), max(origin) FROM messages"
        " WHERE topic = 'plant/line'"
    )

    def found() -> list[Any]:
        return [value for row in rows_of(b, "messages", query) for value in row]

    await_condition(lambda: found()[:1] == [MESSAGES], "the history has all")
    assert found() == [MESSAGES, MESSAGES, "site-1/gateway-1", "site-1/gateway-1"]


def test_a_will_is_published_at_its_site_and_reaches_the_other(
    sites: tuple[LocalSystem, LocalSystem], connect: Connect
) -> None:
    a, b = sites
    heir = connect(b, "heir")
    heir.subscribe("plant/wills/+")
    doomed = mqtt.Client(CallbackAPIVersion.VERSION2, "doomed", protocol=mqtt.MQTTv5)
    doomed.will_set("plant/wills/doomed", b"gone", 1)
    doomed.connect("127.0.0.1", a.mqtt_port)
    doomed.loop_start()
    await_condition(doomed.is_connected, "it is connected")
    doomed.loop_stop()
    connection = doomed.socket()
    assert connection is not None
    connection.close()
    await_condition(lambda: heir.received == [b"gone"], "its will is at the other site")


def test_a_share_group_is_one_over_both_sites(
    sites: tuple[LocalSystem, LocalSystem], connect: Connect
) -> None:
    a, b = sites
    publisher, far, near = connect(a, "publisher"), connect(b, "far"), connect(a, "near")
    plain = connect(b, "plain")
    plain.subscribe("plant/shared")
    far.subscribe("$share/workers/plant/shared")

    def is_known() -> bool:
        publisher.publish("plant/shared", b"probe")
        return b"probe" in far.received

    await_condition(is_known, "the router of the first site knows of the member at the second")
    first = [b"far %d" % number for number in range(MESSAGES)]
    for payload in first:
        publisher.publish("plant/shared", payload)
    await_condition(lambda: len(of(far, b"far")) >= MESSAGES, "the member has all")
    near.subscribe("$share/workers/plant/shared")
    second = [b"near %d" % number for number in range(MESSAGES)]
    for payload in second:
        publisher.publish("plant/shared", payload)
    await_condition(lambda: len(of(near, b"near")) >= MESSAGES, "the nearer member has all")
    near.close()
    await_condition(is_away(publisher, far), "messages go to the other site again")
    assert sorted(of(far, b"far")) == sorted(first)
    assert of(far, b"near") == of(near, b"far") == []
    assert sorted(of(near, b"near")) == sorted(second)
    await_condition(lambda: len(of(plain, b"near")) >= MESSAGES, "the plain subscriber has all")
    assert of(plain, b"far") == first
    assert of(plain, b"near") == second


def of(client: Client, beginning: bytes) -> list[bytes]:
    return [one for one in client.received if one.startswith(beginning)]


def is_away(publisher: Client, far: Client) -> Callable[[], bool]:
    """Return what publishes until the member at the other site gets something."""

    def look() -> bool:
        publisher.publish("plant/shared", b"gone")
        return b"gone" in far.received

    return look


def test_what_is_going_on_is_shown(sites: tuple[LocalSystem, LocalSystem]) -> None:
    for system in sites:
        await_condition(lambda: neighbour_is_there(system), "the neighbour is there")  # noqa: B023
        shown = CliRunner().invoke(command, ["status", "--data-dir", str(system.data_dir)])
        assert shown.exit_code == 0, shown.output
        assert "1 of 1 neighbours there" in shown.output
        doctor = json.loads(system.run("doctor", "--json").stdout)
        mine = [one for one in doctor["findings"] if one["check"] == "federation"]
        assert {one["level"] for one in mine} == {"ok"}, mine
        assert any("2 sites are on the map" in one["detail"] for one in mine), mine
