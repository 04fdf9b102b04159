"""The Java rule table and evaluation: which rules, by which version, give what."""

import functools
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.testing import await_condition
from mqlake.matching import TopicFilterTrie
from mqlake.output_records import DeadLetter, Output, decode_dead_letter, decode_output
from mqlake.record_versions import NEWEST_READ, READ_VERSIONS, Headers
from mqlake.records import (
    DEAD_LETTERS,
    EVENTS,
    HEADER_PEERHOST,
    INBOUND,
    OUTPUTS,
    Message,
    message_headers,
    message_key,
)
from mqlake.rule_records import (
    MAX_FAILURES_TOLD,
    Activation,
    OffsetRange,
    Span,
    encode_activation,
    encode_decided,
)
from rules.language.compiler import compile_rule
from rules.sql.quoting import quoted

pytestmark = pytest.mark.spark

LEVELS = st.sampled_from(["a", "b", "$SYS", "ä€𝄞"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join)
FILTERS = st.one_of(
    TOPICS, TOPICS.map("{}/#".format), TOPICS.map("+/{}".format), st.just("#"), st.just("+")
)


class Event(NamedTuple):
    """An event that the engine writes."""

    key: bytes
    value: bytes
    chain: bytes


OUTPUT_PARTITIONS = 4


class Limits:
    """How large records may be; Java asks."""

    def __init__(self) -> None:
        self.most = {OUTPUTS: 64 * 1024**2, DEAD_LETTERS: 64 * 1024**2}

    def mostBytes(self, log_topic: str, _bytes: int) -> int:  # noqa: N802 - as Java calls it
        return self.most[log_topic]

    class Java:
        implements = ("mqlake.log.RecordLimits",)


class Engine:
    """A rule table, what is put into it and what it makes of records while the clock stands."""

    def __init__(self, jvm: Any, gateway: Any) -> None:
        self.limits = Limits()
        self.jvm = jvm
        # Looked up once: each name of a Java package is a call.
        self._counters = jvm.mqlake.rules.RuleCounters
        self._new_strings = functools.partial(gateway.new_array, jvm.java.lang.String)
        bytes_class = jvm.java.lang.Class.forName("[B")
        self._new_arrays = functools.partial(jvm.java.lang.reflect.Array.newInstance, bytes_class)
        self.table = jvm.mqlake.rules.RuleTable()
        self.events: list[Event] = []
        clock = jvm.java.time.Clock.fixed(jvm.java.time.Instant.now(), jvm.java.time.ZoneOffset.UTC)
        self._evaluation = jvm.mqlake.rules.RuleEvaluation(
            EVENTS, OUTPUTS, OUTPUT_PARTITIONS, DEAD_LETTERS, self.limits, clock
        )

    def activate(self, *spans: Span, rule: str = "r", tenant: str = "default") -> None:
        activation = Activation(tenant, rule, "running", 1, 1, spans=spans)
        self.table.apply(f"a/{tenant}/{rule}", encode_activation(activation))

    def publish(
        self,
        topic: str,
        payload: bytes = b"{}",
        *,
        partition: int = 0,
        offset: int = 0,
        chain: bytes = b"",
        peer_host: str = "",
        **fields: Any,
    ) -> list[Output | DeadLetter]:
        values: dict[str, Any] = {
            "qos": 1,
            "retain": False,
            "message_id": bytes(15) + b"\x7f",
            "client_id": "c",
            "received_at_ms": 5,
            "origin": "site/gateway",
        }
        message = Message("default", topic, payload, **(values | fields))
        headers = message_headers(message)
        if chain:
            headers.append(("chain", chain))
        if peer_host:
            headers.append((HEADER_PEERHOST, peer_host.encode()))
        key = message_key("default", topic)
        return self.evaluate(INBOUND, partition, offset, key, payload, headers)

    def counters(self, rule: str) -> dict[str, int]:
        """Return what a rule counts."""
        counters: dict[str, int] = json.loads(self._counters.of(f"default/{rule}").toJson())
        return counters

    def evaluate(
        self,
        log_topic: str,
        partition: int,
        offset: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
    ) -> list[Output | DeadLetter]:
        names, values = self._new_strings(len(headers)), self._new_arrays(len(headers))
        for number, (name, header) in enumerate(headers):
            names[number] = name
            values[number] = header
        made = self._evaluation.evaluate(
            self.table, log_topic, partition, offset, 5, key, value, names, values
        )
        for row in made:
            if row.get(0) == EVENTS:
                (chain,) = (bytes(header.get(1)) for header in row.get(4))
                self.events.append(Event(bytes(row.get(2)), bytes(row.get(3)), chain))
        return [self._decode(row) for row in made if row.get(0) != EVENTS]

    @staticmethod
    def _decode(row: Any) -> Output | DeadLetter:
        key, value = bytes(row.get(2)), bytes(row.get(3))
        headers = [(header.get(0), bytes(header.get(1))) for header in row.get(4)]
        if row.get(0) == OUTPUTS:
            return decode_output(key, value, headers)
        assert (row.get(0), row.get(1)) == (DEAD_LETTERS, 0)
        return decode_dead_letter(key, value, headers)


@pytest.fixture
def engine(routing_jvm: Any, routing_gateway: Any) -> Engine:
    return Engine(routing_jvm, routing_gateway)


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


def a_span(
    sql: str,
    version: int = 1,
    begin: tuple[int, ...] = (0, 0),
    end: tuple[int, ...] | None = None,
) -> Span:
    rule = compile_rule(sql)
    source = EVENTS if rule.is_events else INBOUND
    sources = {source: OffsetRange(begin, end)}
    return Span(version, rule.filters, rule.expression, (), None, sources)


def rows(made: list[Output | DeadLetter]) -> list[Any]:
    return [json.loads(one.row) for one in made if isinstance(one, Output)]


def outcomes(made: list[Output | DeadLetter]) -> list[tuple[str, Any]]:
    """Return of each what its rule counts it as, and what it says."""
    return [
        ("passed", one.row) if isinstance(one, Output) else ("failed", one.error) for one in made
    ]


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
    sleep = "array(reflect('java.lang.Thread', 'sleep', 300L))"
    idle = Span(1, ("idle",), sleep, (), None, {INBOUND: OffsetRange((0,))})
    assert evaluated(engine, "idle", idle, range(1)) < 256 * 1_000_000


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


def test_a_rule_that_throws_gives_a_dead_letter_and_others_go_on(engine: Engine) -> None:
    engine.activate(a_span('SELECT 1 / payload.zero AS x FROM "a"'), rule="bad")
    engine.activate(a_span('SELECT 1 AS x FROM "a"'), rule="good")
    broken = Span(1, ("a",), "no_such_function(1)", (), None, {INBOUND: OffsetRange((0,))})
    engine.activate(broken, rule="broken")
    made = engine.publish("a", b'{"zero": 0}', offset=9)
    assert [type(one) for one in made] == [DeadLetter, DeadLetter, Output]
    letter = made[0]
    assert isinstance(letter, DeadLetter)
    assert (letter.rule, letter.stage, letter.value) == ("bad", "evaluate", b'{"zero": 0}')
    assert (str(letter.position), letter.topic_name) == ("i:0:9:0", "a")
    assert letter.error == "division by zero"
    assert isinstance(made[1], DeadLetter)
    assert "compile" in made[1].error


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


@pytest.mark.parametrize(
    ("username", "address"), [(None, None), ("mallory", None), (None, "127.0.0.1")]
)
def test_who_makes_a_rule_fail_again_and_again_takes_it_from_nobody(
    engine: Engine, username: str | None, address: str | None
) -> None:
    """Of one publisher 10 failures a minute speak against a rule, and 1,000 are dead letters.

    So it is where all come from one address: who is well is served, and the rule goes on.
    """
    rule = f"hit-by-{username}-{address}"
    peer: dict[str, Any] = {} if address is None else {"peer_host": address}
    engine.activate(a_span('SELECT 1 / payload.n AS x FROM "a"'), rule=rule)

    def fail(number: int, client_id: str, user: str | None = username) -> list[Any]:
        who: dict[str, Any] = {"client_id": client_id, "username": user, **peer}
        made = engine.publish("a", b'{"n": 0}', offset=number, **who)
        if number % 25 == 0:
            (output,) = engine.publish("a", b'{"n": 4}', offset=number, client_id="healthy", **peer)
            assert isinstance(output, Output), "others are served as ever"
        return [one for one in made if isinstance(one, DeadLetter)]

    # With a name of his own he is one, whichever client identifiers he uses.
    letters = [
        letter
        for number in range(1_250)
        for letter in fail(number, f"c{number}" if username else "hostile")
    ]
    counts: Any = engine.counters(rule)
    assert counts["failed"] == 1_250
    assert counts["failing"]["failed"] == 10
    assert counts["failing"]["beyond"] == 1_240
    assert len(letters) == 1_002
    assert "99 more failures had none" in letters[-1].error
    for number in range(30):
        assert len(fail(number, f"another-{number}", user=None)) == 1
    counts = engine.counters(rule)
    # Many publishers do speak against it, but not more from an address that has had its share.
    assert counts["failing"]["failed"] == (40 if address is None else 10)


def test_publishers_of_a_minute_are_told_apart_up_to_a_bound(engine: Engine) -> None:
    engine.activate(a_span('SELECT 1 / payload.n AS x FROM "a"'), rule="bounded")
    for number in range(1_100):
        engine.publish("a", b'{"n": 0}', offset=number, client_id=f"c{number}")
    counts: Any = engine.counters("bounded")
    assert counts["failing"]["failed"] + counts["failing"]["beyond"] == 1_100
    assert counts["failing"]["failed"] == 1_010


def blamed(engine: Engine, rule: str) -> int:
    """Return how many failures speak against a rule."""
    counts: Any = engine.counters(rule)
    failed: int = counts["failing"]["failed"]
    assert counts["failed"] == failed + counts["failing"]["beyond"]
    return failed


@pytest.mark.parametrize(
    "address",
    [
        "203.0.113.7",
        "2001:db8:1:2::{}",  # one network of 64 bits
    ],
)
def test_names_that_cost_nothing_do_not_make_one_many(engine: Engine, address: str) -> None:
    """Where nobody logs in, one makes up names and clients; all come from where he is."""
    rule = f"names-{address}"
    engine.activate(a_span('SELECT 1 / payload.n AS x FROM "a"'), rule=rule)
    for number in range(300):
        place = address.format(number + 1)
        engine.publish(
            *("a", b'{"n": 0}'), peer_host=place, client_id=f"c{number}", username=f"u{number}"
        )
    assert blamed(engine, rule) == 50
    for number in range(30):
        engine.publish(
            "a", b'{"n": 0}', client_id=f"d{number}", peer_host=f"2001:db8:2:{number}::1"
        )
    assert blamed(engine, rule) == 80, "many who are elsewhere do speak against it"


def test_one_topic_does_not_have_a_rule_paused_for_the_others(engine: Engine) -> None:
    wide, narrow = (f"topics-{name}" for name in ("wide", "narrow"))
    engine.activate(a_span('SELECT 1 / payload.n AS x FROM "a/+"'), rule=wide)
    engine.activate(a_span('SELECT 1 / payload.n AS x FROM "a/b"'), rule=narrow)
    for number in range(300):
        engine.publish("a/b", b'{"n": 0}', offset=number, client_id=f"c{number}")
    assert blamed(engine, wide) == 50
    assert blamed(engine, narrow) == 300, "it reads no other topic"
    for number in range(30):
        engine.publish(f"a/{number}", b'{"n": 0}', client_id=f"d{number}")
    assert blamed(engine, wide) == 80


def test_clients_of_events_are_counted_by_their_addresses(engine: Engine) -> None:
    engine.activate(a_span("SELECT 1 / 0 AS x FROM '$events/client_connected'"), rule="connected")
    for number in range(300):
        peer = {"peer": f"198.51.100.1:{number}"}
        event = {"event": "client.connected", "client_id": f"c{number}", **peer}
        key = f"default/c{number}".encode()
        engine.evaluate(EVENTS, 0, number, key, json.dumps(event).encode(), [])
    assert blamed(engine, "connected") == 50


def test_dead_letters_of_all_publishers_together_are_sampled(engine: Engine) -> None:
    """A rule that is broken for all and not paused writes no dead letters for ever."""
    blame = engine.jvm.mqlake.rules.Blame()
    told = sum(blame.note(f"c{number % 20}", None, None, 0) for number in range(10_500))
    assert told == 10_005
    assert blame.note("c0", None, None, 60_000), "another minute"
    assert blame.isOfRule()


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


USED_OFTEN = 250


@pytest.fixture
def code_soon(routing_jvm: Any) -> Iterator[None]:
    """Have code made of what was evaluated nearly as often as `USED_OFTEN`, not 10,000 times."""
    lane_code = routing_jvm.java.lang.Class.forName("mqlake.rules.LaneCode")
    many = lane_code.getDeclaredField("many")
    many.setAccessible(True)
    before = many.getInt(None)
    many.setInt(None, USED_OFTEN - 50)
    yield
    many.setInt(None, before)


@pytest.mark.usefixtures("code_soon")
@pytest.mark.parametrize(
    "sql",
    [
        'SELECT *, payload.t + 1 AS t, topic(2) AS second FROM "a/+"',
        "SELECT upper(payload.name) AS name FROM 'a/+' WHERE payload.t > 2 AND clientid = 'c'",
        'FOREACH payload.items AS i DO i.v AS v INCASE i.v > 1 FROM "a/+"',
        'SELECT 1 / (payload.t - 3) AS x FROM "a/+"',
    ],
)
def test_a_rule_gives_the_same_by_the_interpreter_and_by_code(
    engine: Engine, routing_jvm: Any, sql: str
) -> None:
    engine.activate(a_span(sql))
    payloads = [
        b'{"t": %d, "name": "n%d", "items": [{"v": %d}, {"v": 2}]}' % (t, t, t) for t in range(6)
    ]
    first = [engine.publish("a/b", payload) for payload in payloads]
    assert any(rows(made) for made in first)
    for number in range(USED_OFTEN):
        engine.publish("a/b", payloads[number % len(payloads)])
    code = routing_jvm.mqlake.rules.RuleCompiler.compile(a_span(sql).expression)
    await_condition(code.isGenerated, "code for a rule that is much used")
    assert [engine.publish("a/b", payload) for payload in payloads] == first


@pytest.mark.usefixtures("code_soon")
def test_rules_that_have_conditions_in_common_give_what_each_gives_alone(
    engine: Engine, routing_jvm: Any
) -> None:
    """Parts that another rule has too are evaluated once for all, still only when one asks."""
    for number in range(6):
        condition = f"payload.t > 2 AND payload.n % 3 + 1 = {number % 3 + 1} AND qos < 2"
        select = "upper(payload.name) || '!' AS name, payload.n % 3 + 1 AS m"
        span = a_span(f'SELECT {number} AS number, {select} FROM "a" WHERE {condition}')
        engine.activate(span, rule=f"r{number}")
    for turn in range(USED_OFTEN):
        n = turn % 5
        payload = b'{"t": 3, "n": %d, "name": "n%d"}' % (n, n)
        found = rows(engine.publish("a", payload))
        wanted = [n % 3, n % 3 + 3]
        assert found == [{"number": one, "name": f"N{n}!", "m": n % 3 + 1} for one in wanted]
        assert engine.publish("a", b'{"t": 2, "n": "x"}') == [], "the first condition is false"
    last = routing_jvm.mqlake.rules.RuleCompiler.compile(span.expression)
    assert last.guardCount() >= 1, "a condition in common is a column"
    failed = engine.publish("a", b'{"t": 3, "n": "x"}')
    assert [one.rule for one in failed] == [f"r{number}" for number in range(6)]
    assert all(isinstance(one, DeadLetter) and "mod takes two" in one.error for one in failed)
    assert len(rows(engine.publish("a", b'{"t": 3, "n": 1, "name": "y"}'))) == 2


@pytest.mark.parametrize(
    ("condition", "guards"),
    [
        ("payload.kind = 'alarm'", 1),
        ("clientid = 'c' AND payload.kind = 'alarm'", 2),
        ("clientid = 'c' AND payload.t / 0 > 1 AND qos = 1", 1),
        ("payload.t / 0 > 2 AND clientid = 'c'", 0),
        ("clientid = 'c' OR qos = 1", 0),
        ("payload.t = 0", 0),
    ],
)
def test_first_conditions_that_compare_with_one_value_are_looked_at_first(
    engine: Engine, routing_jvm: Any, condition: str, guards: int
) -> None:
    span = a_span(f'SELECT 1 AS x FROM "a" WHERE {condition}')
    compiled = routing_jvm.mqlake.rules.RuleCompiler.compile(span.expression)
    assert compiled.guardCount() == guards
    engine.activate(span)
    fails = "/ 0" in condition
    for client_id in ("c", "d"):
        for payload in (
            b'{"kind": "alarm", "t": 0}',
            b'{"kind": "x", "t": -0.0}',
            b'{"t": 1}',
            b"",
        ):
            made = engine.publish("a", payload, client_id=client_id)
            fields = json.loads(payload or b"{}")
            if fails and (client_id == "c" or not guards) and "t" in fields:
                (letter,) = made
                assert isinstance(letter, DeadLetter)
                continue
            wanted = (
                ("'c'" not in condition or client_id == "c" or " OR " in condition)
                and ("kind" not in condition or fields.get("kind") == "alarm")
                and ("t = 0" not in condition or fields.get("t") == 0)
                and not fails
            )
            assert rows(made) == [{"x": 1}] * wanted


JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.floats(allow_nan=False, allow_infinity=False).map(Decimal.from_float),
    st.decimals(-1000, 1000, places=3),
    st.sampled_from([Decimal("1e400"), Decimal("-0.0"), Decimal("9007199254740993.5")]),
    st.text(max_size=5),
    st.sampled_from(["12", " 1.5 ", "NaN", "true"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["a", "v"]), st.integers(0, 3), max_size=2),
)


@pytest.fixture
def fields_both_ways(engine: Engine) -> Engine:
    """Two rules that read the same fields; Catalyst is asked where the path is computed."""
    paths = ["$.v", "$.v.a", "$.v[1]", "$['v']", "$"]
    fields = [
        f"{function}(payload_json, {{}}, '{kind}')"
        for function, kind in (
            *(("try_variant_get", kind) for kind in ("double", "bigint", "string", "int")),
            ("variant_get", "variant"),
        )
    ]
    fields.append(f"schema_of_variant({fields[-1]})")
    for rule, path_of in (
        ("constant", quoted),
        ("computed", lambda path: f"concat({quoted(path)}, left(topic, 0))"),
    ):
        columns = ", ".join(
            f"'{number}', CAST({field.format(path_of(path))} AS STRING)"
            for number, (path, field) in enumerate(product(paths, fields))
        )
        expression = f"array(to_json(named_struct({columns})))"
        engine.activate(
            Span(1, ("a",), expression, (), None, {INBOUND: OffsetRange((0, 0))}), rule=rule
        )
    return engine


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(values=st.lists(JSON_VALUES, min_size=1, max_size=8))
def test_fields_of_the_payload_are_what_catalyst_makes_of_them(
    fields_both_ways: Engine, values: list[Any]
) -> None:
    for value in values:
        text = str(value) if isinstance(value, Decimal) else json.dumps(value)
        computed, constant = fields_both_ways.publish("a", f'{{"v": {text}}}'.encode())
        assert isinstance(computed, Output)
        assert isinstance(constant, Output)
        assert constant.row == computed.row


CONDITIONS = st.lists(
    st.sampled_from(
        [
            *("payload.kind = 'a'", "payload.kind = 'b'", "payload.n % 4 + 1 = 2"),
            *("payload.n % 4 + 1 = 3", "payload.n > 1 + payload.m", "payload.m / payload.n > 0"),
            *("clientid = 'c'", "clientid = 'd'", "qos = 1", "payload.m = 1"),
        ]
    ),
    max_size=4,
    unique=True,
)
FIELDS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["a", "b", "c", None]),
        "n": st.sampled_from([0, 1, 2, 5, None, "x"]),
        "m": st.integers(0, 2),
    }
)


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    rules=st.lists(CONDITIONS, min_size=2, max_size=12),
    messages=st.lists(st.tuples(FIELDS, st.sampled_from("cd")), min_size=1, max_size=6),
)
def test_rules_at_one_filter_give_what_each_gives_alone_and_each_counts_all(
    routing_jvm: Any,
    routing_gateway: Any,
    rules: list[list[str]],
    messages: list[tuple[dict[str, Any], str]],
) -> None:
    together, alone = (Engine(routing_jvm, routing_gateway) for _ in range(2))
    run = uuid.uuid4().hex
    names = [f"{run}-{number:02}" for number in range(len(rules))]
    spans = [
        a_span(
            'SELECT payload.m AS m FROM "a"'
            + " WHERE " * bool(conditions)
            + " AND ".join(conditions)
        )
        for conditions in rules
    ]
    for name, span in zip(names, spans, strict=True):
        together.activate(span, rule=name)
    expected = {name: {"matched": 0, "passed": 0, "no_result": 0, "failed": 0} for name in names}
    for offset, (fields, client_id) in enumerate(messages):
        payload = json.dumps(fields).encode()
        made = together.publish("a", payload, client_id=client_id, offset=offset)
        by_rule: dict[str, list[tuple[str, Any]]] = {}
        for name, span in zip(names, spans, strict=True):
            alone.activate(span, rule="alone")
            # What came through a rule is evaluated by each, whatever is known of their conditions.
            by_rule[name] = outcomes(
                alone.publish("a", payload, client_id=client_id, offset=offset, chain=b"another")
            )
            (what,) = [what for what, _ in by_rule[name]] or ["no_result"]
            expected[name]["matched"] += 1
            expected[name][what] += 1
        assert [one.rule for one in made] == [name for name in names for _ in by_rule[name]]
        assert outcomes(made) == [one for name in names for one in by_rule[name]]
        if (
            offset == 2
        ):  # what was counted is given once, and also when the rules at the filter change
            together.activate(spans[0], rule=names[0])
            together.table.giveCounts()
    together.table.giveCounts()
    counted = {name: together.counters(name) for name in names}
    assert {name: {key: counted[name][key] for key in expected[name]} for name in names} == expected


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


@pytest.mark.usefixtures("code_soon")
def test_a_large_rule_is_evaluated_however_often(engine: Engine) -> None:
    fields = [f"payload.a{n} + payload.b{n} AS c{n}" for n in range(40)]
    engine.activate(a_span(f'SELECT {", ".join(fields)} FROM "a"'))
    payload = json.dumps({f"{name}{n}": n for n in range(40) for name in "ab"}).encode()
    for _ in range(USED_OFTEN):
        (row,) = rows(engine.publish("a", payload))
        assert row == {f"c{n}": 2 * n for n in range(40)}


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
                    *(last.version, last.filters, last.expression, (), None),
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


FAILING = 'SELECT 1 / payload.zero AS x FROM "a"'


def test_a_failure_is_an_event_when_a_rule_reads_it(engine: Engine) -> None:
    engine.activate(a_span(FAILING), rule="bad")
    engine.publish("a", b'{"zero": 0}')
    assert not engine.events
    engine.activate(a_span('SELECT * FROM "$events/rule_failed"'), rule="watch", tenant="other")
    engine.publish("a", b'{"zero": 0}')
    assert not engine.events
    engine.activate(a_span('SELECT * FROM "$events/rule_failed"'), rule="watch")
    (letter,) = engine.publish("a", b'{"zero": 0}', client_id='"c\\\n', chain=b"p,q")
    assert isinstance(letter, DeadLetter)
    (event,) = engine.events
    assert (event.key, event.chain) == (b'default/"c\\\n', b"p,q,bad")
    (output,) = engine.evaluate(EVENTS, 0, 1, event.key, event.value, [("chain", event.chain)])
    assert isinstance(output, Output)
    assert output.chain == ("p", "q", "bad")
    row = json.loads(output.row)
    assert row.pop("timestamp") > 0
    assert row.pop("count") >= 1
    assert row == {
        "event": "rule.failed",
        "clientid": '"c\\\n',
        "tenant": "default",
        "gateway": None,
        "rule": "bad",
        "rule_version": 1,
        "stage": "evaluate",
        "action": None,
        "error": letter.error,
        "topic": "a",
    }


def test_failures_over_failures_are_not_told(engine: Engine) -> None:
    engine.activate(a_span(FAILING), rule="bad")
    engine.activate(
        a_span('SELECT 1 / (count - count) AS x FROM "$events/rule_failed"'), rule="watch"
    )
    engine.publish("a", b'{"zero": 0}')
    event = engine.events.pop()
    made = engine.evaluate(EVENTS, 0, 1, event.key, event.value, [("chain", event.chain)])
    assert not engine.events
    assert [type(one) for one in made] == [DeadLetter]


def test_a_rule_does_not_hear_of_what_it_has_itself_brought_about(engine: Engine) -> None:
    engine.activate(a_span('SELECT clientid FROM "$events/message_delivered"'))
    engine.activate(a_span('SELECT clientid FROM "$events/message_delivered"'), rule="other")
    value = b'{"v":1,"event":"message.delivered","ts":7,"client_id":"c"}'
    made = engine.evaluate(EVENTS, 0, 3, b"default/c", value, [("chain", b"p,other")])
    assert [(type(one), one.rule) for one in made] == [(Output, "r")]


def test_failures_that_are_told_are_bounded(engine: Engine) -> None:
    engine.activate(a_span(FAILING), rule="often")
    engine.activate(a_span('SELECT * FROM "$events/rule_failed"'), rule="watch")
    for offset in range(500):
        engine.publish("a", b'{"zero": 0}', offset=offset)
    assert len(engine.events) == MAX_FAILURES_TOLD, "of one second"
    assert sum(json.loads(one.value)["count"] for one in engine.events) == MAX_FAILURES_TOLD


def test_an_output_is_in_the_trace_of_its_message(engine: Engine) -> None:
    engine.activate(a_span('SELECT 1 AS one FROM "a"'))
    key, mqtt = message_key("default", "a"), ("mqtt", b"\x01\x04\x00")
    for headers, expected in (([mqtt, ("traceparent", b"00-1-2-01")], b"00-1-2-01"), ([mqtt], b"")):
        (made,) = engine.evaluate(INBOUND, 0, 0, key, b"{}", headers)
        assert isinstance(made, Output)
        assert made.traceparent == expected
