"""Rules as an application follows them that does not put them in force itself."""

from pathlib import Path

import pytest

from mqlake.errors import LogError
from mqlake.records.messages import DEAD_LETTERS, EVENTS, INBOUND, OUTPUTS
from mqlake.records.outputs import run_name
from mqlake.records.rules import RulesKey, rules_key
from rules.model import ActionSpec
from streaming.rules import in_force
from streaming.rules.in_force import RulesInForce
from streaming.rules.program import TableAction
from streaming.rules.taken import TakenOutputs
from tests.streaming.rule_control import MemoryLog, a_controller
from tests.streaming.written_checkpoints import note_done, note_end

TO_TABLE = ActionSpec(function="table", args={"name": "t"})
ACTIONS = (TableAction("rule_t", "x INT", 0),)


def following(log: MemoryLog) -> RulesInForce:
    """Return who reads a log from its beginning, beside the controller."""
    copy = MemoryLog(rules=log.rules, forged=log.forged)
    return RulesInForce(copy)


def test_the_tables_of_a_version_are_known_when_its_rows_are() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    found = following(log)
    assert not found.has_rules
    log.define("r", 1, actions=(TO_TABLE,))
    controller.step()
    assert found.table_actions(("default", "r", 1)) == ACTIONS, "it catches up"
    assert found.has_rules
    assert found.is_known(("default", "r"))
    assert found.table_actions(("default", "r", 2)) == ()
    log.delete("r")
    controller.step()
    log.rules.append((rules_key(RulesKey("activation", "default", "r")), None))
    found.step()
    assert not found.has_rules
    assert found.table_actions(("default", "r", 1)) == ACTIONS, "rows may still come"


def test_runs_are_those_of_the_controller() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, sql="memory")
    log.define("other", 1)
    controller.step()
    found = following(log)
    assert found.runs is None
    assert found.run_names() is None
    found.step()
    assert found.runs == controller.runs
    assert found.run_names() == frozenset([run_name("default", "r", 2)])
    log.define("r", 2, sql="memory")
    controller.step()
    found.step()
    assert found.runs == controller.runs


def test_what_is_not_signed_or_damaged_is_in_force_for_nobody() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, actions=(TO_TABLE,))
    controller.step()
    log.forged.add(len(log.rules))
    log.rules.append((rules_key(RulesKey("activation", "default", "evil")), log.rules[-2][1]))
    log.rules.append((rules_key(RulesKey("activation", "default", "damaged")), b"{"))
    found = following(log)
    found.step()
    assert found.is_known(("default", "r"))
    assert not found.is_known(("default", "evil"))
    assert not found.is_known(("default", "damaged"))


def test_rules_need_the_log_from_their_first_version_or_where_they_have_come() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    found = following(log)
    found.step()
    assert found.needed({}) is None
    log.define("r", 1)
    controller.step()
    found.step()
    assert found.needed({}) == {INBOUND: {0: 1, 1: 1}}
    done = {INBOUND: {0: 7, 1: 0}, EVENTS: {0: 3}}
    assert found.needed(done) == {INBOUND: {0: 7, 1: 1}}
    log.define("e", 1, sql="events")
    controller.step()
    found.step()
    assert found.needed(done) == {INBOUND: {0: 7, 1: 1}, EVENTS: {0: 3}}


def test_who_asks_while_the_log_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_force, "CATCH_UP_SECONDS", 0.0)
    log = MemoryLog()
    monkeypatch.setattr(log, "is_caught_up", lambda: False)
    with pytest.raises(LogError, match="not read to their end"):
        RulesInForce(log).table_actions(("default", "r", 1))


def test_outputs_are_taken_when_the_tables_are_past_their_end(tmp_path: Path) -> None:
    ends = {OUTPUTS: {0: 10, 1: 0}, DEAD_LETTERS: {0: 5}}
    asked: list[str] = []

    def find(log_topic: str) -> dict[int, int]:
        asked.append(log_topic)
        if len(asked) == 1:
            raise LogError("away", definite=False)
        return dict(ends[log_topic])

    taken, rule = TakenOutputs(find, tmp_path), (("default", "r"), 3)
    assert not taken(rule), "the log does not answer"
    assert not taken(rule)
    ends[OUTPUTS][0] = 99  # what comes later is of others
    for batch, (outputs, letters) in enumerate(((9, 5), (10, 4), (10, 5))):
        place = {OUTPUTS: {"0": outputs, "1": 0}, DEAD_LETTERS: {"0": letters}}
        note_end(tmp_path, batch, place)
        note_done(tmp_path, batch)
        assert taken(rule) == (batch == 2)
