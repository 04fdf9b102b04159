"""The process on a real log."""

import json
from functools import partial

import pytest

from mqlake.local.testing import await_condition
from mqlake.records import decode_message
from tests.rules.runner.harness import Stage, headers_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


def has_published(stage: Stage, rule: str, count: int) -> bool:
    return len(stage.published(rule)) >= count


def test_republished_message_is_what_a_gateway_would_have_written(stage: Stage) -> None:
    runner = stage.run_runner()
    args = {
        "topic": "alarm/${site}",
        "qos": "${q}",
        "retain": True,
        "payload": "t=${t}",
        "mqtt_properties": {"Content-Type": "text/plain"},
        "user_properties": {"unit": "°C"},
    }
    stage.define("shape", [{"function": "republish", "args": args}])
    stage.put("shape", [{"site": "a", "q": 1, "t": 21.5}], chain=("first",))
    await_condition(lambda: len(stage.published("shape")) == 1, "it is published")
    record = stage.published("shape")[0]
    headers = headers_of(record)
    message = decode_message(record.key() or b"", record.value(), list(headers.items()), 0)
    assert (message.tenant, message.topic_name, message.payload) == (
        "default",
        "alarm/a",
        b"t=21.5",
    )
    assert (message.qos, message.retain, message.client_id) == (1, True, "rule:shape")
    assert message.properties == {"content_type": "text/plain", "user_property": [("unit", "°C")]}
    assert headers["chain"] == b"first,shape"
    assert headers["output"].decode().startswith("shape/1/i:0:")
    assert runner.stop() == 0


def test_nothing_is_published_twice_or_lost_when_the_runner_is_killed(stage: Stage) -> None:
    stage.define("killed", [{"function": "republish", "args": {"topic": "out/${n}"}}])
    total = 0
    for _ in range(3):
        runner = stage.run_runner()
        stage.put("killed", [{"n": total + n} for n in range(12_000)])
        total += 12_000
        # Somewhere in the middle of them.
        await_condition(partial(has_published, stage, "killed", total - 11_900), "it works")
        runner.kill()
    runner = stage.run_runner()
    await_condition(lambda: len(stage.published("killed")) >= total, "all are published")
    numbers = [json.loads(record.value() or b"")["n"] for record in stage.published("killed")]
    assert sorted(numbers) == list(range(total))
    assert runner.stop() == 0
