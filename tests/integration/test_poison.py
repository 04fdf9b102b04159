"""A message that ends the engine is evaluated twice and not a third time; real log, real Spark."""

import struct
from dataclasses import replace

import pytest

from launcher.testing.systems import await_condition
from mqlake.records.messages import DEAD_LETTERS, INBOUND, message_key
from mqlake.records.outputs import DeadLetter, decode_dead_letter
from streaming.application.poison_file import Poison
from tests.integration.engine import Engine, a_rule

pytestmark = [
    pytest.mark.campaign(
        "tests/streaming/test_poison_guard.py and test_poison_file.py hold what is decided"
    ),
    pytest.mark.system,
    pytest.mark.timeout(700),
]

# No rule can be written that ends the engine; if there were one, it would look so. It searches for
# years in the middle of its evaluation, and there the engine is killed.
STUCK = (
    "IF(CAST(payload AS STRING) = 'poison', "
    "CAST(concat(CAST(payload AS STRING), repeat('x', 60)) RLIKE '(x+x+)+\\\\1y' AS STRING), "
    "to_json(named_struct('x', CAST(payload AS STRING))))"
)


def make_stuck(engine: Engine, rule: str, topic: str) -> None:
    """Replace what the engine has in force for a rule by an expression that does not end."""
    activation = engine.await_state(rule, 1, "running")
    spans = tuple(replace(span, expression=f"array({STUCK})") for span in activation.spans)
    engine.activate(replace(activation, spans=spans))

    def is_in_force() -> bool:
        engine.publish(topic, b"probe")
        assert engine.producer.flush(30) == 0
        return b'{"x":"probe"}' in rows(engine, rule)

    await_condition(is_in_force, f"{rule} is replaced")


def await_stuck(engine: Engine, rule: str, topic: str) -> None:
    """Wait until the engine has noted that it evaluates a rule on the message `poison`."""
    key = message_key("default", topic)
    (record,) = (
        record
        for record in engine.read(INBOUND)
        if record.key() == key and record.value() == b"poison"
    )
    begin = struct.pack(">iiq", 1, record.partition(), record.offset())

    def is_noted() -> bool:
        data = b"".join(places.read_bytes() for places in engine.places)
        slots = [data[start : start + 256] for start in range(0, len(data), 256)]
        return any(slot.startswith(begin) and f"/{rule}".encode() in slot for slot in slots)

    await_condition(is_noted, f"{rule} is evaluated")


def letters(engine: Engine, rule: str) -> list[DeadLetter]:
    return [
        decode_dead_letter(record.key(), record.value(), record.headers())
        for record in engine.read(DEAD_LETTERS)
        if record.key() == f"default/{rule}".encode()
    ]


def rows(engine: Engine, rule: str) -> set[bytes]:
    return {output.row for output in engine.outputs() if output.rule == rule}


def test_what_ends_the_engine_twice_is_skipped_and_its_rule_is_paused(engine: Engine) -> None:
    engine.define(a_rule(61, 1, sql='SELECT 1 AS x FROM "poison/1"'))
    make_stuck(engine, "rule-61", "poison/1")
    engine.publish("poison/1", b"poison", 1)
    engine.publish("poison/1", b"fine", 2)
    assert engine.producer.flush(30) == 0
    for _ in range(2):
        await_stuck(engine, "rule-61", "poison/1")
        engine.kill()
        engine.start()
    paused = engine.await_state("rule-61", 1, "paused")
    assert "the engine ended 2 times" in str(paused.error)
    await_condition(lambda: b'{"x":"fine"}' in rows(engine, "rule-61"), "the next message")
    await_condition(lambda: len(letters(engine, "rule-61")) > 0, "the dead letter")
    letter = letters(engine, "rule-61")[0]
    assert letter.value == b"poison"
    assert letter.error.startswith("passed over: the engine has ended")
    (deaths,) = [
        entry.deaths for entry in Poison(engine.folder).skipped() if entry.place.rule == "rule-61"
    ]
    assert deaths == 2
    engine.delete("rule-61")


def test_a_deleted_rule_is_out_of_force_for_what_is_evaluated_again(engine: Engine) -> None:
    engine.define(
        a_rule(62, 1, sql='SELECT 1 AS x FROM "poison/2"'),
        a_rule(63, 1, sql='SELECT payload AS y FROM "poison/2"'),
    )
    engine.await_state("rule-63", 1, "running")
    make_stuck(engine, "rule-62", "poison/2")
    engine.publish("poison/2", b"poison", 1)
    assert engine.producer.flush(30) == 0
    await_stuck(engine, "rule-62", "poison/2")
    engine.delete("rule-62")
    engine.kill()
    engine.start()
    await_condition(lambda: b'{"y":"poison"}' in rows(engine, "rule-63"), "the other rule")
    (deaths,) = [
        entry.deaths for entry in Poison(engine.folder).entries() if entry.place.rule == "rule-62"
    ]
    assert deaths == 1
    engine.await_state("rule-62", 1, "stopped")
    engine.delete("rule-63")
