"""Puts versions of rules in force, and out of it.

The definitions and activations in `mqlake.rules` decide what there is to do, so a controller that
is killed at any point is followed by one that goes on. A change is a barrier through the sources,
then the activations, then the record that says the change is decided; changes that come together
share one barrier.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from pydantic import ValidationError

from mqlake.clock import Clock
from mqlake.errors import InvalidRecord, LogError
from mqlake.records import ACCESS, METRICS
from mqlake.reference_records import (
    Columns,
    ReferenceKey,
    decode_reference_key,
    decode_reference_state,
)
from mqlake.rule_records import (
    DECIDED_KEY,
    Activation,
    RuleMetricsKey,
    RulesKey,
    Span,
    decode_activation,
    decode_decided,
    decode_rule_metrics_key,
    decode_rules_key,
    encode_activation,
    encode_decided,
    rules_key,
    run_name,
)
from mqlake.schema_records import SchemaKey, decode_schema_key
from rules.errors import RuleError
from rules.model import Rule
from rules.schemas.registry import Noted, SchemaBook
from streaming.rules.changes import (
    Failures,
    Offsets,
    Position,
    RuleKey,
    Step,
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
from streaming.rules.log import RuleLog, RuleRecord
from streaming.rules.makers import RuleMakers
from streaming.rules.plans import Run
from streaming.rules.program import Compile, TableAction, table_actions

logger = logging.getLogger(__name__)

KEPT_SECONDS: Final = 600.0
"""How long a version stays known after it is out of force."""
TIDY_SECONDS: Final = 60.0
READ_SECONDS: Final = 0.5
COMPILING_THREADS: Final = 2
"""Compiling a rule takes some 20 ms, most of it in Java; routing needs the other processors."""
ENGINE: Final = "engine"
"""Name of the process in the metrics of evaluation."""


class Settings(Protocol):
    """What the controller may be told."""

    @property
    def rules_pause_failures(self) -> int: ...

    @property
    def rules_pause_share(self) -> float: ...


class RuleController:
    """Follows definitions and writes activations; `step` does what is due.

    Args:
        log: Where rules are.
        compile_: Makes a rule's definition something that can be evaluated.
        settings: When a rule that fails is paused.
        clock: For how long ended versions are kept.
        done: Tells how far the evaluation has certainly come.
        is_run_ended: Tells whether a version with memory, by the name of its run, has nothing more
            to do.

    Attributes:
        first: Where the evaluation has to begin at the latest; None when there is nothing to
            evaluate. Another thread reads it.
        runs: All versions with memory, ended ones too; None while they are not known. Another
            thread reads it.
        refused: How many activations were not signed as ours are.
        begun: Number of the change with which the engine has begun: what it then withdrew is not
            to be evaluated. Another thread reads it, once `first` is known.
    """

    def __init__(
        self,
        log: RuleLog,
        compile_: Compile,
        settings: Settings,
        clock: Clock,
        done: Callable[[], Position | None] = lambda: None,
        is_run_ended: Callable[[str], bool] = lambda _name: False,
    ) -> None:
        self._log = log
        self._compile = compile_
        self._settings = settings
        self._clock = clock
        self._done = done
        self._is_run_ended = is_run_ended
        self._references: dict[str, dict[str, Columns]] = {}
        self._doubtful: set[RuleKey] = set()
        self._asked: dict[tuple[RuleKey, str], Callable[[Span], bool]] = {}
        self._definitions: dict[RuleKey, Rule] = {}
        self._makers = RuleMakers(clock)
        self._schemas = SchemaBook()
        self._activations: dict[RuleKey, Activation] = {}
        self._ended_at: dict[RuleKey, float] = {}
        self._changed: set[RuleKey] = set()
        self._failing: dict[RuleKey, str] = {}
        self._failures: dict[RuleMetricsKey, Failures] = {}
        self._change = 0
        self._is_ready = False
        self._tidied_at = clock.monotonic()
        self._ends: Offsets = {}
        self._threads = ThreadPoolExecutor(COMPILING_THREADS, "rules-compile")
        self._table_actions: dict[tuple[str, str, int], tuple[TableAction, ...]] = {}
        self._overwritten: set[RuleKey] = set()
        self.refused = 0
        self.first: Position | None = None
        self.runs: tuple[Run, ...] | None = None
        self.begun: int | None = None

    @property
    def has_rules(self) -> bool:
        """Whether there are any, in force or not."""
        return self._is_ready and bool(self._activations)

    def run_names(self) -> frozenset[str] | None:
        """Return the names of all runs that may still write; None while they are not known."""
        runs = self.runs
        return None if runs is None else frozenset(run.name for run in runs)

    def table_actions(self, version: tuple[str, str, int]) -> tuple[TableAction, ...]:
        """Return the tables that the rows of a version (tenant, rule, version) go to."""
        return self._table_actions.get(version, ())

    def is_known(self, rule: RuleKey) -> bool:
        """Tell whether there is a rule, in force or not; from any thread."""
        return rule in self._activations

    def pause(self, run: Run, error: str) -> None:
        """Ask for a rule to be paused, if that version is still in force; from any thread."""
        change = run.span.change
        self._asked[(run.tenant, run.rule), error] = lambda span: span.change == change

    def pause_version(self, rule: RuleKey, version: int, error: str) -> None:
        """Ask for a rule to be paused, if that version is still in force; from any thread.

        Whoever asks before the rules are read asks in vain.
        """
        self._asked[rule, error] = lambda span: span.version == version

    def run(self, stopping: threading.Event) -> None:
        """Step until told to stop; for a thread of its own."""
        while not stopping.is_set():
            try:
                self.step()
            except LogError as error:
                logger.warning("rules not changed", extra={"fields": {"reason": str(error)}})
                stopping.wait(1.0)
            except Exception:
                # Whatever is wrong with a rule, the next change must find a controller.
                logger.exception("rules not changed")
                stopping.wait(1.0)
        self._threads.shutdown()
        self._log.close()

    def step(self, timeout_seconds: float = READ_SECONDS) -> None:
        """Read what is new and make the change it asks for.

        Raises:
            LogError: The change could not be written; the next step makes it anew.
        """
        for record in self._log.read(timeout_seconds):
            self._apply(record)
        if not self._is_ready:
            if not self._log.is_caught_up():
                return
            self._begin()
        self._overwrite()
        self._take_asked()
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
        # decided, it keeps nobody waiting.
        change = self._change + 1
        self._ends = self._log.append_barriers(change)
        # Who is killed here and begins again has what is left to withdraw.
        withdrawn_now = self._unwanted(change) if self.begun is None else {}
        # What this application has not signed yet it signs before anybody evaluates by it.
        known = self._activations if self._log.is_unsigned else {}
        records: list[tuple[bytes, bytes | None]] = [
            (rules_key(RulesKey("activation", *rule)), encode_activation(activation))
            for rule, activation in (known | withdrawn_now).items()
        ]
        self._log.write([*records, (DECIDED_KEY, encode_decided(change))])
        self._log.note_signed()
        for rule, activation in withdrawn_now.items():
            self._note(rule, activation)
        self._change = change
        self.begun = change if self.begun is None else self.begun
        self._changed |= self._definitions.keys() | self._activations.keys()
        # An activation that stands behind a change of a table may have been made without it.
        self._doubtful |= {
            rule
            for rule, activation in self._activations.items()
            if activation.state == "failed" or joined_tables(activation)
        }
        self._is_ready = True

    def _unwanted(self, change: int) -> dict[RuleKey, Activation]:
        """Return the rules that nobody wants and that would be evaluated again."""
        done = self._done()
        found = {
            rule: withdrawn(activation, done, change)
            for rule, activation in self._activations.items()
            if is_unwanted(self._definitions.get(rule), activation)
        }
        return {rule: one for rule, one in found.items() if one is not self._activations[rule]}

    def _apply(self, record: RuleRecord) -> None:
        try:
            if not record.is_ours:
                self._refuse(record.key)
            elif record.log_topic == METRICS:
                self._apply_metrics(record)
            elif record.log_topic == ACCESS:
                self._makers.apply(record.key, record.value)
            elif record.key == DECIDED_KEY:
                if record.value is not None:
                    self._change = max(self._change, decode_decided(record.value))
            elif (key := decode_rules_key(record.key)) is not None:
                self._apply_rule(key, record.value)
            elif (schema := decode_schema_key(record.key)) is not None:
                self._apply_schema(schema, record.value)
            elif (reference := decode_reference_key(record.key)) is not None:
                self._apply_reference(reference, record.value)
        except (InvalidRecord, ValidationError, ValueError) as error:
            fields = {"key": record.key.decode(errors="replace"), "reason": str(error)}
            logger.warning("record of rules ignored", extra={"fields": fields})

    def _apply_rule(self, key: RulesKey, value: bytes | None) -> None:
        rule = key.tenant, key.rule
        if key.kind == "definition":
            if value is None:
                self._definitions.pop(rule, None)
            else:
                self._definitions[rule] = Rule.model_validate_json(value)
                self._makers.note(self._definitions[rule])
            self._changed.add(rule)
        elif key.kind == "activation" and not self._is_ready:
            # Later on it is one that was written here, and may be older than what is known.
            if value is None:
                self._activations.pop(rule, None)
            else:
                self._note(rule, decode_activation(value))
            self._changed.add(rule)

    def _refuse(self, data: bytes) -> None:
        """Pass over an activation that is not ours; the log is to keep the one that is."""
        self.refused += 1
        logger.warning(
            "an activation that this application has not signed is refused",
            extra={"fields": {"key": data.decode(errors="replace")}},
        )
        key = decode_rules_key(data)
        if key is not None:
            self._overwritten.add((key.tenant, key.rule))

    def _overwrite(self) -> None:
        """Write again what others have written over."""
        rules = sorted(self._overwritten)
        known = [self._activations.get(rule) for rule in rules]
        if rules:
            self._log.write(
                (
                    rules_key(RulesKey("activation", *rule)),
                    None if activation is None else encode_activation(activation),
                )
                for rule, activation in zip(rules, known, strict=True)
            )
            self._overwritten.clear()

    def _apply_schema(self, key: SchemaKey, value: bytes | None) -> None:
        self._schemas.apply(key, value)
        self._changed |= {
            rule
            for rule, activation in self._activations.items()
            if rule[0] == key.tenant and key.name in activation.schemas
        }

    def _apply_reference(self, key: ReferenceKey, value: bytes | None) -> None:
        """Look again at the rules that join a table whose columns are others now."""
        if key.kind != "state":
            return
        state = None if value is None else decode_reference_state(value)
        columns = None if state is None or state.version is None else state.columns
        known = self._references.setdefault(key.tenant, {})
        if known.get(key.reference) == columns:
            return
        if columns is None:
            known.pop(key.reference, None)
        else:
            known[key.reference] = columns
        self._doubtful |= {
            rule
            for rule, activation in self._activations.items()
            if rule[0] == key.tenant
            and (activation.state == "failed" or key.reference in joined_tables(activation))
        }

    def _apply_metrics(self, record: RuleRecord) -> None:
        key = decode_rule_metrics_key(record.key)
        if key is None or key.process != ENGINE:
            return
        if record.value is None:
            self._failures.pop(key, None)
            return
        counters: dict[str, Any] = json.loads(record.value)
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
        # What publishers made fail beyond their part says nothing about the rule.
        judged = int(counters["matched"]) - int(failing.get("beyond", 0))
        if failures.add(self._clock.monotonic(), judged, failed):
            self._failing[rule] = (
                "paused: it failed again and again; the dead letters say why; a change of the "
                "rule starts it again"
            )
            self._changed.add(rule)

    def _has_unknown_makers(self) -> bool:
        """Tell whether a rule of which something is new was made by somebody without rights."""
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
                self._doubtful.add(rule)

    def _take_asked(self) -> None:
        while self._asked:
            (rule, error), is_meant = self._asked.popitem()
            activation = self._activations.get(rule)
            current = None if activation is None else activation.current
            if current is not None and is_meant(current):
                self._failing[rule] = error
                self._changed.add(rule)

    def _steps(self) -> list[Step]:
        """Return what is to become of the rules of which something is new."""
        steps: list[Step] = []
        unsettled: list[RuleKey] = []
        for rule in sorted(self._changed):
            activation = self._activations.get(rule)
            is_new = not is_settled(self._definitions.get(rule), activation)
            if is_new or has_changed(activation, self._schemas.of(rule[0])):
                unsettled.append(rule)
            elif rule in self._failing and activation is not None and activation.current:
                error = self._failing[rule]
                version, updated_at = activation.version, activation.updated_at
                steps.append(Step(rule, "paused", version, updated_at, error=error))
        # One that is gone meanwhile is in no doubt.
        self._doubtful &= self._activations.keys() & self._definitions.keys()
        doubtful = sorted(self._doubtful.difference(unsettled, (step.key for step in steps)))
        self._changed.clear()
        self._failing.clear()
        self._doubtful.clear()
        steps += filter(self._is_other, self._threads.map(self._step, doubtful))
        return [*steps, *self._threads.map(self._step, unsettled)]

    def _is_other(self, step: Step) -> bool:
        """Tell whether something comes of looking at a rule again."""
        activation = self._activations[step.key]
        current = activation.current
        if step.state != activation.state or step.error != activation.error:
            return activation.state in ("running", "failed")
        return (
            current is not None and step.program is not None and current.plan != step.program.plan
        )

    def _step(self, rule: RuleKey) -> Step:
        definition, activation = self._definitions.get(rule), self._activations.get(rule)
        if definition is None:
            assert activation is not None
            return Step(rule, "stopped", activation.version, activation.updated_at)
        version, updated_at = definition.version, definition.updated_at
        if not definition.enable:
            return Step(rule, "stopped", version, updated_at)
        noted = Noted(self._schemas.of(rule[0]))
        try:
            program = self._compile(definition, noted, self._references.get(rule[0], {}))
        except RuleError as error:
            return Step(rule, "failed", version, updated_at, None, str(error), noted.newest_used())
        except Exception as error:
            # Of one rule; the others of this change are not to be lost for it.
            logger.exception("rule not compiled", extra={"fields": {"rule": rule[1]}})
            return Step(rule, "failed", version, updated_at, error=f"not compiled: {error!r}")
        why = self._makers.why_not(definition, program)
        if why is not None:
            logger.warning("a rule does not run", extra={"fields": {"rule": rule, "reason": why}})
            return Step(rule, "failed", version, updated_at, None, why, noted.newest_used())
        return Step(
            *(rule, "running", version, updated_at, program, None, noted.newest_used()),
            created_at=definition.created_at,
        )

    def _make_change(self, steps: list[Step]) -> None:
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
        records: list[tuple[bytes, bytes | None]] = [
            (rules_key(RulesKey("activation", *rule)), encode_activation(activation))
            for rule, activation in activations.items()
        ]
        try:
            self._log.write([*records, (DECIDED_KEY, encode_decided(change))])
        except LogError:
            # What of it is in the log is read from there, and decides. Its number stays the next
            # one, so that never more than one is open.
            self._remember(steps)
            self._is_ready = False
            raise
        self._change = change
        self._ends = barriers
        for rule, activation in activations.items():
            self._note(rule, activation)
            self._ended_at[rule] = self._clock.monotonic()
            for key, failures in self._failures.items():
                if (key.tenant, key.rule) == rule:
                    failures.restart()
        milliseconds = round((time.monotonic() - begin) * 1000)
        fields = {"change": change, "rules": len(steps), "milliseconds": milliseconds}
        logger.info("rules changed", extra={"fields": fields})

    def _note(self, rule: RuleKey, activation: Activation) -> None:
        self._activations[rule] = activation
        for span in activation.spans:
            found = table_actions(span.actions, span.schema)
            if found:
                self._table_actions[(*rule, span.version)] = found

    def _give_up(self, change: int, steps: list[Step]) -> None:
        """Say that nothing comes of a change, and come back to what it was to do."""
        self._remember(steps)
        self._is_ready = False
        self._log.write([(DECIDED_KEY, encode_decided(change))])
        self._change = change
        self._is_ready = True

    def _remember(self, steps: list[Step]) -> None:
        """Keep what the next change is to do, because nothing came of this one."""
        rules = {step.key for step in steps}
        self._changed |= rules
        # Of those that were looked at again nothing else is new.
        self._doubtful |= rules
        self._failing |= {step.key: step.error or "" for step in steps if step.state == "paused"}

    def _tidy(self) -> None:
        """Forget versions that nobody needs any more."""
        now = self._clock.monotonic()
        self._tidied_at = now
        done = self._done()
        records: list[tuple[bytes, bytes | None]] = []
        for rule, activation in list(self._activations.items()):
            if now - self._ended_at.setdefault(rule, now) < KEPT_SECONDS:
                continue
            done_with = [self._is_done(rule, span, done) for span in activation.spans]
            kept = tuple(
                span for span, over in zip(activation.spans, done_with, strict=True) if not over
            )
            if not kept and rule in self._definitions:
                # Where it has stopped is where it may be told to go on.
                kept = tuple(only_end(one) for one in activation.spans[-1:] if one.plan is None)
            key = rules_key(RulesKey("activation", *rule))
            if not kept and rule not in self._definitions:
                del self._activations[rule]
                records.append((key, None))
            elif kept != activation.spans:
                changed = Activation(
                    activation.tenant,
                    activation.rule,
                    activation.state,
                    activation.version,
                    activation.change,
                    activation.error,
                    kept,
                    activation.updated_at,
                    activation.schemas,
                )
                self._activations[rule] = changed
                records.append((key, encode_activation(changed)))
        if records:
            self._log.write(records)

    def _is_done(self, rule: RuleKey, span: Span, done: Position | None) -> bool:
        if span.plan is None:
            return is_done(span, done)
        return span.is_ended and self._is_run_ended(run_name(*rule, span.change))

    def _look_where_to_begin(self) -> None:
        if self._is_ready:
            self.first = first_needed(self._activations, self._done(), self._ends)
            self.runs = tuple(
                Run(tenant, rule, span)
                for (tenant, rule), activation in self._activations.items()
                for span in activation.spans
                if span.plan is not None
            )
