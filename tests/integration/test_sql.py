"""`bin/mqlake sql` against a running system."""

import asyncio
import json
from base64 import b64decode
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from api.relations.views import view_columns
from ingest.balancer.history import BalancerHistory
from ingest.balancer.settings import HistorySettings
from launcher.testing.systems import LocalSystem, await_condition
from mqlake.clock import SystemClock
from mqlake.tables.catalogue import MESSAGES

pytestmark = pytest.mark.system

WHERE = "WHERE topic LIKE 'sql/%' ORDER BY topic"


@pytest.fixture(scope="module")
def rows(system: LocalSystem) -> LocalSystem:
    """Two messages with everything a message can have, in the history."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "sql-test", protocol=mqtt.MQTTv5)
    client.username_pw_set("alice")
    client.connect("127.0.0.1", system.mqtt_port)
    client.loop_start()
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("unit", "°C"), ("unit", "again")]
    properties.CorrelationData = b"\x00\x01"
    client.publish("sql/a", b"21.5", 1, properties=properties).wait_for_publish(30)
    client.publish("sql/b", b"\xff\x00", 2).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()

    def there() -> bool:
        found = system.run("sql", f"SELECT topic FROM messages {WHERE}", "--format", "json")
        return len(json.loads(found.stdout or "[]")) == 2

    await_condition(there, "both rows")
    return system


def test_json_holds_every_column_as_it_was_published(rows: LocalSystem) -> None:
    result = rows.run("sql", f"SELECT * FROM messages {WHERE}", "--format", "json")
    first, second = json.loads(result.stdout)
    assert list(first) == [column.name for column in view_columns(MESSAGES)]
    assert len(first["id"]) == 32
    assert first["id"] < second["id"]
    assert (first["tenant"], first["topic"]) == ("default", "sql/a")
    assert (first["payload"], first["payload_text"]) == (21.5, "21.5")
    assert b64decode(first["payload_bytes"]) == b"21.5"
    assert (first["qos"], first["retain"], first["dup"]) == (1, False, False)
    assert (first["client_id"], first["username"]) == ("sql-test", "alice")
    assert (first["protocol_level"], first["origin"]) == (5, "local/gateway-1")
    assert json.loads(first["properties"]) == {
        "correlation_data": {"base64": "AAE="},
        "user_property": [["unit", "°C"], ["unit", "again"]],
    }
    assert (second["qos"], second["payload"], second["properties"]) == (2, None, None)
    assert b64decode(second["payload_bytes"]) == b"\xff\x00"


@pytest.mark.campaign("tests/ingest/balancer/test_loads.py reads such lines")
def test_the_balancer_gets_its_rates_and_subscriptions(rows: LocalSystem, tmp_path: Path) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "sql-hearer", clean_session=True)
    client.connect("127.0.0.1", rows.mqtt_port)
    client.loop_start()
    client.subscribe([("sql/+", 0), ("sql/left", 0)])
    client.unsubscribe("sql/left")
    file = tmp_path / "loads.csv"
    settings = HistorySettings(data_dir=rows.data_dir, every_seconds=77)
    history = BalancerHistory(settings, ["default"], file, SystemClock())

    def there() -> bool:
        assert asyncio.run(history.make()) == 77, history.state.problem
        lines = file.read_text(encoding="utf-8").splitlines()
        return "default,sql-hearer,,sql/+" in lines and "default,sql-hearer,,sql/left" not in lines

    await_condition(there, "what the client subscribed to, though its session is not kept")
    lines = file.read_text(encoding="utf-8").splitlines()
    assert f"default,sql-test,{2 / 604_800:.6g}," in lines
    assert f"default,,{1 / 604_800:.6g},sql/a" in lines
    client.disconnect()
    client.loop_stop()


def test_a_client_that_hangs_up_ends_its_query(rows: LocalSystem) -> None:
    """The next query gets one of the two slots, however long the first would have taken."""
    url = urlsplit(rows.state().api_url)
    assert url.port is not None
    slow = "SELECT count(*) FROM range(100000000000) WHERE pmod(hash(id), 7) = 8"
    for _ in range(3):
        connection = HTTPConnection("127.0.0.1", url.port)
        token = (rows.data_dir / "api-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        body = json.dumps({"query": slow})
        connection.request("POST", "/api/v1/sql", body, headers)
        connection.close()
    done = rows.run("sql", "SELECT 1 AS one", "--format", "csv")
    assert done.stdout.split() == ["one", "1"]
