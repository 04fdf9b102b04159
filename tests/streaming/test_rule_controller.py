"""The controller on a log in memory: what it writes, and what it does after it was killed."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import EVENTS, INBOUND
from mqlake.records.outputs import run_name
from mqlake.records.rules import (
    DECIDED_KEY,
    Activation,
    LeftUnread,
    OffsetRange,
    RulesKey,
    Span,
    decode_activation,
    decode_decided,
    encode_activation,
    encode_decided,
    rules_key,
)
from streaming.rules.changes import first_needed, withdrawn
from streaming.rules.controller import KEPT_SECONDS, TIDY_SECONDS, RuleController
from tests.streaming.rule_control import (
    MemoryLog,
    a_controller,
    put_schema,
    report,
    step_that_fails,
)


def test_many_rules_share_one_change() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    controller.step()
    assert controller.first is None
    for number in range(500):
        log.define(f"r{number}", 1)
    controller.step()
    assert log.barriers() == [1, 2], "one when it began, one for all rules"
    found = log.activations()
    assert len(found) == 500
    assert {one.state for one in found.values()} == {"running"}
    assert {one.change for one in found.values()} == {2}
    assert log.rules[-1][0] == DECIDED_KEY
    assert log.decided() == [1, 2]
    assert controller.first == {INBOUND: {0: 1, 1: 1}, EVENTS: {0: 1}}
    controller.step()
    assert len(log.barriers()) == 2, "nothing more to do"


def test_a_new_version_begins_where_the_old_one_ends() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1)
    controller.step()
    for partition in log.inbound:
        partition.append(b"default/a")
    log.define("r", 2)
    controller.step()
    (found,) = log.activations().values()
    old, new = found.spans
    assert (found.state, found.version, old.version, new.version) == ("running", 2, 1, 2)
    assert old.sources[INBOUND].ends == new.sources[INBOUND].starts == (3, 3)
    assert new.sources[INBOUND].ends is None


@pytest.mark.parametrize(
    ("change", "state"),
    [({"enable": False}, "stopped"), ({"sql": "bad"}, "failed"), ({"sql": "events"}, "running")],
)
def test_what_becomes_of_a_rule_that_ran(change: dict[str, Any], state: str) -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1)
    controller.step()
    log.define("r", 2, **change)
    controller.step()
    found = log.activations()["r"]
    assert (found.state, found.version, found.spans[0].is_ended) == (state, 2, True)
    assert (found.error is not None) == (state == "failed")
    assert [list(span.sources) for span in found.spans[1:]] == (
        [[EVENTS]] if state == "running" else []
    )
    log.define("r", 3)
    controller.step()
    assert log.activations()["r"].state == "running"


def test_a_rule_that_the_compiler_breaks_on_keeps_no_other_back() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("broken", 1, sql="breaks")
    log.define("fine", 1)
    controller.step()
    assert {name: found.state for name, found in log.activations().items()} == {
        "broken": "failed",
        "fine": "running",
    }


def test_a_rule_that_is_deleted_and_made_again_runs() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1)
    controller.step()
    log.delete("r")
    log.define("r", 1, sql="other", updated_at=99)
    controller.step()
    found = log.activations()["r"]
    assert [span.filters for span in found.spans] == [("good",), ("other",)]
    log.delete("r")
    controller.step()
    assert log.activations()["r"].state == "stopped"


def test_records_of_another_form_stop_nothing() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    for key in (b"d/default/x", b"a/default/x", b"c", b"\xff", b""):
        log.rules.append((key, b"{"))
    log.define("r", 1)
    controller.step()
    key, value = log.rules[-2]
    assert key == b"a/default/r"
    assert decode_activation(value or b"").state == "running"


def test_ended_versions_are_forgotten_when_nothing_comes_back_to_them() -> None:
    log, clock = MemoryLog(), ManualClock()
    done: dict[str, dict[int, int]] = {}
    controller = a_controller(log, clock, done=lambda: done)
    log.define("r", 1)
    log.define("gone", 1)
    controller.step()
    log.define("r", 2)
    log.delete("gone")
    controller.step()
    clock.advance(KEPT_SECONDS + TIDY_SECONDS)
    controller.step()
    assert len(log.activations()["r"].spans) == 2, "the evaluation may come back"
    done[INBOUND] = {0: 100, 1: 100}
    clock.advance(TIDY_SECONDS)
    controller.step()
    assert [span.version for span in log.activations()["r"].spans] == [2]
    assert "gone" not in log.activations()


def stop(log: MemoryLog, controller: RuleController, how: str) -> None:
    if how == "paused":
        report(log, 120, 120)
    else:
        log.define("r", 2, enable=how != "stopped", sql="bad" if how == "failed" else "good")
    controller.step()
    assert log.activations()["r"].state == how


@pytest.mark.parametrize("how", ["paused", "stopped", "failed"])
def test_a_rule_that_begins_again_knows_where_it_had_stopped(how: str) -> None:
    log, clock = MemoryLog(), ManualClock()
    done = {INBOUND: {0: 100, 1: 100}, EVENTS: {0: 100}}
    controller = a_controller(log, clock, done=lambda: done)
    log.define("r", 1)
    controller.step()
    stop(log, controller, how)
    ends = log.activations()["r"].spans[-1].sources[INBOUND].ends
    clock.advance(10 * KEPT_SECONDS)
    controller.step()
    log.define("other", 1)
    a_controller(log, clock, done=lambda: done).step()  # and another one, that was started since
    controller.step()
    log.define("r", 3)
    controller.step()
    current = log.activations()["r"].current
    assert current is not None
    assert current.missed == {INBOUND: ends}
    assert ends is not None
    assert ends < current.sources[INBOUND].starts
    log.define("r", 4)
    controller.step()
    current = log.activations()["r"].current
    assert current is not None
    assert current.missed is None, "from one version to the next nothing is missed"


def test_where_a_rule_has_stopped_is_nothing_to_be_evaluated() -> None:
    """However long ago, and whatever is known of how far the evaluation has come."""
    log, clock = MemoryLog(), ManualClock()
    done: dict[str, dict[int, int]] = {INBOUND: {0: 100, 1: 100}, EVENTS: {0: 100}}
    controller = a_controller(log, clock, done=lambda: done)
    log.define("r", 1)
    controller.step()
    stop(log, controller, "paused")
    ends = log.activations()["r"].spans[-1].sources[INBOUND].ends
    clock.advance(10 * KEPT_SECONDS)
    controller.step()
    (span,) = log.activations()["r"].spans
    assert span.is_empty
    later = a_controller(log, clock)  # its checkpoint was forgotten
    later.step()
    later.step()
    assert later.first is None
    log.define("r", 3)
    later.step()
    current = log.activations()["r"].current
    assert current is not None
    assert current.missed == {INBOUND: ends}


def test_a_rule_with_memory_that_has_stopped_leaves_no_version() -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock, is_run_ended=lambda _name: True)
    log.define("r", 1, sql="memory")
    controller.step()
    log.define("r", 2, sql="memory", enable=False)
    controller.step()
    clock.advance(10 * KEPT_SECONDS)
    controller.step()
    assert log.activations()["r"].spans == ()


def test_a_rule_made_again_has_missed_nothing() -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock)
    log.define("r", 1)
    controller.step()
    stop(log, controller, "paused")
    log.delete("r")
    controller.step()
    log.define("r", 2, created_at=2, updated_at=2)
    controller.step()
    current = log.activations()["r"].current
    assert current is not None
    assert current.missed is None


def test_what_was_missed_stays_known_when_a_schema_changes() -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock)
    put_schema(log, 1)
    log.define("r", 1, sql="decode boiler")
    controller.step()
    stop(log, controller, "paused")
    log.define("r", 2, sql="decode boiler")
    controller.step()
    before = log.activations()["r"].current
    put_schema(log, 2)
    controller.step()
    after = log.activations()["r"].current
    assert before is not None
    assert after is not None
    assert after.change > before.change
    assert after.missed == before.missed is not None


def test_there_is_nothing_to_evaluate_once_all_versions_have_ended_and_are_passed() -> None:
    log = MemoryLog()
    done: dict[str, dict[int, int]] = {}
    controller = a_controller(log, done=lambda: done)
    log.define("r", 1)
    controller.step()
    log.define("r", 2, enable=False)
    controller.step()
    assert controller.first is not None
    done[INBOUND] = {0: 2, 1: 1}
    controller.step()
    assert controller.first is not None
    done[INBOUND] = {0: 2, 1: 2}
    controller.step()
    assert controller.first is None
    assert first_needed({}, None, {}) is None


def test_partitions_that_have_come_since_a_version_began_are_its_own_from_their_beginning() -> None:
    span = Span(1, ("a",), "x", (), None, {INBOUND: OffsetRange((5, 7))})
    active = Activation("default", "r", "running", 1, 2, spans=(span,))
    ends = {INBOUND: (9, 9, 9, 9)}
    assert first_needed({("default", "r"): active}, None, ends) == {
        INBOUND: {0: 5, 1: 7, 2: 0, 3: 0}
    }
    (cut,) = withdrawn(active, {INBOUND: {0: 6, 1: 6, 2: 4}}, 3).spans
    assert cut.sources == {INBOUND: OffsetRange((5, 7), (6, 7, 4))}
    ended = replace(
        active, spans=(replace(span, sources={INBOUND: OffsetRange((5, 7), (9, 9, 3, 1))}),)
    )
    (cut,) = withdrawn(ended, {INBOUND: {0: 6, 1: 6, 2: 4}}, 3).spans
    assert cut.sources == {INBOUND: OffsetRange((5, 7), (6, 7, 3, 0))}


def test_a_rule_with_memory_is_a_run_from_one_change_to_the_next() -> None:
    log, clock = MemoryLog(), ManualClock()
    ended: set[str] = set()
    controller = a_controller(log, clock, is_run_ended=ended.__contains__)
    assert controller.runs is None
    log.define("r", 1, sql="memory")
    controller.step()
    assert controller.first is None, "it has a query of its own"
    assert controller.runs is not None
    (run,) = controller.runs
    assert (run.name, run.span.change) == (run_name("default", "r", 2), 2)
    assert run.span.sources.keys() == {INBOUND, EVENTS}
    log.define("r", 2, sql="memory")
    controller.step()
    old, new = controller.runs
    assert (old.name, old.span.ended_at_ms) == (run.name, clock.now_ms())
    assert (new.span.change, new.span.is_ended) == (3, False)
    clock.advance(KEPT_SECONDS + TIDY_SECONDS)
    controller.step()
    assert len(controller.runs) == 2, "its last windows are still to come"
    ended.add(old.name)
    clock.advance(TIDY_SECONDS)
    controller.step()
    assert controller.runs == (new,)
    assert a_controller(log, clock).runs is None
    again = a_controller(log, clock)
    again.step()
    assert again.runs == (new,)


def test_a_run_that_fails_pauses_its_rule_if_it_is_still_in_force() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, sql="memory")
    controller.step()
    assert controller.runs is not None
    (run,) = controller.runs
    log.define("r", 2, sql="memory")
    controller.step()
    controller.pause(run, "of the version before")
    controller.step()
    assert log.activations()["r"].state == "running"
    controller.pause(controller.runs[-1], "why")
    controller.step()
    found = log.activations()["r"]
    assert (found.state, found.error, found.current) == ("paused", "why", None)


def test_a_version_on_which_the_engine_ended_is_paused_while_it_is_in_force() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 2)
    controller.pause_version(("default", "r"), 2, "too early")
    controller.step()
    controller.pause_version(("default", "r"), 1, "of the version before")
    controller.step()
    assert log.activations()["r"].state == "running"
    for _ in range(2):
        controller.pause_version(("default", "r"), 2, "why")
    controller.step()
    controller.pause_version(("default", "r"), 2, "again")
    controller.step()
    found = log.activations()["r"]
    assert (found.state, found.error, found.current) == ("paused", "why", None)


@pytest.mark.parametrize("end", ["deleted", "switched off", "paused"])
def test_an_engine_that_starts_evaluates_nothing_again_by_a_rule_that_nobody_wants(
    end: str,
) -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1)
    log.define("other", 1)
    controller.step()
    for partition in log.inbound:
        partition += [b"default/a"] * 5
    if end == "paused":
        controller.pause_version(("default", "r"), 1, "why")
        controller.step()
    elif end == "deleted":
        log.delete("r")
    else:
        log.define("r", 2, enable=False)
    done = {INBOUND: {0: 4, 1: 0}}
    next_ = a_controller(log, done=lambda: done)
    next_.step()
    found = log.activations()["r"]
    assert (found.state, found.error) == (
        ("paused", "why") if end == "paused" else ("stopped", None)
    )
    assert [span.sources for span in found.spans] == [{INBOUND: OffsetRange((1, 1), (4, 1))}]
    other = log.activations()["other"]
    assert [span.sources for span in other.spans] == [{INBOUND: OffsetRange((1, 1))}]
    # What it withdrew stands in the log before the change that evaluation waits for.
    assert next_.begun is not None
    begun = log.rules.index((DECIDED_KEY, encode_decided(next_.begun)))
    assert log.rules[begun - 1][0] == rules_key(RulesKey("activation", "default", "r"))
    written = len(log.rules)
    a_controller(log, done=lambda: done).step()
    assert [key for key, _ in log.rules[written:]] == [DECIDED_KEY], "that was all"


def test_an_engine_that_goes_on_ends_a_deleted_rule_at_an_offset() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1)
    controller.step()
    log.delete("r")
    step_that_fails(controller, log, 1, is_killed=False).step()
    (span,) = log.activations()["r"].spans
    assert span.sources[INBOUND].ends == (len(log.inbound[0]) - 1, len(log.inbound[1]) - 1)


def test_a_version_of_a_rule_that_was_changed_is_evaluated_to_its_end() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1)
    controller.step()
    log.define("r", 2)
    a_controller(log).step()
    old, new = log.activations()["r"].spans
    assert old.sources[INBOUND].ends == new.sources[INBOUND].starts


def test_a_rule_with_memory_that_nobody_wants_ends_with_a_change_also_at_a_start() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, sql="memory")
    controller.step()
    log.delete("r")
    next_ = a_controller(log, done=lambda: {INBOUND: {0: 9, 1: 9}})
    next_.step()
    assert next_.runs is not None
    (run,) = next_.runs
    ends = run.span.sources[INBOUND].ends
    assert ends == tuple(len(partition) - 1 for partition in log.inbound)
    assert run.span.ended_at_ms is not None
    third = a_controller(log, done=lambda: {INBOUND: {0: 9, 1: 9}})
    third.step()
    assert third.runs == (run,), "what it has not read yet is still to come"


def test_what_a_rule_has_not_read_is_said_until_it_is_made_anew() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, sql="memory")
    log.define("other", 1)
    controller.step()
    left = LeftUnread(1, 2, 1000, "why", {INBOUND: {0: (1, 3)}})
    log.define("r", 2, sql="memory")
    controller.step()
    for _ in range(2):
        controller.note_unread(("default", "r"), left)
        controller.step()
    written = [key for key, _ in log.rules].count(b"a/default/r")
    assert log.activations()["r"].unread == left
    assert log.activations()["other"].unread is None
    later = replace(left, change=3)
    for one in (later, left):
        controller.note_unread(("default", "r"), one)
        controller.step()
    assert [key for key, _ in log.rules].count(b"a/default/r") == written + 1
    log.define("r", 3)
    again = a_controller(log)
    again.step()
    assert log.activations()["r"].unread == later
    log.delete("r")
    again.step()
    log.define("r", 1, created_at=9, updated_at=9)
    again.step()
    assert log.activations()["r"].unread is None


def test_what_could_not_be_written_of_a_rule_is_written_later() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, sql="memory")
    controller.step()

    def fail() -> None:
        raise LogError("no answer", definite=False)

    log.fail = fail
    left = LeftUnread(1, 2, 1000, "why", {})
    for _ in range(2):
        controller.note_unread(("default", "r"), left)
        with pytest.raises(LogError):
            controller.step()
    log.fail = lambda: None
    controller.note_unread(("default", "r"), left)
    controller.step()
    assert log.activations()["r"].unread == left


def test_a_version_is_known_until_the_tables_have_what_it_made() -> None:
    log, clock = MemoryLog(), ManualClock()
    taken: set[tuple[tuple[str, str], int]] = set()
    done = {INBOUND: {0: 100, 1: 100}}
    controller = a_controller(log, clock, done=lambda: done, is_taken=taken.__contains__)
    log.define("r", 1)
    controller.step()
    log.define("r", 2)
    controller.step()
    clock.advance(KEPT_SECONDS + TIDY_SECONDS)
    controller.step()
    assert [span.version for span in log.activations()["r"].spans] == [1, 2]
    taken.add((("default", "r"), 2))
    clock.advance(TIDY_SECONDS)
    controller.step()
    assert [span.version for span in log.activations()["r"].spans] == [2]


def test_who_looks_on_changes_nothing_and_goes_on_when_the_other_has_ended() -> None:
    log = MemoryLog()
    log.define("r", 1)
    log.define("gone", 1)
    first = a_controller(log)
    first.step()
    log.delete("gone")
    first.step()
    written = list(log.rules)
    ends = {INBOUND: (9, 9), EVENTS: (9,)}
    second = a_controller(log)
    assert second.look_on(ends)
    assert second.begun == 3
    assert second.first == {INBOUND: {0: 1, 1: 1}, EVENTS: {0: 9}}
    assert log.rules == written
    log.define("later", 1)
    second.step()
    assert second.begun == 3, "its query has begun with that"
    assert log.activations()["later"].state == "running"
    assert log.decided()[-1] == log.activations()["later"].change


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["define", "define", "disable", "delete"]),
            st.sampled_from(["r1", "r2"]),
            st.integers(0, 12),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_wherever_it_is_killed_or_the_log_fails_the_next_one_goes_on(steps: list[Any]) -> None:
    log = MemoryLog()
    controller = a_controller(log)
    wanted: dict[str, tuple[str, int]] = {}
    for version, (what, name, fails_at, is_killed) in enumerate(steps, 1):
        if what == "delete":
            log.delete(name)
            if name in wanted:
                wanted[name] = ("stopped", wanted[name][1])
        else:
            log.define(name, version, enable=what == "define")
            wanted[name] = ("running" if what == "define" else "stopped", version)
        controller = step_that_fails(controller, log, fails_at, is_killed=is_killed)
    for _ in range(3):
        controller.step()
    found = log.activations()
    for name, (state, at_version) in wanted.items():
        if name in found:
            assert found[name].state == state
            assert state == "stopped" or found[name].version == at_version
            assert (found[name].current is not None) == (state == "running")
        else:
            assert state == "stopped", "never seen by a controller before it was deleted"
    for activation in found.values():
        for earlier, later in zip(activation.spans, activation.spans[1:], strict=False):
            assert earlier.sources[INBOUND].ends is not None
            pairs = zip(earlier.sources[INBOUND].ends, later.sources[INBOUND].starts, strict=True)
            assert all(end <= start for end, start in pairs), "never two versions at once"
    assert log.decided() == sorted(log.decided())
    assert max(log.barriers(), default=0) <= log.decided()[-1], "no barrier waits for ever"
    # What a reader of the log sees at a barrier: an activation that names it stands before the
    # record that says it is decided.
    decided = 0
    for data, value in log.rules:
        if data == DECIDED_KEY:
            decided = decode_decided(value or b"")
        elif data.startswith(b"a/") and value is not None:
            assert decode_activation(value).change > decided


def test_an_activation_comes_back_as_it_was_written() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1)
    controller.step()
    (found,) = log.activations().values()
    assert decode_activation(encode_activation(found)) == found


def test_a_rule_made_again_with_the_number_of_the_old_one_begins_where_it_was_made() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    put_schema(log, 1)
    log.define("r", 1, sql="decode boiler")
    controller.step()
    for partition in log.inbound:
        partition.append(b"default/a")
    log.delete("r")
    log.define("r", 1, sql="decode boiler", updated_at=77)
    controller.step()
    old, new = log.activations()["r"].spans
    assert (old.version, new.version, new.first) == (1, 1, None)
    assert new.sources[INBOUND].starts == old.sources[INBOUND].ends
    put_schema(log, 2)
    controller.step()
    newest = log.activations()["r"].spans[-1]
    assert newest.first == {INBOUND: new.sources[INBOUND].starts}


def test_an_activation_that_is_not_ours_is_refused_and_written_over() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1)
    controller.step()
    genuine = log.activations()["r"]
    key = rules_key(RulesKey("activation", "default", "r"))
    other = rules_key(RulesKey("activation", "default", "other"))
    forged = replace(genuine, spans=(replace(genuine.spans[0], expression="evil()"),))
    for one in (key, other):
        log.forged.add(len(log.rules))
        log.rules.append((one, encode_activation(forged)))
    controller.step()
    assert controller.refused == 2
    assert log.activations() == {"r": genuine}


def test_a_controller_that_begins_does_not_take_over_what_is_not_ours() -> None:
    log = MemoryLog()
    log.define("r", 1)
    a_controller(log).step()
    genuine = log.activations()["r"]
    forged = replace(genuine, spans=(replace(genuine.spans[0], expression="evil()"),))
    log.forged.add(len(log.rules))
    key = rules_key(RulesKey("activation", "default", "r"))
    log.rules.append((key, encode_activation(forged)))
    log.next = 0
    controller = a_controller(log)
    controller.step()
    assert controller.refused == 1
    assert log.activations()["r"] == genuine


def test_what_was_written_before_there_was_a_key_is_signed_once() -> None:
    log = MemoryLog()
    log.define("r", 1)
    a_controller(log).step()
    genuine = log.activations()["r"]
    log.next, written, log.is_unsigned = 0, len(log.rules), True
    a_controller(log).step()
    key = rules_key(RulesKey("activation", "default", "r"))
    assert (key, encode_activation(genuine)) in log.rules[written:]
    assert not log.is_unsigned
    log.next, written = 0, len(log.rules)
    a_controller(log).step()
    assert [key for key, _ in log.rules[written:]] == [DECIDED_KEY]
