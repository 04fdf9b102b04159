"""The state tables of a running system, from records written to the log as gateways write them."""

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from launcher.testing.systems import LocalSystem, await_condition
from mqlake.log.admin import partition_count
from mqlake.log.security import client_config
from mqlake.records.messages import EVENTS, INBOUND, SESSIONS, Message, message_headers, message_key

pytestmark = [pytest.mark.promise, pytest.mark.system, pytest.mark.timeout(700)]

TENANT = "state-test"
NOW_MS = 1_700_000_000_000


class Writer:
    """Writes what gateways would."""

    def __init__(self, servers: str) -> None:
        self._partitions = partition_count(servers, INBOUND, 30.0)
        self._producer = Producer({**client_config(servers), "enable.idempotence": True})
        self.events = 0

    def publish(self, topic: str, payload: str, *, retain: bool = True) -> None:
        message = Message(
            TENANT,
            topic,
            payload.encode(),
            1,
            retain,
            bytes(16),
            "publisher",
            NOW_MS,
            origin="local/gateway-1",
        )
        headers: dict[str, str | bytes | None] = dict(message_headers(message))
        key = message_key(TENANT, topic)
        partition = sum(key) % self._partitions
        self._producer.produce(INBOUND, message.payload, key, partition, headers=headers)

    def tell(self, event: str, **fields: Any) -> None:
        record = {"v": 1, "event": event, "ts": NOW_MS, "tenant": TENANT, "gateway": "gateway-1"}
        client_id = f"client-{self.events}"
        value = json.dumps(record | {"client_id": client_id} | fields)
        self._producer.produce(EVENTS, value.encode(), f"{TENANT}/{client_id}".encode())
        self.events += 1

    def say(self, kind: str, client_id: str, value: dict[str, Any] | None) -> None:
        key = f"{kind}/{TENANT}/{client_id}".encode()
        encoded = None if value is None else json.dumps({"v": 1} | value).encode()
        self._producer.produce(SESSIONS, encoded, key)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0


@pytest.fixture
def writer(system: LocalSystem) -> Writer:
    return Writer(system.state().bootstrap_servers)


def rows(system: LocalSystem, query: str) -> list[dict[str, Any]]:
    result = system.run("sql", query, "--tenant", TENANT, "--format", "json")
    assert result.returncode == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def retained(system: LocalSystem) -> dict[str, str]:
    query = f"SELECT topic, payload_text FROM retained WHERE tenant = '{TENANT}'"
    return {row["topic"]: row["payload_text"] for row in rows(system, query)}


def test_what_gateways_write_is_in_the_tables(system: LocalSystem, writer: Writer) -> None:
    writer.publish("room/1", "21")
    writer.publish("room/1", "22")
    writer.publish("room/2", "23")
    writer.publish("room/2", "")
    writer.publish("room/3", "24", retain=False)
    subscription = {"qos": 1, "no_local": True, "retain_as_published": False}
    session = {
        "id": "00000000000000aa",
        "tenant": TENANT,
        "client_id": "c",
        "protocol_level": 5,
        "username": "alice",
        "keep_alive": 60,
        "clean_start": False,
        "expiry": 3600,
        "gateway": "gateway-1",
        "incarnation": "i",
        "connected": False,
        "connected_at": NOW_MS,
        "disconnected_at": NOW_MS + 1000,
        "reason": "keep alive",
        "will_at": None,
        "will": {"topic": "gone", "payload": "", "qos": 0, "retain": False, "delay": 0},
        "subscriptions": [
            subscription | {"filter": "a/#", "retain_handling": 2, "identifier": 5, "starts": [0]},
            subscription | {"filter": "b", "retain_handling": 0, "identifier": None},
        ],
    }
    progress = {"id": session["id"], "cursor": [7, 8, 9, 10], "settled": False}
    writer.say("s", "c", session)
    writer.say("p", "c", progress | {"out": [[1, 1, 0, 5, 0], [2, 2, 0, 6, 1]], "in": [3]})
    writer.tell("client.disconnected", reason="keep alive")
    writer.tell("message.dropped", reason="queue_full", topic="a", qos=1, count=3)
    writer.flush()
    dropped = f"SELECT * FROM drops WHERE tenant = '{TENANT}'"
    await_condition(
        lambda: bool(rows(system, dropped)),
        "the last table of the batch has its row",
    )
    assert retained(system) == {"room/1": "22"}
    (drop,) = rows(system, dropped)
    assert (drop["reason"], drop["topic"], drop["qos"], drop["count"]) == ("queue_full", "a", 1, 3)
    (event,) = rows(system, f"SELECT * FROM events WHERE tenant = '{TENANT}'")
    assert (event["event"], event["reason"]) == ("client.disconnected", "keep alive")
    (row,) = rows(system, f"SELECT * FROM sessions WHERE tenant = '{TENANT}'")
    assert (row["id"], row["client_id"], row["username"]) == ("00000000000000aa", "c", "alice")
    assert (row["connected"], row["reason"], row["expiry"]) == (False, "keep alive", 3600)
    assert (row["keep_alive"], row["clean_start"], row["protocol_level"]) == (60, False, 5)
    assert (row["in_flight_out"], row["in_flight_in"], row["qos2_unacknowledged"]) == (2, 1, 2)
    assert (row["cursor"], row["subscriptions"], row["will_topic"]) == ([7, 8, 9, 10], 2, "gone")
    subscriptions = rows(
        system,
        "SELECT filter, qos, no_local, retain_handling, identifier FROM subscriptions "
        f"WHERE tenant = '{TENANT}' ORDER BY filter",
    )
    assert [tuple(each.values()) for each in subscriptions] == [
        ("a/#", 1, True, 2, 5),
        ("b", 1, True, 0, None),
    ]
