"""What a rule that fails writes, and against whom its failures speak."""

import json
from typing import Any

import pytest

from mqlake.records.messages import EVENTS, INBOUND
from mqlake.records.outputs import DeadLetter, Output
from mqlake.records.rules import MAX_FAILURES_TOLD, OffsetRange, Span
from tests.streaming.rule_engine import Engine, a_span

pytestmark = pytest.mark.spark


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


@pytest.mark.campaign("the other tests of this file count failures the same way")
@pytest.mark.campaign("the other tests of this file count failures the same way")
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
@pytest.mark.campaign("the other tests of this file count failures the same way")
@pytest.mark.campaign("the other tests of this file count failures the same way")
def test_names_that_cost_nothing_do_not_make_one_many(engine: Engine, address: str) -> None:
    """Where nobody logs in, one makes up names and clients; all come from where he is."""
    rule = f"names-{address}"
    engine.activate(a_span('SELECT 1 / payload.n AS x FROM "a"'), rule=rule)
    for number in range(300):
        place = address.format(number + 1)
        engine.publish(
            "a", b'{"n": 0}', peer_host=place, client_id=f"c{number}", username=f"u{number}"
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


@pytest.mark.campaign("the other tests of this file count failures the same way")
@pytest.mark.campaign("the other tests of this file count failures the same way")
def test_clients_of_events_are_counted_by_their_addresses(engine: Engine) -> None:
    engine.activate(a_span("SELECT 1 / 0 AS x FROM '$events/client_connected'"), rule="connected")
    for number in range(300):
        peer = {"peer": f"198.51.100.1:{number}"}
        event = {"event": "client.connected", "client_id": f"c{number}", **peer}
        key = f"default/c{number}".encode()
        engine.evaluate(EVENTS, 0, number, key, json.dumps(event).encode(), [])
    assert blamed(engine, "connected") == 50


@pytest.mark.campaign("the other tests of this file count failures the same way")
@pytest.mark.campaign("the other tests of this file count failures the same way")
def test_dead_letters_of_all_publishers_together_are_sampled(engine: Engine) -> None:
    """A rule that is broken for all and not paused writes no dead letters for ever."""
    blame = engine.jvm.mqlake.rules.Blame()
    told = sum(blame.note(f"c{number % 20}", None, None, 0) for number in range(10_500))
    assert told == 10_005
    assert blame.note("c0", None, None, 60_000), "another minute"
    assert blame.isOfRule()


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


@pytest.mark.campaign("the other tests of this file count failures the same way")
@pytest.mark.campaign("the other tests of this file count failures the same way")
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


@pytest.mark.campaign("the other tests of this file count failures the same way")
@pytest.mark.campaign("the other tests of this file count failures the same way")
def test_failures_that_are_told_are_bounded(engine: Engine) -> None:
    engine.activate(a_span(FAILING), rule="often")
    engine.activate(a_span('SELECT * FROM "$events/rule_failed"'), rule="watch")
    for offset in range(500):
        engine.publish("a", b'{"zero": 0}', offset=offset)
    assert len(engine.events) == MAX_FAILURES_TOLD, "of one second"
    assert sum(json.loads(one.value)["count"] for one in engine.events) == MAX_FAILURES_TOLD
