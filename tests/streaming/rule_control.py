"""A controller of rules on a log in memory, and what is written into that log."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import ACCESS, EVENTS, INBOUND, METRICS, RULES
from mqlake.records.references import (
    ReferenceKey,
    ReferenceState,
    encode_reference_state,
    reference_key,
)
from mqlake.records.rule_facts import keep, read_fact
from mqlake.records.rules import (
    DECIDED_KEY,
    Activation,
    Kind,
    RuleMetricsKey,
    RulesKey,
    decode_activation,
    decode_decided,
    rule_metrics_key,
    rules_barrier_key,
    rules_key,
)
from mqlake.records.schemas import SchemaKey, schema_key
from rules.errors import RuleError
from rules.model import Rule
from rules.schemas.errors import UnknownSchema
from rules.schemas.model import SchemaBody
from rules.schemas.registry import SchemaLookup
from streaming.rules.changes import RuleProgram
from streaming.rules.controller import RuleController
from streaming.rules.log import RuleRecord
from tests.streaming.decoding import schema


class Killed(BaseException):
    """The process ends here."""


@dataclass
class MemoryLog:
    """A log that can be made to fail, or to kill its user, at any append.

    Attributes:
        inbound: Keys of the records of two partitions.
        events: Likewise of one.
        rules: Key and value of all records.
        access: Likewise of those who make rules.
        forged: Which of them are not signed as ours are.
        is_unsigned: Whether nothing was signed yet.
        unread_access: How many records of `access` come later than they are in the log.
        fail: Told before each append; raises what is to happen there.
    """

    inbound: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    events: list[bytes] = field(default_factory=list)
    rules: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    metrics: list[RuleRecord] = field(default_factory=list)  # and of gateways
    access: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    unread_access: int = 0
    next_access: int = 0
    fail: Callable[[], None] = lambda: None
    next: int = 0
    forged: set[int] = field(default_factory=set)
    is_unsigned: bool = False

    def read(self, timeout_seconds: float) -> list[RuleRecord]:
        new = [
            RuleRecord(RULES, *record, is_ours=number not in self.forged)
            for number, record in enumerate(self.rules[self.next :], self.next)
        ]
        self.next = len(self.rules)
        metrics, self.metrics = self.metrics, []
        until = len(self.access) - self.unread_access
        access = [RuleRecord(ACCESS, *one) for one in self.access[self.next_access : until]]
        self.next_access = until
        return new + metrics + access

    def is_caught_up(self) -> bool:
        return self.next == len(self.rules) and self.next_access == len(self.access)

    def append_barriers(self, change: int) -> dict[str, tuple[int, ...]]:
        for partition in (*self.inbound, self.events):
            self.fail()
            partition.append(rules_barrier_key(change))
        offsets = tuple(len(partition) - 1 for partition in self.inbound)
        return {INBOUND: offsets, EVENTS: (len(self.events) - 1,)}

    def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for record in records:
            self.fail()
            self.rules.append(record)

    def note_signed(self) -> None:
        self.is_unsigned = False

    def close(self) -> None:
        pass

    # What a test does with it.

    def define(self, name: str, version: int, **fields: Any) -> None:
        values: dict[str, Any] = {"sql": "good", "created_at": 0, "updated_at": version}
        rule = Rule(id=name, version=version, **(values | fields))
        key = rules_key(RulesKey("definition", "default", name))
        self.rules.append((key, rule.model_dump_json().encode()))

    def delete(self, name: str) -> None:
        self.rules.append((rules_key(RulesKey("definition", "default", name)), None))

    def activations(self) -> dict[str, Activation]:
        found: dict[str, Activation] = {}
        for data, value in self.rules:
            fact = read_fact(data, value)
            if fact is not None and fact.kind is Kind.ACTIVATION:
                keep(found, fact.name[1], fact.content(decode_activation))
        return found

    def decided(self) -> list[int]:
        return [decode_decided(value or b"") for key, value in self.rules if key == DECIDED_KEY]

    def barriers(self) -> list[int]:
        return [int(key.rpartition(b"/")[2]) for key in self.inbound[0]]


def compile_(rule: Rule, schemas: SchemaLookup, references: Any) -> RuleProgram:
    if rule.sql == "bad":
        raise RuleError("no statement")
    if rule.sql.startswith("decode"):
        try:
            schemas.find(rule.sql.removeprefix("decode "), None, None)
        except UnknownSchema as exc:
            raise RuleError(str(exc)) from exc
    if rule.sql == "breaks":
        raise RecursionError("deep")
    actions = tuple(action.model_dump(mode="json") for action in rule.actions)
    if rule.sql.startswith(("memory", "decode memory")):
        plan: dict[str, Any] = {"streams": [], "references": [], "detection": None, "query": ""}
        return RuleProgram(("a",), False, None, actions, None, plan, (INBOUND, EVENTS))
    if rule.sql == "joins":
        if "table" not in (references or {}):
            raise RuleError("there is no reference table 'table'")
        joined = [{"name": "r0", "table": "table", "columns": []}]
        columns = str(references["table"])
        plan = {"streams": [], "references": joined, "detection": None, "query": columns}
        return RuleProgram(("a",), False, None, actions, None, plan, (INBOUND,))
    return RuleProgram((rule.sql,), rule.sql == "events", rule.sql, actions, "x INT")


@dataclass
class PauseSettings:
    rules_pause_failures: int = 100
    rules_pause_share: float = 0.5
    rules_ms_per_second: int = 0


def a_controller(log: MemoryLog, clock: ManualClock | None = None, **more: Any) -> RuleController:
    log.next = log.next_access = 0
    return RuleController(log, compile_, PauseSettings(), clock or ManualClock(), **more)


class FailingOnce:
    """Fails at the nth append."""

    def __init__(self, number: int, error: BaseException) -> None:
        self._left = number
        self._error = error

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error


def step_that_fails(
    controller: RuleController, log: MemoryLog, fails_at: int, *, is_killed: bool
) -> RuleController:
    """Let a step fail or die at its nth append; return who goes on with a log that works."""
    log.fail = FailingOnce(fails_at, Killed() if is_killed else LogError("x", definite=False))
    try:
        controller.step()
    except Killed:
        controller = a_controller(log)
    except LogError:
        pass
    log.fail = lambda: None
    return controller


def report(
    log: MemoryLog,
    matched: int,
    failed: int,
    rule: str = "r",
    change: int | None = None,
    beyond: int = 0,
) -> None:
    """Report failures, of the version in force unless another one is named."""
    key = rule_metrics_key(RuleMetricsKey("engine", "1", "default", rule))
    current = log.activations()[rule].current
    failing = change or (0 if current is None else current.change)
    value = json.dumps(
        {
            "matched": matched,
            "failed": failed,
            "failing": {"change": failing, "failed": failed, "beyond": beyond},
        }
    ).encode()
    log.metrics.append(RuleRecord(METRICS, key, value))


def current_change(log: MemoryLog, rule: str = "r") -> int:
    current = log.activations()[rule].current
    assert current is not None
    return current.change


def put_schema(log: MemoryLog, version: int, name: str = "boiler") -> None:
    body = SchemaBody(type="avro", source='"double"')
    value = schema(name, body, version).model_dump_json().encode()
    log.rules.append((schema_key(SchemaKey("default", name, version)), value))


def put_table(log: MemoryLog, version: int, *columns: str) -> None:
    """Put a version of the reference table `table`; one without columns is deleted."""
    state = ReferenceState(
        "default",
        "table",
        1,
        "ready" if columns else "deleted",
        version=version if columns else None,
        columns=tuple((column, "STRING") for column in columns),
    )
    key = reference_key(ReferenceKey("state", "default", "table"))
    log.rules.append((key, encode_reference_state(state)))
