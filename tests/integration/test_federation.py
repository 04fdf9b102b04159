"""`bin/mqlake up --federation`: two systems, each with its own log, one topic space."""

import json
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from click.testing import CliRunner
from paho.mqtt.enums import CallbackAPIVersion

from mqlake.api_client import ApiClient
from mqlake.cli.federation import command
from mqlake.errors import OperationalError
from mqlake.local.ports import free_ports
from mqlake.local.testing import LocalSystem, await_condition, running_system

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]

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
        environment = {"MQLAKE_GATEWAY_SITE": f"site-{site}", "MQLAKE_LOCAL_LOG_PARTITIONS": "2"}
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


def neighbour_is_there(system: LocalSystem) -> bool:
    return bool(link_of(system)["there"])


def link_of(system: LocalSystem) -> dict[str, Any]:
    (link,) = ApiClient(system.data_dir).get("/federation")["links"]
    found: dict[str, Any] = link
    return found


def is_sent(system: LocalSystem) -> bool:
    """Tell whether the neighbour is there and has said that somebody wants something."""
    try:
        link = link_of(system)
    except OperationalError:  # says nothing yet
        return False
    return bool(link["there"] and link["wants"])


def test_a_subscriber_gets_what_is_published_at_the_other_site_whatever_is_killed(
    sites: tuple[LocalSystem, LocalSystem],
) -> None:
    a, b = sites
    publisher, subscriber = Client(a, "publisher"), Client(b, "subscriber")
    subscriber.subscribe("plant/#")
    await_condition(lambda: is_sent(a), "the first site knows that the second one wants it")
    for number in range(MESSAGES):
        publisher.publish("plant/line", b"%d" % number)
        if number == MESSAGES // 4:
            b.kill("federation")
        if number == MESSAGES // 2:
            a.kill("federation")
    expected = [b"%d" % number for number in range(MESSAGES)]
    await_condition(lambda: subscriber.received[-1:] == expected[-1:], "the last message is there")
    assert subscriber.received == expected
    rows: list[Any] = []

    def all_are_in_history() -> bool:
        query = "SELECT count(*), count(DISTINCT id), min(origin), max(origin) FROM messages"
        shown = b.run("sql", "--format", "json", f"{query} WHERE topic = 'plant/line'")
        rows[:] = json.loads(shown.stdout or "[]")
        return bool(rows) and MESSAGES in rows[0].values()

    await_condition(all_are_in_history, "the history has all")
    assert [*rows[0].values()] == [MESSAGES, MESSAGES, "site-1/gateway-1", "site-1/gateway-1"]
    publisher.close()
    subscriber.close()


def test_a_will_is_published_at_its_site_and_reaches_the_other(
    sites: tuple[LocalSystem, LocalSystem],
) -> None:
    a, b = sites
    heir = Client(b, "heir")
    heir.subscribe("plant/wills/+")
    await_condition(
        lambda: is_sent(a) and "plant/wills/+" in link_of(a)["carries"], "the heir is known"
    )
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
    heir.close()


def test_what_is_going_on_is_shown(sites: tuple[LocalSystem, LocalSystem]) -> None:
    for system in sites:
        await_condition(lambda: neighbour_is_there(system), "the neighbour is there")  # noqa: B023
        shown = CliRunner().invoke(command, ["status", "--data-dir", str(system.data_dir)])
        assert shown.exit_code == 0, shown.output
        assert "1 of 1 neighbours there" in shown.output
        doctor = json.loads(system.run("doctor", "--json").stdout)
        mine = [one for one in doctor["findings"] if one["check"] == "federation"]
        assert [one["level"] for one in mine] == ["ok"], mine
