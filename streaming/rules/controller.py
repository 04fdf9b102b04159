"""Puts versions of rules in force, and out of it.

The definitions and activations in `mqlake.rules` decide the steps to take, so a controller that
is killed at any point is followed by one that goes on. A change is a barrier through the sources,
then the activations, then the record that says the change is decided; changes that come together
share one barrier.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, Protocol

from mqlake.clock import Clock
from mqlake.errors import InvalidRecord, LogError
from mqlake.records.messages import ACCESS, GATEWAYS, METRICS
from mqlake.records.outputs import run_name
from mqlake.records.references import Columns, decode_reference_state
from mqlake.records.rule_facts import Fact, RuleKey, keep, read_fact
from mqlake.records.rules import (
    DECIDED_KEY,
    ENGINE,
    Activation,
    Kind,
    LeftUnread,
    RuleMetricsKey,
    RulesKey,
    Span,
    decode_activation,
    decode_decided,
    decode_rule_metrics_key,
    encode_activation,
    encode_decided,
    rules_key,
)
from rules.errors import RuleError
from rules.model import Rule
from rules.schemas.registry import Noted, SchemaRegistry
from streaming.rules.changes import (
    ChangeStep,
    Failures,
    Offsets,
    Position,
    first_needed,
    has_changed,
    is_done,
    is_settled,
    is_unwanted,
    joined_tables,
    next_activation,
    only_end,
    withdrawn,
)
from streaming.rules.costs import RuleCosts
from streaming.rules.log import RuleLog, RuleRecord
from streaming.rules.makers import RuleMakers
from streaming.rules.plans import StatefulRun, runs_of
from streaming.rules.program import Compile

logger = logging.getLogger(__name__)

KEPT_SECONDS: Final = 600.0
"""How long a version stays known after it is out of force."""
TIDY_SECONDS: Final = 60.0
READ_SECONDS: Final = 0.5
COMPILING_THREADS: Final = 2
"""Compiling a rule takes some 20 ms, most of it in Java; routing needs the other processors."""


class ControllerSettings(Protocol):
    """Settings of the controller."""

    @property
    def rules_pause_failures(self) -> int: ...

    @property
    def rules_pause_share(self) -> float: ...

    @property
    def rules_ms_per_second(self) -> int: ...


class RuleController:
    """Follows definitions and writes activations; `step` does due work.

    Args:
        log: Log that has the rules.
        compile_: Makes a rule's definition something that can be evaluated.
        settings: When a rule that fails, or costs too much, is paused.
        clock: For how long ended versions are kept.
        done: Tells how far the evaluation has certainly come.
        is_run_ended: Tells whether a stateful version, by the name of its run, has nothing more
            to do.
        is_taken: Tells whether the tables have all that the versions of a rule up to a change have
            made, which make nothing more.

    Attributes:
        first: Offsets at which the evaluation has to begin at the latest; None when there is
            nothing to evaluate. Another thread reads it.
        runs: All stateful versions, ended ones too; None while they are not known. Another
            thread reads it.
        refused: How many activations were not signed as ours are.
        begun: Number of the change with which the engine has begun: versions that it then withdrew
            are not to be evaluated. Another thread reads it, once `first` is known.
    """

    def __init__(
        self,
        log: RuleLog,
        compile_: Compile,
        settings: ControllerSettings,
        clock: Clock,
        done: Callable[[], Position | None] = lambda: None,
        is_run_ended: Callable[[str], bool] = lambda _name: False,
        is_taken: Callable[[tuple[RuleKey, int]], bool] = lambda _versions: True,
    ) -> None:
        self._log = log
        self._compile = compile_
        self._settings = settings
        self._clock = clock
        self._done = done
        self._is_run_ended = is_run_ended
        self._is_taken = is_taken
        self._references: dict[str, dict[str, Columns]] = {}
        self._unchecked: set[RuleKey] = set()
        self._asked: dict[tuple[RuleKey, str], Callable[[Span], bool]] = {}
        self._definitions: dict[RuleKey, Rule] = {}
        self._makers = RuleMakers(clock)
        self._schemas = SchemaRegistry()
        self._activations: dict[RuleKey, Activation] = {}
        self._ended_at: dict[RuleKey, float] = {}
        self._changed: set[RuleKey] = set()
        self._unread: dict[RuleKey, LeftUnread] = {}
        self._failing: dict[RuleKey, str] = {}
        self._failures: dict[RuleMetricsKey, Failures] = {}
        self._costs = RuleCosts(settings.rules_ms_per_second)
        self._change = 0
        self._is_ready = False
        self._tidied_at = clock.monotonic()
        self._ends: Offsets = {}
        self._threads = ThreadPoolExecutor(COMPILING_THREADS, "rules-compile")
        self._overwritten: set[RuleKey] = set()
        self.refused = 0
        self.first: Position | None = None
        self.runs: tuple[StatefulRun, ...] | None = None
        self.begun: int | None = None

    def pause(self, run: StatefulRun, error: str) -> None:
        """Ask for a rule to be paused, if that version is still in force; from any thread."""
        change = run.span.change
        self._asked[(run.tenant, run.rule), error] = lambda span: span.change == change

    def pause_version(self, rule: RuleKey, version: int, error: str) -> None:
        """Ask for a rule to be paused, if that version is still in force; from any thread.

        A request before the rules are read is in vain.
        """
        self._asked[rule, error] = lambda span: span.version == version

    def note_unread(self, rule: RuleKey, unread: LeftUnread) -> None:
        """Have a rule's activation say what a version of it has not read; from any thread."""
        self._unread[rule] = unread

    def run(self, stopping: threading.Event) -> None:
        """Step until `stopping` is set; for a thread of its own."""
        while not stopping.is_set():
            try:
                self.step()
            except LogError as error:
                logger.warning("rules not changed", extra={"fields": {"reason": str(error)}})
                stopping.wait(1.0)
            except Exception:
                # Even when something is wrong with a rule, the next change must find a controller.
                logger.exception("rules not changed")
                stopping.wait(1.0)
        self._threads.shutdown()
        self._log.close()

    def look_on(self, ends: Offsets, timeout_seconds: float = READ_SECONDS) -> bool:
        """Find out which rules another controller has in force, and change nothing.

        When that one has ended, `run` goes on from there.

        Args:
            ends: See `first_needed`.
            timeout_seconds: To wait for records.

        Returns:
            Whether all is known that the log has.
        """
        for record in self._log.read(timeout_seconds):
            self._apply(record)
        if not self._log.is_caught_up():
            return False
        self.begun = self._change
        self.first = first_needed(self._activations, self._done(), ends)
        return True

    def step(self, timeout_seconds: float = READ_SECONDS) -> None:
        """Read new records and make the change that they ask for.

        Raises:
            LogError: The change could not be written; the next step makes it again.
        """
        for record in self._log.read(timeout_seconds):
            self._apply(record)
        if not self._is_ready:
            if not self._log.is_caught_up():
                return
            self._begin()
        self._overwrite()
        self._take_asked()
        self._take_unread()
        self._look_at_costs()
        self._look_at_makers()
        if self._has_unknown_makers() and not self._log.is_caught_up():
            return  # a key that has just been made may not have been read yet
        steps = self._steps()
        if steps:
            self._make_change(steps)
        elif self._clock.monotonic() - self._tidied_at >= TIDY_SECONDS:
            self._tidy()
        self._look_where_to_begin()

    def _begin(self) -> None:
        """Take over from a controller that may have been killed at any point, also from itself."""
        # The number after the last may be that of a barrier whose writer was killed. Said to be
        # decided, it keeps no reader waiting.
        change = self._change + 1
        self._ends = self._log.append_barriers(change)
        # A router that is killed here and begins again has the rest to withdraw.
        withdrawn_now = self._unwanted(change) if self.begun is None else {}
        # Activations not signed yet are signed before anybody evaluates by them.
        known = self._activations if self._log.is_unsigned else {}
        self._write(known | withdrawn_now, change)
        self._log.note_signed()
        for rule, activation in withdrawn_now.items():
            self._activations[rule] = activation
        self._change = change
        self.begun = change if self.begun is None else self.begun
        self._changed |= self._definitions.keys() | self._activations.keys()
        # An activation that stands behind a change of a table may have been made without it.
        self._unchecked |= {
            rule
            for rule, activation in self._activations.items()
            if activation.state == "failed" or joined_tables(activation)
        }
        self._is_ready = True

    def _unwanted(self, change: int) -> dict[RuleKey, Activation]:
        """Return the rules that are not wanted and would be evaluated again."""
        done = self._done()
        found = {
            rule: withdrawn(activation, done, change)
            for rule, activation in self._activations.items()
            if is_unwanted(self._definitions.get(rule), activation)
        }
        return {rule: one for rule, one in found.items() if one is not self._activations[rule]}

    def _apply(self, record: RuleRecord) -> None:
        try:
            if record.log_topic == METRICS:
                self._apply_metrics(record)
            elif record.log_topic == ACCESS:
                self._makers.apply(record.key, record.value)
            elif record.log_topic == GATEWAYS:
                self._costs.apply_tenant(record.key, record.value)
            else:
                self._apply_fact(read_fact(record.key, record.value, is_ours=record.is_ours))
        except (InvalidRecord, ValueError) as error:
            fields = {"key": record.key.decode(errors="replace"), "reason": str(error)}
            logger.warning("record of rules ignored", extra={"fields": fields})

    def _apply_fact(self, fact: Fact | None) -> None:
        match fact:
            case Fact(Kind.DECIDED):
                self._change = max(self._change, fact.content(decode_decided) or 0)
            case Fact(Kind.DEFINITION, rule):
                definition = fact.content(Rule.model_validate_json)
                keep(self._definitions, rule, definition)
                if definition is not None:
                    self._makers.note(definition)
                self._changed.add(rule)
            case Fact(Kind.ACTIVATION, rule) if not self._is_ready:
                # Later on it is one that was written here, and may be older than the one in memory.
                keep(self._activations, rule, fact.content(decode_activation))
                self._changed.add(rule)
            case Fact(Kind.UNSIGNED, rule):
                self._refuse(rule)
            case Fact(Kind.SCHEMA):
                self._apply_schema(fact)
            case Fact(Kind.STATE):
                self._apply_reference(fact)

    def _refuse(self, rule: RuleKey) -> None:
        """Pass over an activation that is not ours; the log is to keep the one that is."""
        self.refused += 1
        logger.warning(
            "an activation that this application has not signed is refused",
            extra={"fields": {"rule": rule}},
        )
        self._overwritten.add(rule)

    def _overwrite(self) -> None:
        """Write again activations that others have written over."""
        if self._overwritten:
            rules = sorted(self._overwritten)
            self._log.write([_record(rule, self._activations.get(rule)) for rule in rules])
            self._overwritten.clear()

    def _apply_schema(self, fact: Fact) -> None:
        self._schemas.apply(fact)
        self._changed |= {
            rule
            for rule, activation in self._activations.items()
            if rule[0] == fact.name[0] and fact.name[1] in activation.schemas
        }

    def _apply_reference(self, fact: Fact) -> None:
        """Look again at the rules that join a table whose columns are others now."""
        tenant, reference = fact.name
        state = fact.content(decode_reference_state)
        columns = None if state is None or state.version is None else state.columns
        known = self._references.setdefault(tenant, {})
        if known.get(reference) == columns:
            return
        keep(known, reference, columns)
        self._unchecked |= {
            rule
            for rule, activation in self._activations.items()
            if rule[0] == tenant
            and (activation.state == "failed" or reference in joined_tables(activation))
        }

    def _apply_metrics(self, record: RuleRecord) -> None:
        key = decode_rule_metrics_key(record.key)
        if key is None or key.process != ENGINE:
            return
        counters: dict[str, Any] | None = json.loads(record.value) if record.value else None
        self._costs.add(self._clock.monotonic(), key, counters)
        if counters is None:
            self._failures.pop(key, None)
            return
        failures = self._failures.setdefault(
            key,
            Failures(self._settings.rules_pause_failures, self._settings.rules_pause_share),
        )
        rule = key.tenant, key.rule
        activation = self._activations.get(rule)
        current = None if activation is None else activation.current
        failing = counters["failing"]
        is_failing = current is not None and failing["change"] == current.change
        failed = int(failing["failed"]) if is_failing else 0
        # Failures by publishers beyond their part say nothing about the rule.
        judged = int(counters["matched"]) - int(failing.get("beyond", 0))
        if failures.add(self._clock.monotonic(), judged, failed):
            self._failing[rule] = (
                "paused: it failed again and again; the dead letters say why; a change of the "
                "rule starts it again"
            )
            self._changed.add(rule)

    def _has_unknown_makers(self) -> bool:
        """Tell whether a rule of which something is new was made by an unknown maker."""
        changed = (self._definitions.get(rule) for rule in self._changed)
        return any(one is not None and not self._makers.is_known(one) for one in changed)

    def _look_at_makers(self) -> None:
        """Look again at the rules of those whose rights have changed."""
        changed = self._makers.take_changed()
        for rule, definition in self._definitions.items() if changed else ():
            activation = self._activations.get(rule)
            if definition.made_by not in changed or activation is None:
                continue
            current = activation.current
            is_beyond = current is not None and self._makers.why_not(definition, current)
            if activation.state == "failed" or is_beyond:
                self._unchecked.add(rule)

    def _take_asked(self) -> None:
        while self._asked:
            (rule, error), is_meant = self._asked.popitem()
            activation = self._activations.get(rule)
            current = None if activation is None else activation.current
            if current is not None and is_meant(current):
                self._failing[rule] = error
                self._changed.add(rule)

    def _look_at_costs(self) -> None:
        """Pause rules that take more processor time than their tenant may."""
        costly = self._costs.take_costliest(self._clock.monotonic(), self._is_running)
        self._failing |= costly
        self._changed |= costly.keys()

    def _is_running(self, rule: RuleKey) -> bool:
        activation = self._activations.get(rule)
        return activation is not None and activation.current is not None

    def _steps(self) -> list[ChangeStep]:
        """Return the steps for the rules of which something is new."""
        steps: list[ChangeStep] = []
        unsettled: list[RuleKey] = []
        for rule in sorted(self._changed):
            activation = self._activations.get(rule)
            is_new = not is_settled(self._definitions.get(rule), activation)
            if is_new or has_changed(activation, self._schemas.of(rule[0])):
                unsettled.append(rule)
            elif rule in self._failing and activation is not None and activation.current:
                error = self._failing[rule]
                version, updated_at = activation.version, activation.updated_at
                steps.append(ChangeStep(rule, "paused", version, updated_at, error=error))
        # One that is gone meanwhile is in no doubt.
        self._unchecked &= self._activations.keys() & self._definitions.keys()
        unchecked = sorted(self._unchecked.difference(unsettled, (step.key for step in steps)))
        self._changed.clear()
        self._failing.clear()
        self._unchecked.clear()
        steps += filter(self._is_other, self._threads.map(self._step, unchecked))
        return [*steps, *self._threads.map(self._step, unsettled)]

    def _is_other(self, step: ChangeStep) -> bool:
        """Tell whether something comes of looking at a rule again."""
        activation = self._activations[step.key]
        current = activation.current
        if step.state != activation.state or step.error != activation.error:
            return activation.state in ("running", "failed")
        return (
            current is not None and step.program is not None and current.plan != step.program.plan
        )

    def _step(self, rule: RuleKey) -> ChangeStep:
        definition, activation = self._definitions.get(rule), self._activations.get(rule)
        if definition is None:
            assert activation is not None
            return ChangeStep(rule, "stopped", activation.version, activation.updated_at)
        version, updated_at = definition.version, definition.updated_at
        if not definition.enable:
            return ChangeStep(rule, "stopped", version, updated_at)
        noted = Noted(self._schemas.of(rule[0]))
        try:
            program = self._compile(definition, noted, self._references.get(rule[0], {}))
        except RuleError as error:
            return ChangeStep(
                rule, "failed", version, updated_at, None, str(error), noted.newest_used()
            )
        except Exception as error:
            # Of one rule; the others of this change are not to be lost for it.
            logger.exception("rule not compiled", extra={"fields": {"rule": rule[1]}})
            return ChangeStep(rule, "failed", version, updated_at, error=f"not compiled: {error!r}")
        why = self._makers.why_not(definition, program)
        if why is not None:
            logger.warning("a rule does not run", extra={"fields": {"rule": rule, "reason": why}})
            return ChangeStep(rule, "failed", version, updated_at, None, why, noted.newest_used())
        return ChangeStep(
            rule,
            "running",
            version,
            updated_at,
            program,
            None,
            noted.newest_used(),
            created_at=definition.created_at,
        )

    def _make_change(self, steps: list[ChangeStep]) -> None:
        change = self._change + 1
        begin = time.monotonic()
        try:
            barriers = self._log.append_barriers(change)
        except LogError:
            self._give_up(change, steps)
            raise
        activations = {
            step.key: next_activation(
                step, self._activations.get(step.key), change, barriers, self._clock.now_ms()
            )
            for step in steps
        }
        try:
            self._write(activations, change)
        except LogError:
            # The part of it that is in the log is read from there, and decides. Its number stays
            # the next one, so that never more than one is open.
            self._remember(steps)
            self._is_ready = False
            raise
        self._change = change
        self._ends = barriers
        for rule, activation in activations.items():
            before = self._activations.get(rule)
            if before is not None and before.state == "paused":
                self._costs.forget(rule)  # its time until the pause was in force
            self._activations[rule] = activation
            self._ended_at[rule] = self._clock.monotonic()
            for key, failures in self._failures.items():
                if (key.tenant, key.rule) == rule:
                    failures.restart()
        milliseconds = round((time.monotonic() - begin) * 1000)
        fields = {"change": change, "rules": len(steps), "milliseconds": milliseconds}
        logger.info("rules changed", extra={"fields": fields})

    def _give_up(self, change: int, steps: list[ChangeStep]) -> None:
        """Say that nothing comes of a change, and come back to its steps."""
        self._remember(steps)
        self._is_ready = False
        self._write({}, change)
        self._change = change
        self._is_ready = True

    def _write(self, activations: Mapping[RuleKey, Activation], change: int) -> None:
        """Write activations, and behind them that their change is decided."""
        records = [_record(rule, activation) for rule, activation in activations.items()]
        self._log.write([*records, (DECIDED_KEY, encode_decided(change))])

    def _remember(self, steps: list[ChangeStep]) -> None:
        """Keep the steps for the next change, because nothing came of this one."""
        rules = {step.key for step in steps}
        self._changed |= rules
        # Of those that were looked at again nothing else is new.
        self._unchecked |= rules
        self._failing |= {step.key: step.error or "" for step in steps if step.state == "paused"}

    def _tidy(self) -> None:
        """Forget versions that are not needed any more."""
        now = self._clock.monotonic()
        self._tidied_at = now
        done = self._done()
        records: list[tuple[bytes, bytes | None]] = []
        for rule, activation in list(self._activations.items()):
            if now - self._ended_at.setdefault(rule, now) < KEPT_SECONDS:
                continue
            over = [span for span in activation.spans if self._is_done(rule, span, done)]
            if over and not self._is_taken((rule, max(span.change for span in over))):
                continue
            kept = tuple(span for span in activation.spans if span not in over)
            if not kept and rule in self._definitions:
                # It may be asked to go on where it has stopped.
                kept = tuple(only_end(one) for one in activation.spans[-1:] if one.plan is None)
            if not kept and rule not in self._definitions:
                del self._activations[rule]
                records.append(_record(rule, None))
            elif kept != activation.spans:
                self._activations[rule] = replace(activation, spans=kept)
                records.append(_record(rule, self._activations[rule]))
        if records:
            self._log.write(records)

    def _is_done(self, rule: RuleKey, span: Span, done: Position | None) -> bool:
        if span.plan is None:
            return is_done(span, done)
        return span.is_ended and self._is_run_ended(run_name(*rule, span.change))

    def _take_unread(self) -> None:
        while self._unread:
            rule, unread = self._unread.popitem()
            activation = self._activations.get(rule)
            before = None if activation is None else activation.unread
            if activation is not None and (before is None or before.change < unread.change):
                told = replace(activation, unread=unread)
                self._log.write([_record(rule, told)])
                self._activations[rule] = told

    def _look_where_to_begin(self) -> None:
        if self._is_ready:
            self.first = first_needed(self._activations, self._done(), self._ends)
            self.runs = runs_of(self._activations)


def _record(rule: RuleKey, activation: Activation | None) -> tuple[bytes, bytes | None]:
    value = None if activation is None else encode_activation(activation)
    return rules_key(RulesKey("activation", *rule)), value
