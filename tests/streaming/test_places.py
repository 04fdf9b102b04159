"""The note of what is being evaluated, as Java writes it and Python reads it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.records.outputs import DeadLetter, Output
from streaming.application.poison_file import PLACES_FILE, Poison, PoisonPlace
from tests.streaming.rule_engine import Engine, a_span

pytestmark = pytest.mark.spark


@pytest.fixture
def poison(routing_jvm: Any, tmp_path: Path) -> Iterator[Poison]:
    routing_jvm.mqlake.rules.Places.open(str(tmp_path / PLACES_FILE))
    yield Poison(tmp_path)
    routing_jvm.mqlake.rules.Places.forget()


def test_nothing_is_noted_between_records(engine: Engine, poison: Poison, tmp_path: Path) -> None:
    engine.activate(a_span('SELECT 1 AS x FROM "a"', version=7), rule="noted")
    engine.publish("a", partition=3, offset=2**40)
    assert poison.take_deaths(tmp_path / PLACES_FILE, 1) == []


def test_python_reads_what_java_has_noted(engine: Engine, poison: Poison, tmp_path: Path) -> None:
    engine.activate(a_span('SELECT 1 AS x FROM "a"', version=7, begin=(0,) * 4), rule="noted")
    engine.publish("a", partition=3, offset=2**40)
    data = bytearray((tmp_path / PLACES_FILE).read_bytes())
    (start,) = [
        place - 28 for place in range(len(data)) if data[place:].startswith(b"default/noted")
    ]
    assert data[start : start + 4] == bytes(4)
    data[start + 3] = 1  # as it is while the record is evaluated
    (tmp_path / PLACES_FILE).write_bytes(data)
    (entry,) = poison.take_deaths(tmp_path / PLACES_FILE, 1)
    assert (entry.place, entry.version) == (PoisonPlace("default", "noted", "i", 3, 2**40), 7)


def test_a_skipped_place_is_a_dead_letter_and_the_next_record_is_evaluated(
    engine: Engine, poison: Poison, routing_jvm: Any
) -> None:
    engine.activate(a_span('SELECT 1 AS x FROM "a"'), rule="skipped")
    engine.activate(a_span('SELECT 1 AS x FROM "a"'), rule="unharmed")
    routing_jvm.mqlake.rules.Places.skip("default/skipped i:0:17")
    letter, output = engine.publish("a", b"payload", offset=17)
    assert isinstance(letter, DeadLetter)
    assert (letter.rule, letter.value) == ("skipped", b"payload")
    assert letter.error.startswith("passed over: the engine has ended")
    assert isinstance(output, Output)
    assert len(engine.publish("a", offset=18)) == 2
    routing_jvm.mqlake.rules.Places.forget()
    assert all(isinstance(one, Output) for one in engine.publish("a", offset=17))
