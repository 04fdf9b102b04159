import json

from mqlake.clock import ManualClock
from mqlake.records.messages import EVENTS
from mqlake.records.outputs import DeadLetter, Output, Position
from mqlake.records.rules import MAX_FAILURES_TOLD
from mqlake.records.versions import RECORD_VERSION
from rules.runner.failures import FailureEvents

POSITION = Position("i", 0, 7, 0)


def an_output(topic_name: str = "a/b", *, rule: str = "r", tenant: str = "default") -> Output:
    return Output(
        tenant, rule, 3, b'{"x":1}', POSITION, 5, topic_name, "alice", bytes(16), ("earlier",)
    )


def a_letter(output: Output) -> DeadLetter:
    return DeadLetter(
        output.tenant,
        output.rule,
        output.version,
        output.row,
        output.position,
        "action",
        "refused",
        output.topic_name,
        output.client_id,
        "0/http",
    )


def made(events: FailureEvents, output: Output) -> bool:
    return events.make(output, a_letter(output)) is not None


def test_an_event_says_what_failed() -> None:
    events = FailureEvents(lambda tenant: tenant == "default", ManualClock())
    output = an_output()
    record = events.make(output, a_letter(output))
    assert record is not None
    assert (record.log_topic, record.key) == (EVENTS, b"default/alice")
    assert record.headers == [("chain", b"earlier,r")]
    event = json.loads(record.value or b"")
    assert event.pop("ts") == record.timestamp_ms
    assert event == {
        "v": RECORD_VERSION,
        "event": "rule.failed",
        "tenant": "default",
        "client_id": "alice",
        "rule": "r",
        "rule_version": 3,
        "stage": "action",
        "action": "0/http",
        "error": "refused",
        "topic": "a/b",
        "count": 1,
    }


def test_nothing_is_told_to_tenants_without_such_a_rule() -> None:
    events = FailureEvents(lambda tenant: tenant == "default", ManualClock())
    assert not made(events, an_output(tenant="other"))


def test_of_a_failure_over_a_failure_nothing_is_told() -> None:
    events = FailureEvents(lambda _: True, ManualClock())
    assert not made(events, an_output("$events/rule_failed"))
    assert made(events, an_output("$events/client_connected"))


def test_events_of_one_rule_are_bounded_and_say_how_many_they_stand_for() -> None:
    clock = ManualClock()
    events = FailureEvents(lambda _: True, clock)
    assert sum(made(events, an_output()) for _ in range(25)) == MAX_FAILURES_TOLD
    assert made(events, an_output(rule="another"))
    clock.advance(1)
    record = events.make(an_output(), a_letter(an_output()))
    assert record is not None
    assert json.loads(record.value or b"")["count"] == 25 - MAX_FAILURES_TOLD + 1
    for _ in range(MAX_FAILURES_TOLD):
        made(events, an_output())
    events.forget("default", "r")
    assert made(events, an_output())
