"""The rule engine seen from the log: definitions and messages in, outputs out.

Spark is killed, and followed by another one.
"""

import json
import threading
import time
from dataclasses import replace

import pytest

from launcher.testing.systems import await_condition
from mqlake.records.messages import DEAD_LETTERS, INBOUND
from mqlake.records.outputs import Output, decode_dead_letter
from rules.model import ActionSpec
from streaming.log.checkpoints import committed
from tests.integration.engine import Engine, a_rule

pytestmark = pytest.mark.system

RULES_COUNT = 20
RATE = 60
"""Messages a second."""


def expected(engine: Engine) -> set[tuple[str, int, int, int, int]]:
    """Return what every message must give: by the activations, from the log itself."""
    spans = [
        (name, span)
        for name, found in engine.activations().items()
        for span in found.spans
        if span.filters[0].startswith("load/")  # others are of other tests on this log
    ]
    wanted = set()
    for record in engine.read(INBOUND):
        if record.key().startswith(b"\0"):
            continue
        topic = record.key().decode().split("/", 1)[1]
        n = json.loads(record.value()).get("n") if topic.startswith("load/") else None
        if n is None:
            continue  # of another test on this log
        for name, span in spans:
            range_ = span.sources[INBOUND]
            begin = range_.starts[record.partition()]
            end = float("inf") if range_.ends is None else range_.ends[record.partition()]
            is_matched = topic.startswith(span.filters[0].removesuffix("#"))
            counts = begin <= record.offset() < end
            if is_matched and counts and n > 0 and n % (span.version % 3 + 1) == 0:
                wanted.add((name, span.version, record.partition(), record.offset(), n))
    return wanted


def test_every_message_is_evaluated_by_the_version_in_force_at_its_offset(engine: Engine) -> None:
    engine.define(*(a_rule(number, 1) for number in range(RULES_COUNT)))
    for number in range(RULES_COUNT):
        engine.await_state(f"rule-{number:02}", 1, "running")

    stopping = threading.Event()
    sent = 0

    def load() -> None:
        nonlocal sent
        begin = time.monotonic()
        while not stopping.is_set():
            sent += 1
            engine.publish(f"load/{sent % 4}/{sent % 7}", b'{"n": %d}' % sent, sent)
            engine.producer.poll(0)
            stopping.wait(max(0.0, begin + sent / RATE - time.monotonic()))

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for version in range(2, 5):
            for number in range(0, RULES_COUNT, version):
                engine.define(a_rule(number, version))
            engine.define(a_rule(19, version, enable=version < 4))
            if version == 3:
                engine.kill()
                checkpoint = engine.folder / "checkpoints" / "rules"
                assert committed(checkpoint) is not None, "it is noted how far it was"
                engine.start()
            if version == 4:
                engine.follow()
            for number in range(0, RULES_COUNT, version):
                engine.await_state(f"rule-{number:02}", version, "running")
    finally:
        stopping.set()
        loader.join()
    assert engine.producer.flush(30) == 0
    assert sent > 1000

    wanted = expected(engine)
    names = {f"rule-{number:02}" for number in range(RULES_COUNT)}
    outputs: list[Output] = []

    def is_complete() -> bool:
        nonlocal outputs
        outputs = [o for o in engine.outputs() if o.rule in names]
        return len(outputs) >= len(wanted)

    await_condition(is_complete, f"{len(wanted)} outputs")
    made = [
        (
            o.rule,
            o.version,
            o.position.partition,
            o.position.offset,
            json.loads(o.row)["n"],
        )
        for o in outputs
    ]
    assert len(made) == len(set(made)), "none twice"
    assert set(made) == wanted
    assert all(json.loads(o.row)["version"] == o.version for o in outputs)
    for name in names:
        engine.delete(name)


@pytest.mark.campaign("tests/streaming/test_rule_failures.py holds what a failure costs others")
def test_a_rule_that_fails_disturbs_no_other_and_is_paused(engine: Engine) -> None:
    table = ActionSpec(function="table", args={"name": "fine"})
    engine.define(
        a_rule(90, 1, sql='SELECT 1 / payload.zero AS x FROM "bad/#"'),
        a_rule(91, 1, sql='SELECT payload.zero AS zero, clientid FROM "bad/#"', actions=(table,)),
    )
    engine.await_state("rule-90", 1, "running")
    engine.await_state("rule-91", 1, "running")
    # One publisher alone fails it as often as it likes: it goes on for others.
    for number in range(300):
        engine.publish(f"bad/{number}", b'{"zero": 0}', number, "hostile")
    engine.publish("bad/good", b'{"zero": 4}', 300, "healthy")
    assert engine.producer.flush(30) == 0
    await_condition(lambda: any(o.rule == "rule-90" for o in engine.outputs()), "a good one")
    assert engine.activations()["rule-90"].state == "running"
    for number in range(300):
        engine.publish(f"bad/{number}", b'{"zero": 0}', 400 + number, f"c{number % 20}")
    assert engine.producer.flush(30) == 0
    paused = engine.await_state("rule-90", 1, "paused")
    assert paused.error is not None
    assert paused.current is None
    letters = [
        decode_dead_letter(record.key(), record.value(), record.headers())
        for record in engine.read(DEAD_LETTERS)
        if record.key() == b"default/rule-90"
    ]
    assert len(letters) >= 100
    assert letters[0].value == b'{"zero": 0}'
    fine = [o for o in engine.outputs() if o.rule == "rule-91"]
    assert len(fine) == 601
    engine.define(a_rule(90, 2, sql='SELECT payload.zero AS x FROM "bad/#"'))
    engine.await_state("rule-90", 2, "running")
    engine.delete("rule-90")
    engine.await_state("rule-90", 2, "stopped")
    engine.delete("rule-91")


def test_an_activation_that_others_have_written_is_not_put_in_force(engine: Engine) -> None:
    engine.define(a_rule(93, 1, sql='SELECT payload.n AS n FROM "forged/#"'))
    genuine = engine.await_state("rule-93", 1, "running")
    refused = engine.figures["refused_activations"]
    evil = "array(to_json(named_struct('evil', reflect('java.lang.System', 'getProperty', 'x'))))"
    spans = tuple(replace(span, expression=evil) for span in genuine.spans)
    engine.activate(replace(genuine, spans=spans), key="a key that somebody else has made up")

    await_condition(lambda: engine.figures["refused_activations"] == refused + 1, "refused")
    await_condition(lambda: engine.activations()["rule-93"] == genuine, "written over")
    engine.publish("forged/a", b'{"n": 1}')
    assert engine.producer.flush(30) == 0

    def rows() -> list[bytes]:
        return [output.row for output in engine.outputs() if output.rule == "rule-93"]

    await_condition(lambda: bool(rows()), "evaluated")
    assert rows() == [b'{"n":1}']
    engine.delete("rule-93")
    engine.await_state("rule-93", 1, "stopped")
