"""What a rule may make of one message, and a payload when it is decoded: counted before it is made.

The JVM of these tests has 256 MB: what is not bounded ends it.
"""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError

from mqlake.records.messages import DEAD_LETTERS, OUTPUTS
from mqlake.records.outputs import DeadLetter, Output
from rules.schemas.errors import SchemaError
from rules.schemas.model import SPARKPLUG_B, SchemaBody
from rules.schemas.registry import NO_SCHEMAS, compile_schema
from tests.streaming.decoding import decode, schemas
from tests.streaming.rule_engine import Engine, a_span, rows

pytestmark = [pytest.mark.promise, pytest.mark.spark]

MEGABYTE = 1_000_000
BUDGET = 32 * 1024 * 1024
LARGE = b"a" * MEGABYTE


def errors(made: list[Output | DeadLetter]) -> list[str]:
    return [one.error for one in made if isinstance(one, DeadLetter)]


def many(item: str, times: int) -> str:
    return ", ".join([item] * times)


CONCATENATED = (
    f'SELECT concat({many("payload", 100)}) AS a, concat({many("a", 10)}) AS b FROM "one/x"'
)


def test_a_rule_that_concatenates_a_large_payload_fails_for_that_message_alone(
    engine: Engine,
) -> None:
    engine.activate(a_span(CONCATENATED))
    for _ in range(2):
        (letter,) = engine.publish("one/x", LARGE)
        assert isinstance(letter, DeadLetter)
        assert letter.stage == "evaluate"
        assert letter.error.startswith(
            "concat brings the values that the rule makes of this message to 34"
        )
        assert letter.error.endswith(f"{BUDGET} are allowed")
        assert letter.value == LARGE
    (output,) = engine.publish("one/x", b"ab")
    assert rows([output]) == [{"a": "ab" * 100, "b": "ab" * 1000}]


@pytest.mark.parametrize(
    "expression",
    [
        f"concat_ws(payload, {many('payload', 99)})",
        f"concat_ws('', {many('payload', 99)})",
        f"join_to_string(payload, split(topic || '{'/' * 60}', '/'))",
        "replace(replace(payload, 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa')",
        "regex_replace(regex_replace(payload, 'a', 'bbbbbbbb'), 'b', 'cccccccccc')",
        "base64_encode(" * 12 + "payload" + ")" * 12,
        f"sprintf('{'~s' * 99}', {many('payload', 99)})",
    ],
)
def test_what_makes_text_longer_is_counted(engine: Engine, expression: str) -> None:
    engine.activate(a_span(f'SELECT {expression} AS x FROM "a"'))
    (letter,) = engine.publish("a", LARGE)
    assert isinstance(letter, DeadLetter)
    engine.publish("a", b"a")


def test_a_row_that_repeats_the_payload_is_counted(engine: Engine) -> None:
    columns = ", ".join(f"payload AS a{number}" for number in range(40))
    engine.activate(a_span(f'SELECT {columns} FROM "a"'))
    (letter,) = engine.publish("a", LARGE)
    assert errors([letter])[0].startswith(
        "to_json brings the values that the rule makes of this message to "
    )
    (row,) = rows(engine.publish("a", b"x"))
    assert len(row) == 40


def test_a_row_is_counted_as_it_is_written(engine: Engine) -> None:
    columns = ", ".join(f"payload AS a{number}" for number in range(6))
    engine.activate(a_span(f'SELECT {columns} FROM "a"'))
    assert len(rows(engine.publish("a", LARGE))) == 1
    (letter,) = engine.publish("a", b"\x01" * MEGABYTE)
    assert "to_json" in errors([letter])[0]


def test_a_row_of_objects_is_counted(engine: Engine) -> None:
    columns = ", ".join(f"payload.x AS a{number}" for number in range(40))
    engine.activate(a_span(f'SELECT {columns} FROM "a"'))
    payload = json.dumps({"x": [{"name": "n" * 10, "b": [1, 2.5]}] * 20_000}).encode()
    (letter,) = engine.publish("a", payload)
    assert "to_json" in errors([letter])[0]


def test_the_rows_of_a_message_are_counted_together(engine: Engine) -> None:
    engine.activate(a_span('FOREACH payload.x AS e DO concat(e, e, e) AS y FROM "a"'))
    payload = json.dumps({"x": ["e" * 4_000] * 250}).encode()
    assert len(rows(engine.publish("a", payload))) == 250
    engine.activate(a_span(f'FOREACH payload.x AS e DO concat({many("e", 40)}) AS y FROM "a"'))
    (letter,) = engine.publish("a", payload)
    assert isinstance(letter, DeadLetter)


def test_all_rules_together_write_what_one_row_of_spark_holds(engine: Engine) -> None:
    columns = ", ".join(f"payload AS a{number}" for number in range(7))
    for number in range(12):
        engine.activate(a_span(f'SELECT {columns} FROM "a"'), rule=f"r{number}")
    made = engine.publish("a", LARGE)
    letters = errors(made)
    assert len(made) == 12
    assert len(letters) == 8
    assert all("the outputs of all rules for this message have" in one for one in letters)


def test_dead_letters_of_many_rules_leave_the_payload_out(engine: Engine) -> None:
    for number in range(100):
        engine.activate(a_span('SELECT payload.x + 1 AS y FROM "a"'), rule=f"r{number}")
    made = engine.publish("a", b'{"x": "' + LARGE + b'"}')
    letters = [one for one in made if isinstance(one, DeadLetter)]
    assert len(letters) == 100
    assert sum(len(one.value) for one in letters) <= BUDGET
    assert "is left out" in letters[-1].error


def test_numbers_count_as_they_are_written(engine: Engine) -> None:
    engine.activate(a_span('SELECT payload.x AS x, topic FROM "a"'))
    payload = json.dumps({"x": [1, -20, True, None] * 60_000}, separators=(",", ":")).encode()
    (row,) = rows(engine.publish("a", payload))
    assert row["x"] == [1, -20, True, None] * 60_000


def test_an_ordinary_rule_is_not_refused(engine: Engine) -> None:
    engine.activate(a_span('SELECT *, concat(topic, payload) AS x FROM "a"'))
    (row,) = rows(engine.publish("a", LARGE))
    assert row["x"] == "a" + LARGE.decode()


# Decoders


def failure(jvm: Any, body: SchemaBody, payload: bytes) -> str:
    with pytest.raises(Py4JJavaError) as caught:
        decode(jvm, schemas(s=body), "s", payload)
    return str(caught.value.java_exception.getMessage())


def test_a_scale_that_nobody_writes_out_is_refused_at_registration() -> None:
    for kind in ({"type": "bytes"}, {"type": "fixed", "name": "F", "size": 2}):
        source = {**kind, "logicalType": "decimal", "precision": 4, "scale": 2_000_000_000}
        with pytest.raises(SchemaError, match=r"scale of .* is 2000000000, at most 38"):
            compile_schema(SchemaBody(type="avro", source=json.dumps(source)))


def test_a_scale_of_an_older_registration_is_not_written_out(
    routing_jvm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rules.schemas.avro.MAX_SCALE", 2**31)
    source = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2_000_000_000}
    body = SchemaBody(type="avro", source=json.dumps(source))
    found = failure(routing_jvm, body, b"\x02\x01")
    assert "a decimal has a scale of 2000000000" in found


def test_a_decimal_of_a_megabyte_is_refused(routing_jvm: Any) -> None:
    source = {"type": "fixed", "name": "F", "size": 60_000, "logicalType": "decimal", "scale": 2}
    body = SchemaBody(type="avro", source=json.dumps(source))
    assert "60000 bytes" in failure(routing_jvm, body, b"\x01" * 60_000)


@pytest.mark.parametrize("label", ["", "optional "])
@pytest.mark.parametrize("fields", [300, 400])
def test_messages_that_say_nothing_count_for_their_fields(
    routing_jvm: Any, fields: int, label: str
) -> None:
    inner = " ".join(f"{label}int32 f{number} = {number + 1};" for number in range(fields))
    source = f'syntax = "proto3"; message M {{repeated R r = 1;}} message R {{{inner}}}'
    body = SchemaBody(type="protobuf", source=source, message_type="M")
    found = failure(routing_jvm, body, b"\x0a\x00" * 500_000)
    assert "when it is decoded" in found


def test_long_names_count_wherever_they_are_written(routing_jvm: Any) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "n" * 1000, "type": "null"}]}
    body = SchemaBody(type="avro", source=json.dumps({"type": "array", "items": record}))
    # A block of 500,000 records without a byte each.
    found = failure(routing_jvm, body, b"\xc0\x84\x3d\x00")
    assert "when it is decoded" in found


BOMBS = {
    "avro": SchemaBody(
        type="avro",
        source=json.dumps(
            {
                "type": "record",
                "name": "R",
                "fields": [
                    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "scale": 38}},
                    {"name": "a", "type": {"type": "array", "items": "null"}},
                    {"name": "m", "type": {"type": "map", "values": ["null", "R"]}},
                    {"name": "r", "type": {"type": "array", "items": "R"}},
                ],
            }
        ),
    ),
    "protobuf": SchemaBody(
        type="protobuf",
        source='syntax = "proto3"; message M {repeated M m = 1; map<string, M> n = 2;'
        " repeated int32 i = 3; bytes b = 4; "
        + " ".join(f"double d{number} = {number};" for number in range(5, 300))
        + "}",
        message_type="M",
    ),
}
KNOWN = schemas(**BOMBS)
PIECES = st.lists(
    st.one_of(
        st.binary(max_size=8),
        st.tuples(st.binary(min_size=1, max_size=4), st.integers(1, 200_000)).map(
            lambda part: part[0] * part[1]
        ),
    ),
    max_size=6,
).map(b"".join)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(kind=st.sampled_from([*BOMBS, SPARKPLUG_B]), payload=PIECES)
def test_no_payload_takes_more_than_its_budget(routing_jvm: Any, kind: str, payload: bytes) -> None:
    payload = payload[:MEGABYTE]
    # The only error there is; anything else, and the end of the JVM, is another one here.
    with suppress(Py4JJavaError):
        found = decode(routing_jvm, NO_SCHEMAS if kind == SPARKPLUG_B else KNOWN, kind, payload)
        assert len(json.dumps(found)) < 4 * 64 * 1024 * 1024
    assert decode(routing_jvm, KNOWN, "protobuf", b"\x18\x01")["i"] == [1]


def test_an_output_that_the_log_does_not_take_is_a_dead_letter(engine: Engine) -> None:
    engine.limits.most[OUTPUTS] = 2 * MEGABYTE
    engine.activate(a_span('SELECT concat(payload, payload) AS a FROM "large/x"'))
    (letter,) = engine.publish("large/x", LARGE)
    assert isinstance(letter, DeadLetter)
    assert letter.error.startswith("output 0 has 2000")
    assert letter.error.endswith(f" bytes, {OUTPUTS} takes {2 * MEGABYTE}")
    assert letter.value == LARGE
    # A letter that is too large goes without what it is about.
    engine.limits.most[DEAD_LETTERS] = MEGABYTE
    (letter,) = engine.publish("large/x", LARGE)
    assert isinstance(letter, DeadLetter)
    assert letter.value == b""
    assert letter.error.endswith(
        f"(the payload of {MEGABYTE} bytes is left out: {DEAD_LETTERS} takes {MEGABYTE})"
    )
    (output,) = engine.publish("large/x", b"ab")
    assert rows([output]) == [{"a": "abab"}]
