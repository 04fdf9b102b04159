"""Rules whose schemas and reference tables come, change and go."""

import pytest

from mqlake.records.messages import EVENTS, INBOUND
from tests.streaming.rule_control import (
    MemoryLog,
    a_controller,
    put_schema,
    put_table,
    step_that_fails,
)


def test_a_rule_follows_the_tables_that_it_joins() -> None:
    log = MemoryLog()
    controller = a_controller(log)

    def table(version: int, *columns: str) -> None:
        put_table(log, version, *columns)
        controller.step()

    log.define("r", 1, sql="joins")
    log.define("other", 1)
    controller.step()
    assert log.activations()["r"].state == "failed"
    table(1, "a")
    assert log.activations()["r"].state == "running"
    changes = len(log.barriers())
    table(2, "a")
    assert len(log.barriers()) == changes, "other rows, the same columns"
    table(3, "a", "b")
    found = log.activations()["r"]
    assert (found.state, len(found.spans)) == ("running", 2)
    table(4)
    found = log.activations()["r"]
    assert (found.state, found.current) == ("failed", None)
    assert log.activations()["other"].change < changes


def test_a_schema_that_changes_is_in_force_at_one_offset_for_the_rules_that_use_it() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    put_schema(log, 1)
    log.define("r", 1, sql="decode boiler")
    log.define("other", 1)
    controller.step()
    assert log.activations()["r"].schemas == {"boiler": 1}
    for partition in log.inbound:
        partition.append(b"default/a")
    put_schema(log, 2)
    controller.step()
    found = log.activations()
    assert len(found["other"].spans) == 1
    old, new = found["r"].spans
    assert (found["r"].schemas, old.version, new.version) == ({"boiler": 2}, 1, 1)
    assert old.sources[INBOUND].ends == new.sources[INBOUND].starts
    assert (old.first, new.first) == (None, {INBOUND: old.sources[INBOUND].starts})
    put_schema(log, 3)
    controller.step()
    assert log.activations()["r"].spans[2].first == new.first
    log.define("r", 2, sql="decode boiler")
    controller.step()
    assert log.activations()["r"].current is not None
    assert log.activations()["r"].spans[-1].first is None


def test_a_rule_with_memory_begins_anew_when_its_schema_changes() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    put_schema(log, 1, "memory")
    log.define("r", 1, sql="decode memory")
    controller.step()
    put_schema(log, 2, "memory")
    controller.step()
    assert controller.runs is not None
    old, new = controller.runs
    assert (old.span.is_ended, new.span.is_ended, new.span.change) == (True, False, 3)
    assert old.name != new.name
    assert new.span.first == {name: old.span.sources[name].starts for name in (INBOUND, EVENTS)}


def test_a_rule_whose_schema_comes_later_starts_then() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, sql="decode boiler")
    controller.step()
    found = log.activations()["r"]
    assert (found.state, found.schemas) == ("failed", {"boiler": 0})
    put_schema(log, 1, "another")
    controller.step()
    assert len(log.barriers()) == 2, "it is of no concern"
    put_schema(log, 1)
    controller.step()
    assert log.activations()["r"].state == "running"


def test_a_schema_that_changed_while_nobody_was_there_is_noticed() -> None:
    log = MemoryLog()
    put_schema(log, 1)
    log.define("r", 1, sql="decode boiler")
    a_controller(log).step()
    put_schema(log, 2)
    a_controller(log).step()
    assert log.activations()["r"].schemas == {"boiler": 2}


@pytest.mark.parametrize("fails_at", range(1, 7))
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_change_of_a_table_is_not_forgotten_when_the_log_fails(
    fails_at: int, *, is_killed: bool
) -> None:
    log = MemoryLog()
    controller = a_controller(log)
    put_table(log, 1, "a")
    log.define("r", 1, sql="joins")
    controller.step()
    put_table(log, 2, "a", "b")
    controller = step_that_fails(controller, log, fails_at, is_killed=is_killed)
    for _ in range(3):
        controller.step()
    current = log.activations()["r"].current
    assert current is not None
    assert current.plan is not None
    assert "b" in current.plan["query"], "the table's new columns"


def test_a_rule_made_without_knowing_a_table_is_looked_at_by_the_next_controller() -> None:
    log = MemoryLog()
    log.define("r", 1, sql="joins")
    a_controller(log).step()
    written = log.rules.copy()
    log.rules.clear()
    put_table(log, 1, "a")
    # The table stood in the log when the rule failed for want of it, and was not read yet.
    log.rules += written
    assert log.activations()["r"].state == "failed"
    a_controller(log).step()
    assert log.activations()["r"].state == "running"


def test_a_rule_that_is_deleted_while_it_is_in_doubt_leaves_nothing() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    log.define("r", 1, sql="joins")
    controller.step()
    assert log.activations()["r"].state == "failed"
    put_table(log, 1, "a")
    log.delete("r")
    controller.step()
    controller.step()
    assert log.activations()["r"].current is None
