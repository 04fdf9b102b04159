"""Rules of a running system, from REST to what a subscriber gets."""

import copy
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from confluent_kafka import Producer
from paho.mqtt.enums import CallbackAPIVersion

from launcher.testing import systems as testing
from launcher.testing.systems import LocalSystem, await_condition
from mqlake.log.security import client_config
from mqlake.records.messages import INBOUND

pytestmark = pytest.mark.system

SQL = "SELECT payload.t AS t, clientid FROM 'rules-api/in' WHERE payload.t > 50"
PUBLISHER = "rules-api-publisher"


class Rest:
    """Asks the API of a system."""

    def __init__(self, system: LocalSystem) -> None:
        self._url = f"{system.api_url}/api/v1"
        self._token = system.api_token

    def as_caller(self, token: str) -> "Rest":
        """Return one that asks with another token."""
        other = copy.copy(self)
        other._token = token
        return other

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
            method=method,
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    data = answer.read()
                    return answer.status, json.loads(data) if data else None
            except urllib.error.HTTPError as error:
                with error:
                    pause = int(error.headers.get("Retry-After", 0))
                    is_soon = error.code == HTTPStatus.SERVICE_UNAVAILABLE and pause > 0
                    if not is_soon or time.monotonic() > deadline:
                        return error.code, json.load(error)
            time.sleep(pause)  # Spark may have to start first

    def get(self, path: str) -> Any:
        status, found = self.ask("GET", path)
        assert status == 200, found
        return found

    def make(self, path: str, rule: dict[str, Any]) -> Any:
        """Make a rule; return it when it is in force, which takes a busy machine a while."""
        status, made = self.ask("POST", path, rule)
        assert status in {201, 202}, made
        where, _, query = path.partition("?")
        own = f"{where}/{made['id']}?{query}"
        await_condition(lambda: self.get(own)["state"] != "starting", "it was looked at")
        found = self.get(own)
        assert found["state"] == "running", found
        return found

    def run(self, path: str, body: dict[str, Any]) -> Any:
        """Run a job to its end; return its result."""
        status, job = self.ask("POST", path, body)
        assert status == 202, job
        await_condition(
            lambda: self.get(f"/jobs/{job['id']}")["state"] not in ("queued", "running"),
            "the job has ended",
        )
        job = self.get(f"/jobs/{job['id']}")
        assert job["state"] == "succeeded", job
        return job["result"]


class Listener:
    """A client that publishes and keeps what it gets."""

    def __init__(self, port: int, place: str = "rules-api") -> None:
        self._place = place
        self.messages: list[tuple[str, Any]] = []
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, PUBLISHER)
        self._client.on_message = self._keep
        subscribed: list[int] = []
        self._client.on_subscribe = lambda _c, _u, mid, _r, _p: subscribed.append(mid)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe(f"{place}/out/#", 1)
        await_condition(lambda: bool(subscribed), "subscribed")

    def _keep(self, _client: mqtt.Client, _user: object, message: mqtt.MQTTMessage) -> None:
        self.messages.append((message.topic, json.loads(message.payload)))

    def publish(self, value: Any) -> None:
        self.publish_bytes(json.dumps(value).encode())

    def publish_bytes(self, payload: bytes) -> None:
        self._client.publish(f"{self._place}/in", payload, 1).wait_for_publish(30)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture(scope="module")
def rest(system: LocalSystem) -> Rest:
    return Rest(system)


@pytest.fixture(scope="module")
def listener(system: LocalSystem) -> Iterator[Listener]:
    found = Listener(system.mqtt_port)
    yield found
    found.close()


def republish(place: str) -> dict[str, Any]:
    return {"function": "republish", "args": {"topic": f"rules-api/out/{place}", "qos": 1}}


def test_a_rule_lives_from_its_making_to_its_end(rest: Rest, listener: Listener) -> None:
    listener.publish({"t": 99, "n": 0})  # before the rule
    rule = {"id": "api-rule", "sql": SQL, "actions": [republish("one")]}
    rest.make("/rules", rule)
    listener.publish({"t": 60})
    listener.publish({"t": 40})
    row = {"t": 60, "clientid": PUBLISHER}
    await_condition(lambda: listener.messages == [("rules-api/out/one", row)], "republished")

    body = {"sql": SQL.replace("> 50", "> 30"), "actions": [republish("two")]}
    status, changed = rest.ask("PUT", "/rules/api-rule", body)
    assert (status, changed["version"], changed["state"]) == (200, 2, "running"), changed
    listener.publish({"t": 41})
    row = {"t": 41, "clientid": PUBLISHER}
    await_condition(lambda: listener.messages[1:] == [("rules-api/out/two", row)], "by version 2")

    assert "-  actions" not in rest.get("/rules/api-rule/versions/1/diff/2")["diff"]
    status, back = rest.ask("POST", "/rules/api-rule/versions/1/rollback")
    assert (status, back["version"], back["state"]) == (200, 3, "running"), back
    listener.publish({"t": 42})
    listener.publish({"t": 70})
    row = {"t": 70, "clientid": PUBLISHER}
    await_condition(lambda: listener.messages[2:] == [("rules-api/out/one", row)], "by version 3")

    def counted() -> bool:
        metrics = rest.get("/rules/api-rule/metrics")
        actions = metrics["actions"][0]["success"] if metrics["actions"] else 0
        return (metrics["matched"], metrics["passed"], metrics["failed"], actions) == (5, 3, 0, 3)

    await_condition(counted, "all is counted")
    status, reset = rest.ask("PUT", "/rules/api-rule/metrics/reset")
    assert (status, reset["matched"]) == (200, 0)

    explained = rest.get("/rules/api-rule/explain")
    assert explained["spans"][-1]["version"] == 3
    assert explained["sources"] == ["mqlake.inbound"]

    status, off = rest.ask("PUT", "/rules/api-rule", {**body, "enable": False})
    assert (status, off["state"]) == (200, "stopped")
    listener.publish({"t": 90})


@pytest.mark.campaign("tests/api/rules and tests/streaming hold it without a system")
def test_a_test_and_a_dry_run_tell_what_live_evaluation_did(rest: Rest, listener: Listener) -> None:
    del listener  # its messages are in the history
    context = {"topic": "rules-api/in", "payload": {"t": 60}, "clientid": "c"}
    status, tried = rest.ask("POST", "/rule_test", {"sql": SQL, "context": context})
    assert (status, tried["outputs"]) == (200, [{"t": 60, "clientid": "c"}])
    context["payload"] = {"t": 40}
    status, tried = rest.ask("POST", "/rule_test", {"sql": SQL, "context": context})
    assert (status, tried["outputs"]) == (200, [])

    await_condition(
        lambda: rest.run("/rules/api-rule/dry_run", {"sql": SQL})["matched"] == 7,
        "the history is written",
    )
    result = rest.run("/rules/api-rule/dry_run", {"sql": SQL})
    assert (result["passed"], result["failed"], result["outputs"]) == (4, 0, 4)
    assert {sample["outputs"][0]["t"] for sample in result["samples"]} == {99, 60, 70, 90}


def write_foreign_records(system: LocalSystem) -> None:
    """End each partition with a record that is no message: the table never has it."""
    servers = system.state().bootstrap_servers
    producer = Producer(client_config(servers))
    partitions = producer.list_topics(INBOUND, timeout=60).topics[INBOUND].partitions
    for partition in partitions:
        producer.produce(INBOUND, key=b"default/rules-api/in", value=b"", partition=partition)
    assert producer.flush(10) == 0


@pytest.mark.campaign("tests/streaming/test_rule_trials.py gives each message once")
def test_a_backfill_and_live_evaluation_take_each_message_once(
    system: LocalSystem, rest: Rest, listener: Listener
) -> None:
    listener.messages.clear()
    sql = "SELECT payload.t AS t FROM 'rules-api/in'"
    made = {"id": "api-backfill", "sql": sql, "actions": [republish("filled")]}
    for number in range(200):
        listener.publish({"t": 1000 + number})
        if number == 100:
            write_foreign_records(system)
            rest.make("/rules", made)
        if number == 150:
            status, job = rest.ask("POST", "/rules/api-backfill/backfill", {})
            assert status == 202, job
    await_condition(
        lambda: rest.get(f"/jobs/{job['id']}")["state"] not in ("queued", "running"),
        "it ends",
    )
    assert rest.get(f"/jobs/{job['id']}")["state"] == "succeeded", rest.get(f"/jobs/{job['id']}")
    wanted = sorted([99, 60, 40, 41, 42, 70, 90, *range(1000, 1200)])
    await_condition(lambda: len(listener.messages) >= len(wanted), "every message")
    assert sorted(row["t"] for _, row in listener.messages) == wanted
    assert rest.ask("DELETE", "/rules/api-backfill")[0] == 204


def run_rules(system: LocalSystem, command: str, *rest: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(testing.PROGRAM), "rules", command, "--data-dir", str(system.data_dir), *rest],
        capture_output=True,
        text=True,
        check=False,
    )


def publish_from(system: LocalSystem, address: str, clients: int, times: int, z: int) -> None:
    """Have clients at an address publish, each so many times."""
    for number in range(clients):
        client = mqtt.Client(CallbackAPIVersion.VERSION2, f"paused-{address}-{number}")
        client.connect("127.0.0.1", system.mqtt_port, bind_address=address)
        client.loop_start()
        sent = [
            client.publish(f"rules-api/paused/{address}-{number}", json.dumps({"z": z}), 1)
            for _ in range(times)
        ]
        for one in sent:
            one.wait_for_publish(30)
        client.disconnect()
        client.loop_stop()


@pytest.mark.campaign("tests/streaming/test_rule_pauses.py decides it")
@pytest.mark.campaign("tests/streaming and tests/rules/runner hold each part of it")
def test_a_rule_that_many_make_fail_is_paused_and_goes_on_from_there(
    system: LocalSystem, rest: Rest, listener: Listener
) -> None:
    listener.messages.clear()
    sql = "SELECT 12 / payload.z AS q FROM 'rules-api/paused/+'"
    made = {"id": "api-paused", "sql": sql, "actions": [republish("resumed")]}
    rest.make("/rules", made)

    def made_of(*values: int) -> bool:
        return [row["q"] for _, row in listener.messages] == [12 / one for one in values]

    publish_from(system, "127.0.0.2", 15, 12, 0)
    publish_from(system, "127.0.0.3", 1, 1, 2)
    await_condition(lambda: made_of(2), "one alone, by many names, takes it from nobody")
    for last in (4, 5, 6):
        publish_from(system, f"127.0.0.{last}", 6, 10, 0)
    await_condition(lambda: rest.get("/rules/api-paused")["state"] == "paused", "it is paused")
    publish_from(system, "127.0.0.3", 1, 1, 3)
    publish_from(system, "127.0.0.3", 1, 1, 4)
    resumed = run_rules(system, "resume", "api-paused", "--from", "pause")
    assert "api-paused: running, version 2" in resumed.stdout, resumed
    publish_from(system, "127.0.0.3", 1, 1, 6)
    await_condition(lambda: len(listener.messages) >= 4, "what was missed, and what comes")
    assert sorted(row["q"] for _, row in listener.messages) == [2, 3, 4, 6]
    explained = rest.get("/rules/api-paused/explain")["spans"]
    assert [one["version"] for one in explained] == [1, 2]
    assert rest.ask("DELETE", "/rules/api-paused")[0] == 204


def test_a_rule_has_the_rights_of_the_key_that_made_it(rest: Rest, listener: Listener) -> None:
    key = {"description": "limited", "role": "editor", "topic_filters": ["rules-api/#"]}
    _, made = rest.ask("POST", "/keys", key)
    limited = rest.as_caller(made["key"])
    status, refused = limited.ask("POST", "/rules", {"id": "limited", "sql": "SELECT * FROM '#'"})
    assert (status, "may not read '#'" in refused["detail"]) == (403, True)
    sql = "SELECT payload.goal AS goal FROM 'rules-api/in' WHERE payload.goal IS NOT NULL"
    action = {"function": "republish", "args": {"topic": "${goal}", "qos": 1}}
    rule = {"id": "limited", "sql": sql, "actions": [action]}
    limited.make("/rules", rule)

    def sent() -> list[str]:  # other rules are there, and send what they make of these messages
        found = [(topic, row["goal"]) for topic, row in listener.messages if "goal" in row]
        assert all(topic == goal for topic, goal in found)
        return [goal for _, goal in found]

    for goal in ("elsewhere", "rules-api/out/mine"):
        listener.publish({"goal": goal})
    mine, missed = "rules-api/out/mine", "rules-api/out/missed"
    await_condition(lambda: sent() == [mine], "the one within its rights")

    def failed() -> int:
        return int(rest.get("/rules/limited/metrics")["actions"][0]["failed"])

    await_condition(lambda: failed() == 1, "the other one is refused")
    assert rest.ask("DELETE", f"/keys/{made['id']}")[0] == 204
    await_condition(lambda: rest.get("/rules/limited")["state"] == "failed", "it stops")
    error = rest.get("/rules/limited")["error"]
    assert error == f"made by key:{made['id']}, who may not use the API any more"
    listener.publish({"goal": missed})
    _, resumed = rest.ask("POST", "/rules/limited/resume", {"from": "pause"})
    assert (resumed["rule"]["state"], resumed["rule"]["made_by"]) == ("running", "api-token")
    await_condition(lambda: sent() == [mine, missed], "what it missed")
    assert rest.ask("DELETE", "/rules/limited")[0] == 204


@pytest.mark.campaign("tests/api/rules and tests/streaming hold it without a system")
@pytest.mark.campaign("tests/streaming and tests/rules/runner hold each part of it")
def test_rules_hear_of_deliveries_and_failures(rest: Rest, listener: Listener) -> None:
    listener.messages.clear()
    delivering = {
        "id": "api-delivering",
        "sql": "SELECT payload.t AS t FROM 'rules-api/in'",
        "actions": [republish("delivered")],
    }
    of_deliveries = {
        "id": "api-told",
        "sql": "SELECT event, clientid, from_clientid, qos FROM '$events/message_delivered', "
        "'$events/message_acked' WHERE topic = 'rules-api/out/delivered'",
        "actions": [republish("told")],
    }
    of_failures = {
        "id": "api-failures",
        "sql": "SELECT rule, stage, topic FROM '$events/rule_failed'",
        "actions": [republish("failed")],
    }
    failing = {"id": "api-failing", "sql": "SELECT payload.t / 0 AS x FROM 'rules-api/in'"}
    rules = (delivering, of_deliveries, of_failures, failing)
    for rule in rules:
        rest.make("/rules", rule)

    def told(place: str) -> list[Any]:
        return [row for topic, row in listener.messages if topic == f"rules-api/out/{place}"]

    def publish_and_look() -> bool:
        listener.publish({"t": 5})  # gateways learn of the rule a moment after it is in force
        return {row["event"] for row in told("told")} == {"message.delivered", "message.acked"}

    await_condition(publish_and_look, "both are told")
    expected = {"clientid": PUBLISHER, "from_clientid": "rule:api-delivering", "qos": 1}
    assert all({**row, **expected} == row for row in told("told"))
    await_condition(lambda: bool(told("failed")), "the failure is told")
    failure = {"rule": "api-failing", "stage": "evaluate", "topic": "rules-api/in"}
    assert told("failed")[0] == failure
    for rule in rules:
        assert rest.ask("DELETE", f"/rules/{rule['id']}")[0] == 204


@pytest.mark.campaign("tests/api/rules and tests/streaming hold it without a system")
@pytest.mark.campaign("tests/streaming and tests/rules/runner hold each part of it")
def test_what_an_action_gives_up_goes_to_the_table_of_its_fallback(
    system: LocalSystem, rest: Rest, listener: Listener
) -> None:
    table = {"function": "table", "args": {"name": "api_missed"}}
    http = {"function": "http", "args": {"url": "http://127.0.0.1:9/"}, "fallback": [table]}
    rule = {"id": "api-fallback", "sql": "SELECT payload.t AS t FROM 'rules-api/in'"}
    rest.make("/rules", {**rule, "actions": [http]})
    for number in range(3):
        listener.publish({"t": 2000 + number})
    query = "SELECT CAST(t AS int) AS t FROM rule_api_missed ORDER BY t"

    def rows() -> list[str]:
        return system.run("sql", "--format", "csv", query).stdout.split()[1:]

    await_condition(lambda: len(rows()) >= 3, "the rows are there")
    assert rows() == ["2000", "2001", "2002"]
    assert rest.ask("DELETE", "/rules/api-fallback")[0] == 204
