"""The process on a real log."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from launcher.testing.systems import await_condition
from mqlake.errors import InvalidRecord
from mqlake.records.messages import EVENTS, METRICS, RULES, decode_message
from mqlake.records.outputs import decode_dead_letter, table_row_headers
from mqlake.records.rules import (
    Activation,
    OffsetRange,
    RulesKey,
    Span,
    encode_activation,
    rules_key,
)
from tests.rules.runner.harness import Stage, headers_of

pytestmark = pytest.mark.kafka


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


def test_outputs_that_come_again_are_dropped(stage: Stage) -> None:
    stage.define("again", [{"function": "republish", "args": {"topic": "again"}}])
    runner = stage.run_runner()
    outputs = stage.put("again", [{"n": n} for n in range(50)])
    await_condition(partial(has_published, stage, "again", 50), "they are published")
    for output in outputs[20:]:
        stage.put_output(output)
    runner.kill()
    for output in outputs[10:]:
        stage.put_output(output)
    # The same offset, but a row more than before.
    stage.put_output(replace(outputs[-1], position=replace(outputs[-1].position, index=1)))
    stage.flush()
    runner = stage.run_runner()
    await_condition(partial(has_published, stage, "again", 51), "the new one is published")
    assert len(stage.published("again")) == 51
    assert runner.stop() == 0


def test_what_cannot_be_done_becomes_a_dead_letter(stage: Stage) -> None:
    actions = [
        {"function": "republish", "args": {"topic": "a/${level}"}},
        {"function": "sql", "args": {"connection": "nowhere", "statement": "DELETE FROM t"}},
        {"function": "log", "args": {"topic": "no-such-topic"}},
    ]
    stage.define("letters", actions)
    runner = stage.run_runner()
    stage.put("letters", [{"level": "x/+"}, {"level": "fine"}, {"other": 1}, {"level": ""}])
    await_condition(lambda: len(stage.dead_letters("letters")) == 10, "they are written")
    letters = [headers_of(record) for record in stage.dead_letters("letters")]
    assert {letter["stage"] for letter in letters} == {b"action"}
    errors: dict[bytes, list[bytes]] = {}
    for letter in letters:
        errors.setdefault(letter["action"], []).append(letter["error"])
    assert {action: len(found) for action, found in errors.items()} == {
        b"0/republish": 2,
        b"1/sql": 4,
        b"2/log": 4,
    }
    assert any(b"wildcard" in error for error in errors[b"0/republish"])
    assert any(b"level is missing" in error for error in errors[b"0/republish"])
    assert b"no connection nowhere" in errors[b"1/sql"][0]
    assert len(stage.published("letters")) == 2
    assert runner.stop() == 0


def test_fallback_runs_when_an_action_has_given_up(stage: Stage) -> None:
    stage.create_topic("fallbacks")
    nowhere = {"connection": "nowhere", "statement": "DELETE FROM t"}
    fallback = [
        {"function": "sql", "args": nowhere},
        {
            "function": "log",
            "args": {"topic": "fallbacks", "key": "${k}", "headers": {"h": "${k}"}},
        },
    ]
    stage.define("fallback", [{"function": "sql", "args": nowhere, "fallback": fallback}])
    runner = stage.run_runner()
    (output,) = stage.put("fallback", [{"k": "one"}])
    await_condition(lambda: len(stage.read("fallbacks", bool)) == 1, "it is in the log")
    record = stage.read("fallbacks", bool)[0]
    assert (record.key(), record.value()) == (b"one", b'{"k":"one"}')
    action_id = f"fallback/1/{output.position}/0".encode()
    assert headers_of(record) == {"output": action_id, "h": b"one"}
    assert not stage.dead_letters("fallback")
    assert runner.stop() == 0


def test_a_table_as_a_fallback_is_handed_to_the_streaming_application(stage: Stage) -> None:
    nowhere = {"connection": "nowhere", "statement": "DELETE FROM t"}
    table = {"function": "table", "args": {"name": "missed"}}
    stage.define("to_table", [{"function": "sql", "args": nowhere, "fallback": [table]}])
    runner = stage.run_runner()
    (output,) = stage.put("to_table", [{"k": "one"}])
    await_condition(lambda: len(stage.dead_letters("to_table")) == 1, "it is in the log")
    (record,) = stage.dead_letters("to_table")
    assert record.value() == output.row
    headers = headers_of(record)
    assert headers == dict(table_row_headers(output, 0, "missed"))
    with pytest.raises(InvalidRecord, match="stage"):
        decode_dead_letter(record.key() or b"", output.row, list(headers.items()))
    assert runner.stop() == 0


def test_failures_of_actions_are_events_when_a_rule_reads_them(stage: Stage) -> None:
    span = Span(1, ("$events/rule_failed",), "NULL", (), None, {EVENTS: OffsetRange((0,))})
    activation = Activation("default", "watching", "running", 1, 1, spans=(span,))
    key = rules_key(RulesKey("activation", "default", "watching"))
    stage.producer.produce(RULES, encode_activation(activation), key)
    nowhere = {"connection": "nowhere", "statement": "DELETE FROM t"}
    stage.define("told", [{"function": "sql", "args": nowhere}])
    runner = stage.run_runner()
    stage.put("told", [{"n": n} for n in range(50)])
    await_condition(lambda: len(stage.dead_letters("told")) == 50, "all are given up")
    events = [json.loads(one.value() or b"") for one in stage.read(EVENTS, bool)]
    assert events
    assert len(events) <= 50
    assert {one["event"] for one in events} == {"rule.failed"}
    assert {(one["rule"], one["action"]) for one in events} == {("told", "0/sql")}
    stage.producer.produce(RULES, None, key)
    stage.flush()
    assert runner.stop() == 0


def test_each_version_has_its_own_actions_also_when_it_is_known_late(stage: Stage) -> None:
    stage.define("versions", [{"function": "republish", "args": {"topic": "one"}}], version=1)
    runner = stage.run_runner()
    stage.put("versions", [{}], version=1)
    stage.put("versions", [{}], version=2)
    stage.put("versions", [{}], version=1)
    await_condition(partial(has_published, stage, "versions", 1), "the first is published")
    stage.define("versions", [{"function": "republish", "args": {"topic": "two"}}], version=2)
    await_condition(partial(has_published, stage, "versions", 3), "all are published")
    keys = sorted(record.key() or b"" for record in stage.published("versions"))
    assert keys == [b"default/one", b"default/one", b"default/two"]
    assert runner.stop() == 0


def test_counters_of_each_action_are_in_the_metrics(stage: Stage) -> None:
    nowhere = {"connection": "nowhere", "statement": "DELETE FROM t"}
    actions = [{"function": "console", "args": {}}, {"function": "sql", "args": nowhere}]
    stage.define("counted", actions)
    runner = stage.run_runner()
    stage.put("counted", [{"n": n} for n in range(7)])

    def counters() -> dict[str, dict[str, Any]]:
        records = stage.read(
            METRICS, lambda m: (m.key() or b"").endswith(b"/rules/default/counted")
        )
        found: dict[str, Any] = json.loads(records[-1].value() or b"") if records else {}
        return dict(found.get("actions", {}))

    def has_counted() -> bool:
        found = counters()
        return bool(found) and found["0"]["success"] == 7 and found["1"]["failed"] == 7

    await_condition(has_counted, "they are counted")
    assert counters()["0"]["function"] == "console"
    assert runner.stop() == 0
    assert runner.log_file.read_text(encoding="utf-8").count("rule output") == 7
