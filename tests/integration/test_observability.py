"""Metrics of every process and `bin/mqlake doctor`, of a system that runs."""

import json
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from launcher.testing.systems import LocalSystem, await_condition
from mqlake.metrics.names import BY_PROCESS, EVERY_PROCESS
from tests.integration.clients.publishing import publish

pytestmark = pytest.mark.system

SELDOM = {
    *("log_lasts_seconds", "query_state_rows", "query_batch_duration_seconds"),
    *("undelivered_records", "undelivered_bytes", "undelivered_oldest_seconds"),
    "query_application_start_seconds",
}
"""What is there only of some queries, after the first of a user's, or while something waits; of
actions, if there is a rule."""


def ask(system: LocalSystem, path: str) -> Any:
    request = urllib.request.Request(
        f"{system.api_url}/api/v1{path}", headers={"Authorization": f"Bearer {system.api_token}"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def samples(url: str) -> dict[str, float]:
    """Return the sum of the values of each of our metrics."""
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("mqlake_"):
            for sample in family.samples:
                name = sample.name.removesuffix("_bucket").removesuffix("_sum")
                found[name] = found.get(name, 0) + sample.value
    return found


def test_every_process_tells_its_metrics(system: LocalSystem) -> None:
    system.await_healthy()
    publish(system.mqtt_port, "observed/x", b"1")
    urls = system.status()["metrics"]
    assert list(urls) == [
        *("supervisor", "router", "lake", "rules", "api", "query", "gateway-1", "gateway-2"),
    ]
    ask(system, "/live")  # so that the API has something to tell
    for name, url in urls.items():
        found = samples(url)
        assert found["mqlake_healthy"] == 1, name
        kind = name.partition("-")[0]
        kind = "router and lake" if kind in ("router", "lake") else kind
        table = (*EVERY_PROCESS, *BY_PROCESS[kind])
        names = {metric.name for metric in table}
        assert {one.removesuffix("_count") for one in found} <= names, name
        if kind != "rules":  # there may be no rule
            missing = names - {one.removesuffix("_count") for one in found}
            assert missing <= {f"mqlake_{one}" for one in SELDOM}, name
    assert samples(urls["gateway-1"])["mqlake_gateway_messages_received_total"] >= 1
    assert samples(urls["supervisor"])["mqlake_process_up"] == len(system.status()["processes"])
    targets = ask(system, "/metrics/targets")
    assert [one["labels"]["instance"] for one in targets] == list(urls)


def test_the_api_tells_metrics_by_tenant(system: LocalSystem) -> None:
    system.await_healthy()
    publish(system.mqtt_port, "observed/y", b"12345")

    def told() -> dict[tuple[str, ...], float]:
        request = urllib.request.Request(
            f"{system.api_url}/api/v1/metrics/tenants",
            headers={"Authorization": f"Bearer {system.api_token}"},
        )
        with urllib.request.urlopen(request) as answer:
            text = answer.read().decode()
        return {
            (one.name, one.labels["tenant"], one.labels.get("gateway", "")): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }

    def is_told() -> bool:
        name = "mqlake_tenant_payload_received_bytes_total"
        return told().get((name, "default", "gateway-1"), 0) >= 5

    await_condition(is_told, "what the gateway has counted for its tenant")
    found = told()
    assert found["mqlake_tenant_connects_total", "default", "gateway-1"] >= 1
    assert found["mqlake_tenant_sessions", "default", ""] >= 0


def test_the_system_says_how_long_messages_take_and_how_far_queries_are(
    system: LocalSystem,
) -> None:
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    system.await_healthy()
    received: list[object] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: received.append(message.payload)
    subscribed: list[bool] = []
    client.on_subscribe = lambda *_: subscribed.append(True)
    client.connect("127.0.0.1", system.mqtt_port + 1)
    client.loop_start()
    client.subscribe("observed/#", 1)
    await_condition(lambda: bool(subscribed), "SUBACK")
    urls = system.status()["metrics"]

    def timed(gateway: str) -> float:
        """Return of how many deliveries it has measured the time since it began."""
        return samples(urls[gateway])["mqlake_gateway_deliver_seconds_count"]

    before = {gateway: timed(gateway) for gateway in ("gateway-1", "gateway-2")}
    for number in range(20):
        publish(system.mqtt_port, "observed/y", str(number).encode())
    await_condition(lambda: len(received) == 20, "all messages")
    client.disconnect()
    client.loop_stop()

    def is_told() -> bool:
        told = ask(system, "/metrics")
        first, second = (one["latency"] for one in told["gateways"])
        stages = (first["accept"], second["route"], second["deliver"], *told["latency"].values())
        return all(stage["messages"] > 0 and stage["p50_ms"] > 0 for stage in stages)

    await_condition(is_told, "latencies")
    assert timed("gateway-2") > before["gateway-2"]
    assert timed("gateway-1") == before["gateway-1"], "its clients got none"

    def queries() -> dict[str, Any]:
        return {one["name"]: one for one in ask(system, "/metrics")["queries"]}

    def are_caught_up() -> bool:
        found = queries()
        return all(found[name]["lag_records"] == 0 for name in ("router", "history"))

    await_condition(are_caught_up, "no lag")
    found = queries()
    assert found["router"]["active"]
    assert found["router"]["real_time"]
    assert found["router"]["batch_ms"] is None
    assert found["history"]["batch_ms"] > 0


def test_doctor_finds_nothing_wrong(system: LocalSystem) -> None:
    system.await_healthy()
    result = system.run("doctor", "--json")
    answer = json.loads(result.stdout)
    wrong = [one for one in answer["findings"] if one["level"] == "error"]
    assert not wrong
    assert result.returncode == 0
    by_check = {one["check"]: one for one in answer["findings"]}
    # How long the log lasts is known after a while only; of rules nothing is said without any.
    assert len(by_check.keys() - {"log room", "rules"}) == 20
    assert by_check["durability"]["detail"].startswith("D1: ")
    assert by_check["access"]["detail"].startswith("other machines do not reach ")
    assert by_check["gateways"]["detail"].startswith("gateway-2: acknowledged in ")
