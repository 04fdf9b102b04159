"""The checkers on histories of a few lines: what is blamed, what is open, and what proves it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.checkers import CHECKERS, Judgement, check, check_file, is_owing
from resilience.checkers.base import Verdict
from resilience.errors import HistoryError
from resilience.history import Writer

Operation = dict[str, Any]


class Story:
    """Operations with little to write; a second passes with each."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.time = 0
        self.numbers: dict[str, int] = {}

    def add(self, process: str, f: str, type_: str, **fields: Any) -> "Story":
        self.time += 1_000_000
        operation = {"process": process, "f": f, "type": type_, "time": self.time}
        if f not in ("drain", "fault", "rights"):
            operation["connection"] = self.numbers.get(process, 1)
        self.operations.append({**operation, **fields})
        return self

    def connect(self, process: str, *, present: bool = False, **fields: Any) -> "Story":
        self.numbers[process] = self.numbers.get(process, 0) + 1
        self.add(process, "connect", "invoke", **{"version": 4, "clean": False, **fields})
        return self.add(process, "connect", "ok", session_present=present)

    def subscribe(self, process: str, topic_filter: str = "t", qos: int = 1) -> "Story":
        name = f"s{len(self.operations)}"
        self.add(process, "subscribe", "invoke", id=name, filter=topic_filter, qos=qos)
        return self.add(process, "subscribe", "ok", id=name, granted=qos)

    def unsubscribe(self, process: str, topic_filter: str = "t") -> "Story":
        name = f"u{len(self.operations)}"
        self.add(process, "unsubscribe", "invoke", id=name, filter=topic_filter)
        return self.add(process, "unsubscribe", "ok", id=name)

    def publish(self, process: str, name: str, qos: int = 1, **fields: Any) -> "Story":
        self.add(process, "publish", "invoke", **{"id": name, "topic": "t", "qos": qos, **fields})
        return self.add(process, "publish", "ok", id=name)

    def receive(self, process: str, name: str, qos: int = 1, **fields: Any) -> "Story":
        return self.add(
            process, "receive", "ok", **{"id": name, "topic": "t", "qos": qos, **fields}
        )

    def drain(self) -> "Story":
        return self.add("run", "drain", "ok")

    def judge(self, **header: Any) -> Judgement:
        return check({"history": 1, **header}, self.operations)


def pair() -> Story:
    """A publisher and a subscriber with sessions that are kept."""
    return Story().connect("sub").subscribe("sub").connect("pub")


def test_what_all_is_well_is_blamed_by_nobody() -> None:
    judgement = pair().publish("pub", "1").receive("sub", "1").drain().judge()
    assert judgement.violated == []
    assert (judgement["lost"].checked, judgement["lost"].unknown) == (1, 0)


def test_an_acknowledged_message_that_did_not_come_is_lost_with_three_lines_as_witness() -> None:
    verdict = (
        pair().publish("pub", "1").publish("pub", "2").receive("sub", "2").drain().judge()["lost"]
    )
    assert (verdict.violations, verdict.checked) == (1, 2)
    # SUBACK, PUBLISH, PUBACK.
    assert verdict.witness == (5, 8, 9)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda story: story, id="no drain"),
        pytest.param(
            lambda story: story.add("sub", "closed", "ok").drain(), id="subscriber away at the end"
        ),
        pytest.param(
            lambda story: (
                story.add("sub", "closed", "ok").connect("sub", clean=True).subscribe("sub").drain()
            ),
            id="session ended by its client",
        ),
        pytest.param(lambda story: story.unsubscribe("sub").drain(), id="unsubscribed"),
    ],
)
def test_a_message_that_need_not_come_is_open_not_lost(spoil: Callable[[Story], Story]) -> None:
    verdict = spoil(pair().publish("pub", "1")).judge()["lost"]
    assert (verdict.violations, verdict.unknown) == (0, 1)


def test_a_session_that_the_broker_forgot_excuses_no_loss() -> None:
    story = pair().publish("pub", "1").add("sub", "closed", "ok")
    judgement = story.connect("sub", present=False).subscribe("sub").drain().judge()
    assert judgement["lost"].violations == 1
    assert judgement["session-present"].kinds == {"session gone": 1}


def test_a_message_before_suback_or_of_qos_0_is_not_owed() -> None:
    story = Story().connect("pub").connect("sub").publish("pub", "1").subscribe("sub")
    verdict = story.publish("pub", "2", qos=0).drain().judge()["lost"]
    assert (verdict.checked, verdict.unknown, verdict.violations) == (0, 0, 0)


def test_a_message_that_was_refused_or_has_no_answer_is_not_lost() -> None:
    story = pair().add("pub", "publish", "invoke", id="1", topic="t", qos=1)
    story.add("pub", "publish", "fail", id="1")
    story.add("pub", "publish", "invoke", id="2", topic="t", qos=1)
    story.add("pub", "publish", "info", id="2")
    assert story.drain().judge()["lost"].violations == 0


def test_qos_0_that_comes_twice_is_blamed_once_each() -> None:
    story = pair().publish("pub", "1", qos=0).receive("sub", "1", qos=0)
    verdict = story.receive("sub", "1", qos=0).drain().judge()["duplicate-without-dup"]
    assert verdict.kinds == {"QoS 0 repeated": 1}


def test_two_filters_may_bring_two_copies() -> None:
    story = Story().connect("sub").subscribe("sub", "t", 2).subscribe("sub", "#", 2).connect("pub")
    story.publish("pub", "1", qos=2).receive("sub", "1", qos=2).receive("sub", "1", qos=2)
    assert story.drain().judge().violated == []
    assert story.receive("sub", "1", qos=2).judge().violated == [
        "duplicate-qos2",
        "duplicate-without-dup",
    ]


def test_a_message_that_its_publisher_sent_again_may_be_late_and_doubled() -> None:
    story = pair().add("pub", "publish", "invoke", id="1", topic="t", qos=1)
    story.add("pub", "closed", "ok").connect("pub", present=True)
    story.publish("pub", "2").receive("sub", "2").receive("sub", "1").receive("sub", "1")
    story.add("pub", "publish", "ok", id="1")
    judgement = story.drain().judge()
    assert judgement.violated == []
    assert judgement["duplicate-without-dup"].unknown == 1


def test_order_is_of_each_publisher_topic_and_qos() -> None:
    story = pair().connect("other").publish("pub", "1").publish("other", "o").publish("pub", "2")
    story.receive("sub", "o").receive("sub", "2")
    verdict = story.receive("sub", "1").drain().judge()["order"]
    assert verdict.kinds == {"first arrival": 1}
    assert len(verdict.witness) == 4


def test_a_retained_message_is_read_by_the_next_subscription() -> None:
    story = Story().connect("pub").connect("sub")
    story.publish("pub", "1", retain=True).publish("pub", "2", retain=True)
    old = Story()
    old.operations, old.time, old.numbers = list(story.operations), story.time, story.numbers
    assert story.subscribe("sub").drain().judge()["retained"].kinds == {"lost": 1}
    old.subscribe("sub").receive("sub", "1", retain=True).drain()
    assert set(old.judge()["retained"].kinds) == {"back in time", "lost"}


def test_a_deleted_retained_message_does_not_come_back() -> None:
    story = Story().connect("pub").connect("sub").publish("pub", "1", retain=True)
    story.publish("pub", "2", retain=True, empty=True).subscribe("sub")
    story.receive("sub", "1", retain=True).drain()
    assert story.judge()["retained"].kinds == {"resurrected": 1}


def test_a_write_that_overlaps_the_subscription_may_come_or_not() -> None:
    story = Story().connect("pub").connect("sub").publish("pub", "1", retain=True)
    story.add("pub", "publish", "invoke", id="2", topic="t", qos=1, retain=True)
    story.subscribe("sub").receive("sub", "1", retain=True)
    story.add("pub", "publish", "ok", id="2").receive("sub", "2").drain()
    assert story.judge().violated == []


def test_a_value_that_somebody_has_read_is_not_older_for_the_next_one() -> None:
    story = Story().connect("pub").connect("a").connect("b").publish("pub", "1", retain=True)
    story.add("pub", "publish", "invoke", id="2", topic="t", qos=1, retain=True)
    story.subscribe("a").receive("a", "2", retain=True)
    story.subscribe("b").receive("b", "1", retain=True)
    story.add("pub", "publish", "ok", id="2").receive("b", "2").drain()
    assert story.judge()["retained"].kinds == {"back in time": 1}


def test_a_retained_message_does_not_come_behind_a_newer_one() -> None:
    story = Story().connect("pub").connect("sub").publish("pub", "1", retain=True)
    story.subscribe("sub").publish("pub", "2", retain=True).receive("sub", "2")
    story.receive("sub", "1", retain=True).drain()
    assert story.judge()["retained"].kinds == {"back in time": 1}


def group() -> Story:
    """Return two members of a share group, and a publisher."""
    story = Story().connect("a").subscribe("a", "$share/g/t", 2)
    return story.connect("b").subscribe("b", "$share/g/t", 2).connect("pub")


def test_qos_2_comes_to_one_member_once_though_its_connection_breaks() -> None:
    again = group().publish("pub", "1", 2).receive("a", "1", 2).add("a", "closed", "ok")
    again.connect("a", present=True).receive("a", "1", 2).drain()
    assert again.judge()["share-group"].kinds == {"two": 1}
    other = group().publish("pub", "1", 2).receive("a", "1", 2).add("a", "closed", "ok")
    other.connect("a", present=True).receive("b", "1", 2).drain()
    assert other.judge()["share-group"].kinds == {"two": 1}


def test_qos_2_may_come_to_another_member_when_the_session_has_ended() -> None:
    story = group().publish("pub", "1", 2).receive("a", "1", 2).add("a", "closed", "ok")
    story.connect("a", clean=True).receive("b", "1", 2).drain()
    verdict = story.judge()["share-group"]
    assert (verdict.violations, verdict.unknown) == (0, 1)


def test_a_message_that_has_not_expired_is_owed() -> None:
    verdict = pair().publish("pub", "1", expiry=1_000).drain().judge()["lost"]
    assert (verdict.violations, verdict.unknown) == (1, 0)


def test_requests_of_a_connection_that_ended_are_open() -> None:
    story = pair().add("pub", "publish", "invoke", id="1", topic="t", qos=1)
    story.add("pub", "closed", "ok")
    story.add("sub", "subscribe", "invoke", id="s", filter="x", qos=1).add("sub", "closed", "ok")
    verdict = story.drain().judge()["never-acknowledged"]
    assert (verdict.violations, verdict.unknown) == (0, 2)


def test_qos_2_of_a_publisher_whose_session_was_lost_may_come_twice() -> None:
    story = Story().connect("sub").subscribe("sub", "t", 2).connect("pub")
    story.add("pub", "publish", "invoke", id="1", topic="t", qos=2).add("pub", "closed", "ok")
    story.connect("pub", present=False).receive("sub", "1", 2).receive("sub", "1", 2).drain()
    verdict = story.judge()["duplicate-qos2"]
    assert (verdict.violations, verdict.unknown) == (0, 1)


def test_a_client_that_was_taken_over_is_served_no_more() -> None:
    story = Story().connect("a", client_id="c").subscribe("a").connect("pub")
    story.connect("b", client_id="c", present=True).publish("pub", "1")
    story.receive("a", "1").drain()
    assert story.judge()["two-holders"].kinds == {"both served": 1}


@pytest.mark.parametrize("seconds", [0, 1, 30])
def test_a_node_that_was_frozen_serves_nobody_whose_will_was_published(seconds: int) -> None:
    will = {"id": "c/w1", "topic": "t", "qos": 1, "retain": False, "delay": 0}
    story = Story().connect("sub").subscribe("sub").connect("c", will=will)
    story.add("faults", "fault", "invoke", fault="freeze", part="a").receive("sub", "c/w1")
    story.add("faults", "fault", "ok", fault="freeze", part="a")
    story.time += seconds * 1_000_000
    story.publish("c", "c/1")
    assert story.judge()["will"].violations == 1


def test_a_retained_will_is_a_write() -> None:
    will = {"id": "w", "topic": "t", "qos": 1, "retain": True}
    story = Story().connect("a", will=will).connect("sub").add("a", "closed", "ok")
    story.subscribe("sub", "x").subscribe("sub", "t").receive("sub", "w", retain=True).drain()
    judgement = story.judge()
    assert judgement["retained"].violations == 0
    assert judgement["will"].violations == 0, "the delivery of a retained will is not the will's"


def test_a_message_for_a_group_and_its_member_alone_is_not_told_apart() -> None:
    story = Story().connect("a").subscribe("a", "$share/g/t").subscribe("a", "t").connect("pub")
    story.publish("pub", "1").receive("a", "1").receive("a", "1").drain()
    assert story.judge()["share-group"].checked == 0


def test_a_member_gets_a_message_once_on_one_connection() -> None:
    story = group().publish("pub", "1").receive("a", "1").receive("a", "1").drain()
    assert story.judge()["share-group"].kinds == {"two": 1}
    dup = group().publish("pub", "1").receive("a", "1").receive("a", "1", dup=True).drain()
    assert dup.judge()["share-group"].violations == 0


@pytest.mark.parametrize("fields", [{"qos": 0}, {"expiry": 5}])
def test_a_group_is_not_owed_what_may_go(fields: dict[str, Any]) -> None:
    verdict = group().publish("pub", "1", **fields).drain().judge()["share-group"]
    assert (verdict.checked, verdict.unknown) == (0, 0)


def test_a_group_that_had_no_member_yet_is_owed_nothing() -> None:
    story = Story().connect("pub").publish("pub", "1").connect("a").subscribe("a", "$share/g/t")
    verdict = story.drain().judge()["share-group"]
    assert (verdict.checked, verdict.unknown) == (0, 0)


def test_a_message_for_a_member_that_had_left_is_blamed_on_that() -> None:
    story = group().unsubscribe("a", "$share/g/t").publish("pub", "1", 2).drain()
    assert story.judge()["share-group"].kinds == {"dead member": 1}


def test_a_member_whose_client_came_elsewhere_may_have_taken_it_along() -> None:
    story = group().connect("a2", client_id="a", clean=True).publish("pub", "1", 2).drain()
    assert story.judge()["share-group"].kinds == {}


def test_a_tenant_that_is_shut_while_a_client_connects_blames_nobody() -> None:
    def shut(story: Story) -> Story:
        return story.add("run", "tenant", "ok", tenant="acme", is_open=False)

    def invoke(story: Story) -> Story:
        story.numbers["x"] = 1
        fields = {"version": 4, "clean": True, "tenant": "acme"}
        return story.add("x", "connect", "invoke", **fields)

    during = shut(invoke(Story())).add("x", "connect", "ok", session_present=False)
    assert during.judge()["crossing"].violations == 0
    behind = invoke(shut(Story())).add("x", "connect", "ok", session_present=False)
    assert behind.judge()["crossing"].kinds == {"tenant shut": 1}


WILL = {"id": "w", "topic": "t", "qos": 1}


def test_a_will_after_disconnect_is_excused_by_a_fault_alone() -> None:
    story = Story().connect("sub").subscribe("sub").connect("a", will=WILL)
    story.add("a", "disconnect", "invoke").add("a", "disconnect", "ok")
    assert story.receive("sub", "w").drain().judge()["will"].kinds == {"after DISCONNECT": 1}
    struck = Story().connect("sub").subscribe("sub").connect("a", will=WILL)
    struck.add("faults", "fault", "invoke", fault="kill", part="broker")
    struck.add("a", "disconnect", "invoke").add("a", "disconnect", "ok")
    struck.add("faults", "fault", "ok", fault="kill", part="broker")
    assert struck.receive("sub", "w").drain().judge()["will"].violations == 0


def test_a_clean_start_ends_the_delay_of_a_will() -> None:
    will = {**WILL, "delay": 100}
    fields: dict[str, Any] = {"version": 5, "expiry": 200, "will": will}
    early = Story().connect("sub").subscribe("sub").connect("a", **fields)
    early.add("a", "closed", "ok").receive("sub", "w").drain()
    assert early.judge()["will"].kinds == {"too early": 1}
    clean = Story().connect("sub").subscribe("sub").connect("a", **fields).add("a", "closed", "ok")
    clean.connect("a", clean=True).receive("sub", "w").drain()
    assert clean.judge()["will"].violations == 0


def test_a_will_is_owed_to_subscriptions_that_were_there_until_the_end() -> None:
    story = Story().connect("sub").subscribe("sub").connect("late").connect("a", will=WILL)
    story.unsubscribe("sub").add("a", "closed", "ok").subscribe("late")
    assert story.drain().judge()["will"].violations == 0


def test_a_verdict_is_written_with_its_bound_or_its_witness() -> None:
    clean = Verdict("lost", "c", "p", checked=300, unknown=2, kinds={}).to_json()
    assert (clean["violations"], clean["at_most"], clean["witness"]) == (0, 0.01, [])
    broken = pair().publish("pub", "1").drain().judge()["lost"].to_json()
    assert (broken["violations"], broken["at_most"]) == (1, None)
    assert broken["witness"] == [5, 8, 9]


def test_a_history_owes_what_would_be_missing_at_its_end(tmp_path: Path) -> None:
    def owes(story: Story) -> bool:
        path = tmp_path / "history.jsonl"
        lines = [{"history": 1, "promises": {}}, *story.operations]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return is_owing(path)

    assert not owes(Story())
    assert owes(pair().publish("pub", "1"))
    assert not owes(pair().publish("pub", "1").receive("sub", "1"))
    assert owes(group().publish("pub", "1", 2))


def test_a_share_group_counts_what_a_member_may_have_taken_along_as_open() -> None:
    story = Story().connect("a").subscribe("a", "$share/g/t").connect("b")
    story.subscribe("b", "$share/g/t").connect("pub").publish("pub", "1")
    story.add("a", "closed", "ok").drain()
    verdict = story.judge()["share-group"]
    assert (verdict.violations, verdict.unknown) == (0, 1)


def test_zero_of_n_is_at_most_three_over_n() -> None:
    verdict = Verdict("lost", "", "", checked=300, unknown=0, kinds={})
    assert verdict.bound == 0.01
    assert Verdict("lost", "", "", checked=0, unknown=5, kinds={}).bound is None


@pytest.mark.parametrize(
    "operation",
    [
        {"process": "a", "f": "receive", "type": "ok", "time": 1, "id": "1", "connection": 1},
        {"process": "a", "f": "fly", "type": "ok", "time": 1},
        {"process": "a", "f": "drain", "type": "maybe", "time": 1},
        {"process": "a", "f": "drain", "type": "ok"},
        {"f": "connect", "type": "invoke", "time": 1},
        ["drain"],
    ],
)
def test_an_operation_that_does_not_fit_is_named_by_its_line(operation: Any) -> None:
    with pytest.raises(HistoryError, match="line 2 does not fit"):
        check({"history": 1}, [operation])


def test_a_witness_from_a_file_has_its_operations(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    story = pair().publish("pub", "1").drain()
    with path.open("w", encoding="utf-8") as stream:
        writer = Writer(stream, {}, lambda: 0.0)
        for operation in story.operations:
            fields = {
                k: v for k, v in operation.items() if k not in ("process", "f", "type", "time")
            }
            writer.write(operation["process"], operation["f"], operation["type"], **fields)
    verdict = check_file(path)["lost"]
    assert [each["f"] for each in verdict.operations] == ["subscribe", "publish", "publish"]


def test_names_and_promises_are_told_apart() -> None:
    names = [checker.name for checker in CHECKERS]
    assert len(set(names)) == len(names) == 17
    assert all(checker.clause and checker.promise for checker in CHECKERS)


def test_measures_tell_rate_outage_and_how_long_nothing_came_at_a_fault() -> None:
    story = pair().publish("pub", "1").receive("sub", "1")
    story.add("faults", "fault", "invoke", fault="kill", part="broker")
    story.add("faults", "fault", "ok", fault="kill", part="broker")
    story.publish("pub", "2").receive("sub", "2").receive("sub", "2", dup=True).drain()
    measures = story.judge().measures.to_json()
    assert measures["acknowledged"] == [0, 2, 0]
    assert (measures["doubled"], measures["with_dup"]) == (1, 1)
    assert measures["due_by_qos"] == measures["delivered_by_qos"] == [0, 2, 0]
    (fault,) = measures["faults"]
    assert (fault["seconds"], fault["silence"]) == (1.0, 4.0)
    assert measures["outage_seconds"]["pub"]["longest"] == 1.0


def test_a_clean_history_in_a_file_has_no_witness(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    lines = [{"history": 1, "promises": {}}, *pair().operations]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    judgement = check_file(path)
    assert judgement.violated == []
