"""Schemas of a running system: from registering one to dead letters that are run again."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.testing.systems import LocalSystem, await_condition
from tests.integration.test_rules_api import Listener, Rest

pytestmark = [
    pytest.mark.campaign("tests/streaming/test_schema_rules.py decodes and runs again"),
    pytest.mark.system,
]

SQL = "SELECT payload.t AS t FROM 'schemas/in' DECODE 'tank'"


@pytest.fixture(scope="module")
def rest(system: LocalSystem) -> Rest:
    return Rest(system)


@pytest.fixture(scope="module")
def listener(system: LocalSystem) -> Iterator[Listener]:
    found = Listener(system.mqtt_port, "schemas")
    yield found
    found.close()


def avro(*fields: str) -> dict[str, Any]:
    listed = [{"name": name, "type": "double"} for name in fields]
    source = json.dumps({"type": "record", "name": "Tank", "fields": listed})
    return {"type": "avro", "source": source}


def outputs(listener: Listener) -> list[Any]:
    return [message for _, message in listener.messages]


def publish(listener: Listener, *values: float) -> None:
    payload = struct.pack(f"<{len(values)}d", *values)
    listener.publish_bytes(payload)


def test_what_did_not_decode_is_run_again_with_the_schema_mended(
    rest: Rest, listener: Listener
) -> None:
    assert rest.ask("POST", "/rules", {"id": "tank", "sql": SQL})[0] == 422
    status, made = rest.ask("POST", "/schemas", {"name": "tank", **avro("t")})
    assert (status, made["version"]) == (201, 1), made
    action = {"function": "republish", "args": {"topic": "schemas/out/tank", "qos": 1}}
    body = {"id": "tank", "sql": SQL, "actions": [action]}
    rest.make("/rules", body)
    assert rest.ask("DELETE", "/schemas/tank")[0] == 409
    publish(listener, 1.0)
    publish(listener, 2.0, 3.0)  # devices of a newer make
    publish(listener, 4.0)
    await_condition(lambda: len(outputs(listener)) == 2, "the others are published")
    await_condition(
        lambda: len(rest.get("/dead_letters?rule=tank")["items"]) == 1,
        "the dead letter is in the table",
    )
    (letter,) = rest.get("/dead_letters?rule=tank")["items"]
    assert "8 bytes are left behind the value" in letter["error"]
    assert letter["payload_bytes"] == 16

    # The schema is mended: from one offset on the rule decodes by it.
    status, changed = rest.ask("PUT", "/schemas/tank", avro("n", "t"))
    assert (status, changed["version"]) == (200, 2)
    await_condition(
        lambda: len(rest.get("/rules/tank/explain")["spans"]) == 2, "the engine has taken it"
    )
    assert rest.get("/rules/tank/explain")["schemas"] == ["tank:2"]
    publish(listener, 5.0, 6.0)
    await_condition(lambda: len(outputs(listener)) == 3, "decoded by the new version")

    result = rest.run("/rules/tank/dead_letters/rerun", {"error": "does not decode"})
    assert [result[name] for name in ("letters", "passed", "failed", "outputs")] == [1, 1, 0, 1]
    await_condition(lambda: len(outputs(listener)) == 4, "run again")
    assert [message["t"] for message in outputs(listener)] == [1.0, 4.0, 6.0, 3.0]
    assert rest.run("/rules/tank/dead_letters/rerun", {})["outputs"] == 0
    (letter,) = rest.get("/dead_letters?rule=tank&stage=evaluate")["items"]
    assert letter["rerun"]
    assert rest.get("/dead_letters?rule=tank&open=true")["items"] == []

    assert rest.ask("DELETE", "/rules/tank")[0] == 204
    assert rest.ask("DELETE", "/schemas/tank")[0] == 204
    assert rest.ask("GET", "/schemas/tank")[0] == 404
