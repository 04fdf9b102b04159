"""Rules evaluated by the interpreter, by generated code, alone and together give the same."""

import functools
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.testing.systems import await_condition
from mqlake.records.messages import INBOUND
from mqlake.records.outputs import DeadLetter, Output
from mqlake.records.rules import OffsetRange, Span
from rules.language.compiler import compile_rule
from rules.sql.quoting import quoted
from tests.rules.language.cases import read_expressions, read_statements
from tests.rules.language.evaluation import FAILED
from tests.streaming.rule_engine import Engine, a_span, outcomes, rows

pytestmark = pytest.mark.spark

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
@pytest.mark.campaign("the other tests of this file run the same code")
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


@pytest.mark.usefixtures("code_soon")
@pytest.mark.campaign("the other tests of this file run the same code")
def test_a_large_rule_is_evaluated_however_often(engine: Engine) -> None:
    fields = [f"payload.a{n} + payload.b{n} AS c{n}" for n in range(40)]
    engine.activate(a_span(f'SELECT {", ".join(fields)} FROM "a"'))
    payload = json.dumps({f"{name}{n}": n for n in range(40) for name in "ab"}).encode()
    for _ in range(USED_OFTEN):
        (row,) = rows(engine.publish("a", payload))
        assert row == {f"c{n}": 2 * n for n in range(40)}


def test_the_engine_yields_what_the_tables_of_the_language_say(engine: Engine) -> None:
    """Of all cases that read nothing but the payload: Spark evaluates the same in trials."""
    asked = 0
    compiled = functools.cache(compile_rule)
    for sql, message, wanted in (*read_expressions(), *read_statements()):
        rule = compiled(sql)
        if not all(field.name.startswith("payload") for field in rule.fields):
            continue
        source = {INBOUND: OffsetRange((0, 0))}
        engine.activate(Span(1, ("a",), rule.expression, (), None, source))
        made = engine.publish("a", message.payload)
        if wanted == FAILED:
            assert isinstance(made[0], DeadLetter), sql
        else:
            shown = f"{sql} of {message.payload!r}"
            assert json.dumps(rows(made)) == json.dumps(wanted or []), shown
        asked += 1
    assert asked > 300
