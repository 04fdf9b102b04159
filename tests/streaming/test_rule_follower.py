"""How long the evaluation waits at the barrier of a change of rules."""

from threading import Thread
from typing import Any

import pytest

from launcher.testing.systems import await_condition
from mqlake.records.messages import EVENTS
from mqlake.records.rules import Activation, OffsetRange, Span, encode_activation, encode_decided
from rules.language.compiler import compile_rule

pytestmark = pytest.mark.spark


class Follower:
    """A follower without a log; a test says what it has read, and what the log has."""

    def __init__(self, jvm: Any, gateway: Any, change_ms: int) -> None:
        self._jvm, self._gateway = jvm, gateway
        types = ["java.util.Map", "java.lang.String"]
        classes = self.array(
            jvm.java.lang.Class,
            *map(self.class_, types),
            jvm.java.lang.Long.TYPE,
            jvm.java.lang.Boolean.TYPE,
        )
        constructor = self.class_("mqlake.rules.RuleFollower").getDeclaredConstructor(classes)
        constructor.setAccessible(True)
        arguments = self.array(
            jvm.java.lang.Object, jvm.java.util.HashMap(), "rules", change_ms, True
        )
        self._follower = constructor.newInstance(arguments)
        self.table = jvm.mqlake.rules.RuleTable()
        self.set("table", self.table)

    def set(self, field: str, value: Any) -> None:
        self._field(field).set(self._follower, value)

    def get(self, field: str) -> Any:
        return self._field(field).get(self._follower)

    def decide(self, change: int) -> None:
        self.table.apply("c", encode_decided(change))

    def wait(self, change: int) -> Thread:
        """Stand at the barrier of a change."""
        long_ = self.array(self._jvm.java.lang.Class, self._jvm.java.lang.Long.TYPE)
        class_ = self.class_("mqlake.rules.RuleFollower")
        method = class_.getDeclaredMethod("awaitDecided", long_)
        method.setAccessible(True)
        arguments = self.array(self._jvm.java.lang.Object, change)
        thread = Thread(target=method.invoke, args=(self._follower, arguments), daemon=True)
        thread.start()
        return thread

    def given_up(self) -> int:
        field = self.class_("mqlake.rules.RuleFollower").getDeclaredField("givenUp")
        field.setAccessible(True)
        found: int = field.get(self._follower)
        return found

    def class_(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(name)

    def _field(self, name: str) -> Any:
        field = self.class_("mqlake.log.LogFollower").getDeclaredField(name)
        field.setAccessible(True)
        return field

    def array(self, class_: Any, *items: Any) -> Any:
        array = self._gateway.new_array(class_, len(items))
        for at, item in enumerate(items):
            array[at] = item
        return array


def ended(thread: Thread) -> bool:
    return not thread.is_alive()


def test_a_change_is_given_up_when_the_log_has_none_and_not_when_it_is_read_late(
    routing_jvm: Any, routing_gateway: Any
) -> None:
    follower = Follower(routing_jvm, routing_gateway, 50)
    follower.set("applied", 4)
    late = follower.wait(7)
    await_condition(lambda: follower.get("lookupsWanted") == 1, "the log is asked")
    # It has more than was read: the change may be among it.
    follower.set("end", 9)
    follower.set("lookupsDone", 1)
    late.join(2.0)
    assert late.is_alive()
    follower.decide(7)
    await_condition(lambda: ended(late), "what was late is there")
    assert follower.given_up() == -1
    never = follower.wait(8)
    await_condition(lambda: follower.get("lookupsWanted") == 2, "the log is asked again")
    follower.set("applied", 8)
    follower.set("lookupsDone", 2)
    await_condition(lambda: ended(never), "it is given up")
    assert follower.given_up() == 8


def test_who_evaluates_rules_with_memory_has_neither_code_nor_counters_of_others(
    routing_jvm: Any, routing_gateway: Any
) -> None:
    follower = Follower(routing_jvm, routing_gateway, 0)
    constructor = follower.class_("mqlake.rules.RuleTable").getDeclaredConstructor(
        follower.array(routing_jvm.java.lang.Class, routing_jvm.java.lang.Boolean.TYPE)
    )
    constructor.setAccessible(True)
    table = constructor.newInstance(follower.array(routing_jvm.java.lang.Object, False))
    compiled = compile_rule("SELECT event FROM \"$events/rule_failed\" WHERE event = 'x'")
    span = Span(1, compiled.filters, "no expression", (), None, {EVENTS: OffsetRange((0,), None)})
    activation = Activation("default", "elsewhere", "running", 1, 1, spans=(span,))
    table.apply("a/default/elsewhere", encode_activation(activation))
    assert table.isRead("default", compiled.filters[0])
    assert not table.isRead("default", "$events/other")
    counters = follower.class_("mqlake.rules.RuleCounters").getDeclaredField("ALL")
    counters.setAccessible(True)
    assert not counters.get(None).containsKey("default/elsewhere")
