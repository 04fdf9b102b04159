"""What became of a message, from the records of a log that is a list; Spark is away."""

import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from api.access.callers import Caller
from api.log.following import Followed
from api.tracing.tables import TraceTables
from api.tracing.tracer import MessageTracer
from api.tracing.views import Trace
from mqlake.records.messages import (
    DEAD_LETTERS,
    EVENTS,
    HEADER_ID,
    HEADER_OUTPUT,
    INBOUND,
    OUTPUTS,
    RULES,
    RUNNER,
    Message,
    Source,
    delivery_topic,
    encode_source,
    message_headers,
    message_key,
)
from mqlake.records.outputs import (
    DeadLetter,
    Output,
    Position,
    dead_letter_headers,
    output_headers,
    rule_record_key,
)
from mqlake.records.rule_tables import rule_table
from mqlake.records.rules import (
    Activation,
    OffsetRange,
    RulesKey,
    Span,
    encode_activation,
    rules_key,
)
from rules.model import ActionSpec, Rule
from rules.runner.checkpoint import Checkpoint, ReadPosition, encode_checkpoint
from tests.api.conftest import Api, progress, subscription
from tests.api.scans import ListScan

AT = 1_790_000_000_000
ID = ((AT - 1_577_836_800_000) << 80 | 7).to_bytes(16, "big")
MESSAGE = Message(
    tenant="default",
    topic_name="plant/1",
    payload=b"20",
    qos=1,
    retain=False,
    message_id=ID,
    client_id="sensor",
    received_at_ms=AT,
    origin="local/gateway-1",
)
PARTITION, OFFSET = 2, 40
_offsets = count(1)


class TraceScan(ListScan):
    """A log with events around one message."""

    def event(self, name: str, client_id: str, at_ms: int, **fields: Any) -> None:
        value = {
            "event": name,
            "ts": at_ms,
            "tenant": "default",
            "client_id": client_id,
            "gateway": "gateway-1",
            **fields,
        }
        self.put(EVENTS, json.dumps(value).encode(), at_ms=at_ms)

    def subscriber(self, client_id: str, topic_filter: str = "plant/#", expiry: int = 0) -> None:
        self.event("client.connected", client_id, AT - 900, expiry=expiry, session_present=False)
        self.event("session.subscribed", client_id, AT - 800, filter=topic_filter, qos=1)


@pytest.fixture
def scan() -> TraceScan:
    found = TraceScan()
    key = message_key(MESSAGE.tenant, MESSAGE.topic_name)
    headers = message_headers(MESSAGE)
    found.put(
        INBOUND,
        MESSAGE.payload,
        headers,
        key=key,
        at_ms=AT,
        partition=PARTITION,
        offset=OFFSET,
    )
    return found


def trace(
    api: Api, scan: TraceScan, client_id: str | None = None, tenant: str = "default"
) -> Trace:
    found = look(api, scan, client_id, tenant)
    assert found is not None
    return found


def look(
    api: Api,
    scan: TraceScan,
    client_id: str | None = None,
    tenant: str = "default",
    caller: Caller | None = None,
) -> Trace | None:
    services = api.services
    tables = TraceTables(services.queries.spark, tenant)
    names = ["gateway-1", "gateway-2"]
    tracer = MessageTracer(
        scan, tables, services.gateways.sessions, api.rules, names, tenant, caller
    )
    return tracer.trace(ID.hex(), client_id, 100)


def test_who_is_for_some_topics_is_shown_messages_of_these_and_no_rules(
    api: Api, scan: TraceScan
) -> None:
    scan.subscriber("other", "plant/#")
    stranger = Caller("key:1", "viewer", "key", topic_filters=("lab/#", "plant/+/x"))
    assert look(api, scan, caller=stranger) is None
    own = Caller("key:2", "viewer", "key", topic_filters=("plant/+",))
    found = look(api, scan, caller=own)
    assert found is not None
    assert [one.client_id for one in found.subscribers] == ["other"]
    assert found.rules == []
    assert "rules" not in found.summary
    assert "rules are not shown to who is for some topics alone" in found.not_known


def outcomes(found: Trace) -> dict[str, tuple[str, str]]:
    return {one.client_id: (one.outcome, one.basis) for one in found.subscribers}


def test_a_message_that_nobody_wanted_says_so(api: Api, scan: TraceScan) -> None:
    scan.subscriber("other", "other/#")
    found = trace(api, scan)
    accepted = found.accepted
    assert (accepted.topic_name, accepted.client_id, accepted.qos) == ("plant/1", "sensor", 1)
    assert (accepted.partition, accepted.offset, accepted.found_in) == (PARTITION, OFFSET, "log")
    assert found.subscribers == []
    assert found.routed == []
    assert "no subscription matched" in found.summary
    assert any("tables were not asked" in one for one in found.not_known)


def test_outputs_that_the_log_no_longer_has_are_not_known(api: Api, scan: TraceScan) -> None:
    gone = "outputs of rules from then are no longer in the log, if there were any"
    assert gone not in trace(api, scan).not_known
    scan.removed[OUTPUTS] = 3
    assert gone in trace(api, scan).not_known
    scan.put(OUTPUTS, at_ms=AT - 1, partition=PARTITION, offset=3)
    assert gone not in trace(api, scan).not_known


def test_client_without_a_subscription_for_it_is_not_shown(api: Api, scan: TraceScan) -> None:
    scan.subscriber("a", "other/#")
    found = trace(api, scan, "a")
    assert found.subscribers == []
    assert "no subscription of 'a' matched it when it was accepted" in found.summary
    assert "no event mentions client 'a'" not in found.not_known
    assert "no event mentions client 'b'" in trace(api, scan, "b").not_known


def test_of_every_subscriber_that_was_there_the_record_is_told(api: Api, scan: TraceScan) -> None:
    for client_id in ("acked", "delivered", "dropped", "unknown"):
        scan.subscriber(client_id)
    for name in ("acked", "delivered"):
        scan.event(f"message.{name}", name, AT + 5, id=ID.hex(), topic="plant/1", qos=1)
    scan.event("message.delivered", "acked", AT + 3, id=ID.hex(), topic="plant/1", qos=1)
    scan.event(
        "message.dropped", "dropped", AT + 900, reason="queue_full", topic="plant/1", count=3
    )
    scan.subscriber("expired", expiry=1)
    scan.event("client.disconnected", "expired", AT - 1_500)
    scan.subscriber("later")
    scan.records[EVENTS].pop()
    scan.event("session.subscribed", "later", AT + 50, filter="plant/1", qos=1)
    scan.subscriber("gone")
    scan.event("session.unsubscribed", "gone", AT - 10, filter="plant/#")
    found = trace(api, scan)
    assert outcomes(found) == {
        "acked": ("acked", "recorded"),
        "delivered": ("delivered", "recorded"),
        "dropped": ("dropped", "recorded"),
        "unknown": ("unknown", "unknown"),
    }
    (dropped,) = (one for one in found.subscribers if one.client_id == "dropped")
    assert dropped.reason == "queue_full"
    assert "3 messages" in dropped.detail


def test_sessions_say_how_far_they_are(api: Api, scan: TraceScan) -> None:
    own = subscription("plant/#", starts=None)
    places = {
        "past": progress(cursor=[0, 0, OFFSET + 1]),
        "flight": progress(cursor=[0, 0, OFFSET + 1], out=[[1, 1, PARTITION, OFFSET, 0]]),
        "behind": progress(cursor=[9, 9, OFFSET]),
        "history": progress(
            cursor=[9, 9, OFFSET + 5],
            history=[{"filters": ["plant/#"], "from": 0, "cursor": [0, 0, 3]}],
        ),
    }
    for client_id, value in places.items():
        scan.subscriber(client_id, expiry=0xFFFF_FFFF)
        api.put_session(client_id, subscriptions=[own])
        api.put(f"p/default/{client_id}", value)
    scan.subscriber("late", expiry=0xFFFF_FFFF)
    late = subscription("plant/#", starts=[0, 0, OFFSET + 1])
    api.put_session("late", subscriptions=[late])
    scan.subscriber("sensor", expiry=0xFFFF_FFFF)
    api.put_session("sensor", subscriptions=[{**own, "no_local": True}])
    api.put_session("silent", subscriptions=[own])  # no event tells of it any more
    api.put("p/default/silent", places["behind"])
    assert outcomes(trace(api, scan)) == {
        "past": ("handed_over", "recorded"),
        "flight": ("in_flight", "recorded"),
        "behind": ("waiting", "recorded"),
        "history": ("waiting", "recorded"),
        "silent": ("waiting", "recorded"),
    }


def test_gateways_are_those_whose_delivery_topic_has_it(api: Api, scan: TraceScan) -> None:
    scan.subscriber("a")
    source = encode_source(Source(PARTITION, OFFSET, AT))
    scan.put(delivery_topic("gateway-2"), b"20", [("source", source)], offset=900, at_ms=AT)
    found = trace(api, scan)
    assert [(one.gateway, one.basis, one.offset) for one in found.routed] == [
        ("gateway-2", "recorded", 900)
    ]


def test_rules_show_what_they_made_and_what_came_of_it(api: Api, scan: TraceScan) -> None:
    actions = (ActionSpec(function="republish"), ActionSpec(function="http"))
    put_rule(api, "hot", actions)
    put_rule(api, "quiet")
    position = Position("i", PARTITION, OFFSET, 0)
    output = Output("default", "hot", 1, b'{"t": 20}', position, AT, "plant/1", "sensor", ID)
    key = rule_record_key("default", "hot")
    for offset in (70, 71):  # the evaluation has repeated itself
        scan.put(
            OUTPUTS,
            output.row,
            output_headers(output),
            key=key,
            partition=PARTITION,
            offset=offset,
            at_ms=AT + 4,
        )
    letter = DeadLetter(
        "default",
        "hot",
        1,
        output.row,
        position,
        "action",
        "no route to host",
        "plant/1",
        "sensor",
        "1/http",
    )
    scan.put(DEAD_LETTERS, letter.value, dead_letter_headers(letter), key=key, at_ms=AT + 99)
    action_id = f"hot/1/{position}/0".encode()
    scan.put(
        INBOUND,
        b"20",
        [(HEADER_ID, bytes(15) + b"\x09"), (HEADER_OUTPUT, action_id)],
        key=b"default/alarm",
        at_ms=AT + 8,
    )
    checkpoint = Checkpoint({PARTITION: ReadPosition(80)}, {}, {})
    scan.put(RUNNER, encode_checkpoint(checkpoint), key=b"checkpoint")
    (hot,) = trace(api, scan).rules  # nothing is recorded of the other one
    assert (hot.rule_id, hot.version, hot.basis) == ("hot", 1, "recorded")
    (made,) = hot.outputs
    assert made.row == {"t": 20}
    assert [(one.action, one.outcome, one.basis) for one in made.actions] == [
        ("0/republish", "done", "recorded"),
        ("1/http", "failed", "recorded"),
    ]
    assert made.actions[0].message_id == "00" * 15 + "09"
    assert made.actions[1].detail == "no route to host"


def test_actions_are_done_when_the_runner_is_past_them(api: Api, scan: TraceScan) -> None:
    put_rule(api, "hot", (ActionSpec(function="http"), ActionSpec(function="table")))
    position = Position("i", PARTITION, OFFSET, 0)
    output = Output("default", "hot", 1, b"{}", position, AT, "plant/1", "sensor", ID)
    scan.put(
        OUTPUTS,
        output.row,
        output_headers(output),
        key=rule_record_key("default", "hot"),
        at_ms=AT,
        partition=PARTITION,
        offset=70,
    )
    for next_offset, outcome in ((70, "waiting"), (71, "done")):
        value = encode_checkpoint(Checkpoint({PARTITION: ReadPosition(next_offset)}, {}, {}))
        scan.put(RUNNER, value, key=b"checkpoint")
        (rule,) = trace(api, scan).rules
        (made,) = rule.outputs
        http, table = made.actions
        assert (http.outcome, http.basis) == (outcome, "recorded")
        assert (table.outcome, table.detail) == ("unknown", "the table was not read")


def test_rows_of_a_rule_are_looked_for_in_the_tenants_table() -> None:
    asked: list[str] = []

    class Connect:
        def rows(self, query: str, **_more: object) -> list[dict[str, str]]:
            asked.append(query)
            return [{"output_id": "hot/1/i:0:1:0"}]

    for tenant in ("default", "acme"):
        tables = TraceTables(Connect(), tenant)  # type: ignore[arg-type]
        assert tables.table_rows("rule_hot", "/i:0:1:") == ["hot/1/i:0:1:0"]
        assert f"FROM `{rule_table(tenant, 'rule_hot')}` WHERE tenant = " in asked[-1]


def test_whether_deliveries_are_recorded_is_told(api: Api, scan: TraceScan) -> None:
    assert not trace(api, scan).recording.acked
    put_rule(api, "watch", filters=("$events/message_acked",))
    recording = trace(api, scan).recording
    assert (recording.delivered, recording.acked) == (False, True)


def test_a_message_of_another_tenant_is_none(api: Api, scan: TraceScan) -> None:
    assert look(api, scan, tenant="other") is None


def test_an_identifier_that_is_none_is_refused(api: Api) -> None:
    answer = api.request("GET", "/messages/xyz/trace")
    assert answer.status_code == 422


def put_rule(
    api: Api,
    rule_id: str,
    actions: tuple[ActionSpec, ...] = (),
    *,
    filters: tuple[str, ...] = ("plant/+",),
) -> None:
    rule = Rule(
        id=rule_id, sql="SELECT 1 FROM 'plant/+'", actions=actions, created_at=1, updated_at=1
    )
    span = Span(
        version=1,
        filters=filters,
        expression="x",
        actions=tuple(one.model_dump() for one in actions),
        schema=None,
        sources={INBOUND: OffsetRange((0, 0, 0))},
    )
    activation = Activation("default", rule_id, "running", 1, 1, spans=(span,))
    values = {
        rules_key(RulesKey("definition", "default", rule_id)): rule.model_dump_json().encode(),
        rules_key(RulesKey("activation", "default", rule_id)): encode_activation(activation),
    }
    for key, value in values.items():
        record = Followed(RULES, next(_offsets), key, value)
        assert api.rules.take([record], is_old=False) == []


def test_over_rest_a_message_is_traced_or_unknown(api: Api, scan: TraceScan) -> None:
    path = f"/messages/{ID.hex()}/trace"
    answer = api.request("GET", path)
    assert answer.status_code == 503, "it is not in the log, and the table cannot be asked"
    api.put_in(traces=replace(api.services.traces, open_scan=lambda: scan))
    scan.subscriber("a")
    found = api.get(path)
    assert found["accepted"]["at"] == "2026-09-21T14:13:20Z"
    assert [one["client_id"] for one in found["subscribers"]] == ["a"]
    assert api.request("GET", path, params={"tenant": "other"}).status_code == 404
