"""The Java rule table and evaluation: which rules, by which version, give what."""

import json
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqlake.records.messages import EVENTS, INBOUND, message_key
from mqlake.records.outputs import DeadLetter, Output
from mqlake.records.rules import OffsetRange, Span, encode_decided
from mqlake.records.versions import NEWEST_READ, READ_VERSIONS
from mqlake.topics.matching import TopicFilterTrie
from tests.streaming.rule_engine import Engine, a_span, rows

pytestmark = pytest.mark.spark

LEVELS = st.sampled_from(["a", "b", "$SYS", "ä€𝄞"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join)
FILTERS = st.one_of(
    TOPICS, TOPICS.map("{}/#".format), TOPICS.map("+/{}".format), st.just("#"), st.just("+")
)


def test_who_takes_over_counts_nothing_of_before(engine: Engine) -> None:
    """Until then another JVM counts the same messages."""
    metrics = engine.jvm.mqlake.rules.RuleMetrics
    metrics.standBeside()
    engine.activate(a_span('SELECT payload.n AS n FROM "over/#" WHERE payload.n > 1'), rule="over")
    for number in range(3):
        engine.publish("over/x", b'{"n": %d}' % number, offset=number)
    assert engine.counters("over")["matched"] == 3
    metrics.takeOver()
    assert not any(value for value in engine.counters("over").values() if isinstance(value, int))
    engine.publish("over/x", b'{"n": 7}', offset=3)
    counters = engine.counters("over")
    assert (counters["matched"], counters["passed"], counters["outputs"]) == (1, 1, 1)


def evaluated(engine: Engine, rule: str, span: Span, offsets: range) -> int:
    """Return the nanoseconds of evaluation that a rule has counted for messages at some offsets."""
    before = engine.counters(rule)["evaluation_ns"]
    engine.activate(span, rule=rule)
    for offset in offsets:
        made = engine.publish(rule, offset=offset)
        assert [one.error for one in made if isinstance(one, DeadLetter)] == []
    return engine.counters(rule)["evaluation_ns"] - before


def test_one_of_many_cheap_evaluations_is_measured_and_counts_for_all(engine: Engine) -> None:
    cheap = a_span('SELECT topic FROM "cheap"')
    assert evaluated(engine, "cheap", cheap, range(1, 9)) == 0, "none of the sample"
    measured = evaluated(engine, "cheap", cheap, range(1))
    assert measured > 0
    assert measured % 256 == 0


def test_each_costly_evaluation_is_measured(engine: Engine) -> None:
    rule = "costly-costly"
    asked = ", ".join(f"sha512(repeat(topic, {5000 - n})) AS h{n}" for n in range(50))
    costly = a_span(f'SELECT {asked} FROM "{rule}"')
    evaluated(engine, rule, costly, range(1, 2))  # none of the sample, but it is noticed
    clock = engine.jvm.java.lang.management.ManagementFactory.getThreadMXBean()
    begin = clock.getCurrentThreadCpuTime()
    measured = evaluated(engine, rule, costly, range(2, 12))
    taken = clock.getCurrentThreadCpuTime() - begin
    assert taken / 2 < measured < taken, "the rest reads and writes records"


def test_who_waits_takes_no_processor_time(engine: Engine) -> None:
    time = engine.jvm.mqlake.rules.ProcessorTime()
    begin = time.begin(0)
    engine.jvm.java.lang.Thread.sleep(300)
    time.end(0, begin)
    assert 0 < time.sum() < 256 * 1_000_000


def test_a_row_has_what_the_record_says(engine: Engine) -> None:
    engine.activate(a_span('SELECT *, payload.t + 1 AS t, topic(2) AS second FROM "a/+"'))
    properties = {"content_type": "text", "user_property": [("k", "v")]}
    (made,) = engine.publish(
        "a/b",
        b'{"t": 41}',
        partition=1,
        offset=17,
        retain=True,
        username="u",
        properties=properties,
    )
    assert isinstance(made, Output)
    assert (made.tenant, made.rule, made.version, str(made.position)) == (
        *("default", "r", 1),
        "i:1:17:0",
    )
    assert (made.topic_name, made.client_id, made.received_at_ms) == ("a/b", "c", 5)
    assert made.message_id == bytes(15) + b"\x7f"
    row = json.loads(made.row)
    assert row["t"] == 42
    assert row["second"] == "b"
    assert (row["id"], row["clientid"], row["username"]) == ("00" * 15 + "7f", "c", "u")
    assert (row["topic"], row["qos"], row["retain"], row["dup"]) == ("a/b", 1, True, False)
    assert (row["payload"], row["publish_received_at"]) == ('{"t": 41}', 5)
    assert (row["gateway"], row["tenant"], row["peerhost"]) == ("gateway", "default", None)
    assert row["pub_props"]["content_type"] == "text"


def test_an_event_is_evaluated_by_its_name(engine: Engine) -> None:
    engine.activate(a_span('SELECT clientid, reason FROM "$events/client_disconnected"'))
    engine.activate(a_span('SELECT 1 AS x FROM "#"'), rule="other")
    value = b'{"v":1,"event":"client.disconnected","ts":7,"client_id":"c","reason":"gone"}'
    (made,) = engine.evaluate(EVENTS, 0, 3, b"default/c", value, [])
    assert isinstance(made, Output)
    assert json.loads(made.row) == {"clientid": "c", "reason": "gone"}
    assert (made.topic_name, str(made.position)) == ("$events/client_disconnected", "e:0:3:0")
    for other in (b'{"v":1,"event":"client.connected"}', b"[]", b"{}", b'{"event":1}', None, b""):
        assert engine.evaluate(EVENTS, 0, 3, b"default/c", other, []) == []


def test_a_version_counts_from_its_first_offset_up_to_its_end(engine: Engine) -> None:
    engine.activate(
        a_span('SELECT 1 AS v FROM "a"', 1, (5, 50), (10, 60)),
        a_span('SELECT 2 AS v FROM "a"', 2, (10, 60)),
    )
    given_ = {
        (partition, offset): [
            row["v"] for row in rows(engine.publish("a", partition=partition, offset=offset))
        ]
        for partition in (0, 1)
        for offset in (4, 5, 9, 10, 49, 50, 59, 60)
    }
    assert given_ == {
        (0, 4): [],
        (0, 5): [1],
        (0, 9): [1],
        (0, 10): [2],
        (0, 49): [2],
        (0, 50): [2],
        (0, 59): [2],
        (0, 60): [2],
        (1, 4): [],
        (1, 5): [],
        (1, 9): [],
        (1, 10): [],
        (1, 49): [],
        (1, 50): [1],
        (1, 59): [1],
        (1, 60): [2],
    }


def test_a_rule_whose_filters_all_match_is_evaluated_once(engine: Engine) -> None:
    engine.activate(a_span('SELECT 1 AS x FROM "a/#", "+/b", "a/b"'))
    assert rows(engine.publish("a/b")) == [{"x": 1}]


def test_rules_are_evaluated_in_the_order_of_their_identifiers(engine: Engine) -> None:
    for rule, topic_filter in (("c", "a/#"), ("a", "+/b"), ("b", "a/b")):
        engine.activate(a_span(f'SELECT 1 AS x FROM "{topic_filter}"'), rule=rule)
    made = engine.publish("a/b")
    assert [one.rule for one in made] == ["a", "b", "c"]


def test_a_message_that_came_through_a_rule_does_not_come_to_it_again(engine: Engine) -> None:
    engine.activate(a_span('SELECT 1 AS x FROM "#"'))
    engine.activate(a_span('SELECT 1 AS x FROM "#"'), rule="other")
    made = {one.rule: one for one in engine.publish("a", chain=b"other,q")}
    assert isinstance(made["other"], DeadLetter)
    assert made["other"].error.startswith("loop")
    output = made["r"]
    assert isinstance(output, Output)
    assert output.chain == ("other", "q")
    long_chain = ",".join(f"rule-{number}" for number in range(16)).encode()
    assert all(isinstance(one, DeadLetter) for one in engine.publish("a", chain=long_chain))


def test_several_rows_of_a_record_are_numbered(engine: Engine) -> None:
    engine.activate(a_span('FOREACH payload.items AS i DO i.v AS v INCASE i.v > 1 FROM "a"'))
    made = engine.publish("a", b'{"items": [{"v": 1}, {"v": 2}, {"v": 3}]}')
    assert rows(made) == [{"v": 2}, {"v": 3}]
    assert [one.position.index for one in made] == [0, 1]
    assert engine.publish("a", b'{"items": []}') == []


@pytest.mark.parametrize("payload", [b"", b"no json", b"\xff\xfe", b"[1]", b"1", b'{"t": "x"}'])
def test_whatever_the_payload_a_condition_on_a_field_is_false(
    engine: Engine, payload: bytes
) -> None:
    engine.activate(a_span('SELECT 1 AS x FROM "a" WHERE payload.t > 1'))
    assert engine.publish("a", payload) == []


def test_counts_of_what_was_replaced_are_not_lost(engine: Engine) -> None:
    rule = f"replaced-{uuid.uuid4().hex}"
    for number in range(3):
        engine.activate(a_span(f'SELECT {number} AS n FROM "a" WHERE qos = 2'), rule=rule)
        for offset in range(10):
            engine.publish("a", offset=offset)
    for _ in range(4):
        engine.table.giveCounts()
    assert (engine.counters(rule)["matched"], engine.counters(rule)["no_result"]) == (30, 30)
    engine.activate(rule=rule)
    assert engine.table.isEmpty()


def test_records_of_others_give_nothing(engine: Engine) -> None:
    engine.activate(a_span('SELECT 1 AS x FROM "#"'))
    assert engine.evaluate(INBOUND, 0, 0, b"no slash", b"", []) == []
    assert engine.evaluate(INBOUND, 0, 0, b"default/a", b"", []) == []
    for version in range(NEWEST_READ + 2):
        mqtt = bytes((version, 4, 0))
        made = engine.evaluate(INBOUND, 0, 0, b"default/a", None, [("mqtt", mqtt)])
        assert rows(made) == ([{"x": 1}] if version in READ_VERSIONS else [])


def test_an_activation_of_another_form_is_refused_and_changes_nothing(engine: Engine) -> None:
    engine.activate(a_span('SELECT 1 AS x FROM "a"'))
    for value in (b"", b"{}", b"[]", b'{"spans": [{}]}', b"\xff"):
        with pytest.raises(Exception, match="Exception"):
            engine.table.apply("a/default/r", value)
    assert rows(engine.publish("a")) == [{"x": 1}]
    engine.table.apply("d/default/r", b"not ours to read")
    engine.table.apply("c", encode_decided(3))


OFFSETS = 12
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["r1", "r2", "r3"]),
        st.none() | st.lists(FILTERS, min_size=1, max_size=2, unique=True),
        st.integers(0, OFFSETS - 1),
    ),
    max_size=12,
)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(changes=CHANGES, topics=st.lists(TOPICS, min_size=OFFSETS, max_size=OFFSETS))
def test_live_and_replayed_evaluation_give_the_same(
    routing_jvm: Any, routing_gateway: Any, changes: list[Any], topics: list[str]
) -> None:
    """Records and changes in turn, live; then all records again, from any point, and a model."""
    live, replayed = (Engine(routing_jvm, routing_gateway) for _ in range(2))
    spans: dict[str, list[Span]] = {}
    trie: dict[tuple[str, int], TopicFilterTrie[bool]] = {}
    version = 0
    made_live: list[list[Any]] = []
    for offset, topic in enumerate(topics):
        for rule, filters, at in changes:
            if at != offset:
                continue
            version += 1
            before = spans.setdefault(rule, [])
            if before and before[-1].sources[INBOUND].ends is None:
                last = before[-1]
                begin = last.sources[INBOUND].starts
                before[-1] = Span(
                    last.version,
                    last.filters,
                    last.expression,
                    (),
                    None,
                    {INBOUND: OffsetRange(begin, (offset,))},
                )
            if filters is not None:
                expression = f"array(to_json(named_struct('version', {version}, 'topic', topic)))"
                sources = {INBOUND: OffsetRange((offset,))}
                before.append(Span(version, tuple(filters), expression, (), None, sources))
                trie[rule, version] = TopicFilterTrie()
                for topic_filter in filters:
                    trie[rule, version].insert(topic_filter, True)
            live.activate(*before, rule=rule)
        made_live.append(live.publish(topic, offset=offset))
    for rule, its_spans in spans.items():
        replayed.activate(*its_spans, rule=rule)
    for offset, topic in enumerate(topics):
        made = made_live[offset]
        assert replayed.publish(topic, offset=offset) == made
        assert live.publish(topic, offset=offset) == made
        modelled = [
            (rule, span.version)
            for rule, its_spans in sorted(spans.items())
            for span in its_spans
            if span.sources[INBOUND].starts[0] <= offset
            and (span.sources[INBOUND].ends is None or offset < span.sources[INBOUND].ends[0])
            and trie[rule, span.version].match(topic)
        ]
        assert [(one.rule, one.version) for one in made] == modelled
    for rule in spans:
        live.activate(rule=rule)
    assert live.table.isEmpty(), "removal prunes every level"


def test_a_rule_does_not_hear_of_what_it_has_itself_brought_about(engine: Engine) -> None:
    engine.activate(a_span('SELECT clientid FROM "$events/message_delivered"'))
    engine.activate(a_span('SELECT clientid FROM "$events/message_delivered"'), rule="other")
    value = b'{"v":1,"event":"message.delivered","ts":7,"client_id":"c"}'
    made = engine.evaluate(EVENTS, 0, 3, b"default/c", value, [("chain", b"p,other")])
    assert [(type(one), one.rule) for one in made] == [(Output, "r")]


def test_an_output_is_in_the_trace_of_its_message(engine: Engine) -> None:
    engine.activate(a_span('SELECT 1 AS one FROM "a"'))
    key, mqtt = message_key("default", "a"), ("mqtt", b"\x01\x04\x00")
    for headers, expected in (([mqtt, ("traceparent", b"00-1-2-01")], b"00-1-2-01"), ([mqtt], b"")):
        (made,) = engine.evaluate(INBOUND, 0, 0, key, b"{}", headers)
        assert isinstance(made, Output)
        assert made.traceparent == expected
