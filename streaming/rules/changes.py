"""Changes of rules: from definitions and earlier activations to those from now on.

Pure: no log, no Spark, no clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mqlake.records.messages import EVENTS, INBOUND
from mqlake.records.offsets import at, earliest, latest
from mqlake.records.rule_facts import RuleKey
from mqlake.records.rules import Activation, ActivationState, OffsetRange, Span
from rules.model import Rule
from rules.schemas.registry import SchemaLookup

Offsets = Mapping[str, tuple[int, ...]]
"""By log topic, for each of its partitions."""

Position = dict[str, dict[int, int]]
"""By log topic and partition; how far the evaluation has come, or where it begins."""


@dataclass(frozen=True, slots=True)
class RuleProgram:
    """A version of a rule that can be evaluated.

    Attributes:
        filters: Topic filters of all that it reads.
        is_events: Whether they name events.
        expression: Spark SQL of a stateless rule.
        actions: Actions of the definition.
        schema: Schema of a row; None when no action needs it.
        plan: Plan of a stateful rule.
        sources: Log topics that it reads; None: those that follow from `is_events`.
    """

    filters: tuple[str, ...]
    is_events: bool
    expression: str | None
    actions: tuple[dict[str, Any], ...]
    schema: str | None
    plan: dict[str, Any] | None = None
    sources: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """Step of a change, for one rule.

    Attributes:
        key: Which rule.
        state: Its state from now on.
        version: The version of its definition that was looked at.
        updated_at: When that version was made.
        program: Runs from now on; None when none does.
        error: Why it does not run.
        schemas: See `Activation`.
        created_at: When the rule was made; 0 if there is none.
    """

    key: RuleKey
    state: ActivationState
    version: int
    updated_at: int
    program: RuleProgram | None = None
    error: str | None = None
    schemas: Mapping[str, int] = field(default_factory=dict)
    created_at: int = 0


def is_settled(definition: Rule | None, activation: Activation | None) -> bool:
    """Tell whether the engine has answered for the newest version of a definition."""
    if definition is None:
        return activation is None or activation.current is None
    if activation is None:
        return False
    if (activation.version, activation.updated_at) != (definition.version, definition.updated_at):
        return False
    return definition.enable == (activation.state != "stopped")


def has_changed(activation: Activation | None, schemas: SchemaLookup) -> bool:
    """Tell whether a rule was compiled with schemas that are no longer the newest.

    One that is paused stays so: where it goes on is a new version of it.
    """
    if activation is None or activation.state not in ("running", "failed"):
        return False
    return any(schemas.newest(name) != version for name, version in activation.schemas.items())


def joined_tables(activation: Activation) -> frozenset[str]:
    """Return the reference tables that the version in force joins."""
    current = activation.current
    return frozenset() if current is None else tables_of(current.plan)


def tables_of(plan: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the reference tables that a plan joins."""
    return frozenset(one["table"] for one in (plan or {}).get("references", ()))


def next_activation(
    step: ChangeStep, activation: Activation | None, change: int, barriers: Offsets, now_ms: int = 0
) -> Activation:
    """Return the activation after a change.

    Args:
        step: For the rule.
        activation: The one before.
        change: Its number.
        barriers: Offsets of the change in the sources.
        now_ms: When they were written.
    """
    spans = () if activation is None else activation.spans
    ended = tuple(span if span.is_ended else _end(span, barriers, now_ms) for span in spans)
    # A rule that was deleted and made again is another one, even with the same number.
    goes_on = activation is not None and activation.updated_at == step.updated_at
    before = activation.current if activation is not None and goes_on else None
    is_same = activation is not None and step.created_at <= activation.updated_at
    stopped = ended[-1] if ended and is_same else None
    tenant, rule = step.key
    return Activation(
        tenant=tenant,
        rule=rule,
        state=step.state,
        version=step.version,
        change=change,
        error=step.error,
        spans=ended
        if step.program is None
        else (*ended, _begin(step, step.program, before, stopped, change, barriers)),
        updated_at=step.updated_at,
        schemas=dict(step.schemas),
        unread=activation.unread if activation is not None and is_same else None,
    )


def _begin(
    step: ChangeStep,
    program: RuleProgram,
    before: Span | None,
    stopped: Span | None,
    change: int,
    barriers: Offsets,
) -> Span:
    sources = program.sources or (EVENTS if program.is_events else INBOUND,)
    first = None
    missed = _missed(stopped, sources, barriers)
    if before is not None and before.version == step.version:
        # The same rule goes on with a schema or a reference table that has changed.
        first = before.first or {name: range_.starts for name, range_ in before.sources.items()}
        missed = before.missed
    return Span(
        version=step.version,
        filters=program.filters,
        expression=program.expression,
        actions=program.actions,
        schema=program.schema,
        sources={source: OffsetRange(barriers[source]) for source in sources},
        first=first,
        plan=program.plan,
        change=change,
        missed=missed,
    )


def _missed(
    stopped: Span | None, sources: Iterable[str], barriers: Offsets
) -> dict[str, tuple[int, ...]] | None:
    """Return where a rule stopped that begins again now; None when it has not, or is new."""
    if stopped is None:
        return None
    ends = {name: stopped.sources[name].ends for name in sources if name in stopped.sources}
    return {name: end for name, end in ends.items() if end and end != barriers[name]} or None


def _end(span: Span, barriers: Offsets, now_ms: int) -> Span:
    sources = {
        log_topic: range_
        if range_.ends is not None
        else OffsetRange(range_.starts, barriers[log_topic])
        for log_topic, range_ in span.sources.items()
    }
    return replace(span, sources=sources, ended_at_ms=None if span.plan is None else now_ms)


def is_unwanted(definition: Rule | None, activation: Activation) -> bool:
    """Tell whether a rule was deleted, switched off or paused."""
    is_enabled = definition is not None and definition.enable
    return not is_enabled or activation.state in ("stopped", "paused")


def withdrawn(activation: Activation, done: Position | None, change: int) -> Activation:
    """Return an unwanted rule without the part that an engine that starts would evaluate again.

    The last engine may have died of that. A stateless version ends where the evaluation has
    certainly come to. A stateful one is not evaluated here: it ends with the next change.

    Args:
        activation: Activation of the rule.
        done: How far the evaluation has certainly come.
        change: Number of this change; the same rule is returned when nothing changes.
    """
    spans = tuple(span if span.plan else _cut(span, done) for span in activation.spans)
    if spans == activation.spans:
        return activation
    is_paused = activation.state == "paused"
    return replace(
        activation,
        state="paused" if is_paused else "stopped",
        error=activation.error if is_paused else None,
        change=change,
        spans=spans,
    )


def _cut(span: Span, done: Position | None) -> Span:
    sources = {}
    for log_topic, range_ in span.sources.items():
        positions = (done or {}).get(log_topic, {})
        known = [positions.get(partition, 0) for partition in range(max(positions, default=-1) + 1)]
        offsets = latest(range_.starts, known)
        if range_.ends is not None:
            offsets = earliest(offsets, range_.ends)
        sources[log_topic] = OffsetRange(range_.starts, tuple(offsets))
    return replace(span, sources=sources)


def only_end(span: Span) -> Span:
    """Return of a version that has ended no more than where: it counts for nothing."""
    ends = {name: range_.ends or range_.starts for name, range_ in span.sources.items()}
    return replace(span, sources={name: OffsetRange(end, end) for name, end in ends.items()})


def is_done(span: Span, done: Position | None) -> bool:
    """Tell whether the evaluation has certainly passed a version, never to come back to it."""
    return span.is_empty or all(
        range_.ends is not None
        and all(
            (done or {}).get(log_topic, {}).get(partition, 0) >= end
            for partition, end in enumerate(range_.ends)
        )
        for log_topic, range_ in span.sources.items()
    )


def first_needed(
    activations: Mapping[RuleKey, Activation], done: Position | None, ends: Offsets
) -> Position | None:
    """Return where the evaluation has to begin at the latest; None when there is none to be done.

    Stateful rules have queries of their own.

    Args:
        activations: All there are.
        done: How far it has certainly come.
        ends: Somewhere near the end of each source; where it begins with a source of no rule.
    """
    needed = [
        span
        for activation in activations.values()
        for span in activation.spans
        if span.plan is None and not is_done(span, done)
    ]
    if not needed:
        return None
    first: Position = {}
    for log_topic, offsets in ends.items():
        starts = [span.sources[log_topic].starts for span in needed if log_topic in span.sources]
        first[log_topic] = {
            partition: min((at(start, partition) for start in starts), default=end)
            for partition, end in enumerate(offsets)
        }
    return first


WINDOW_SECONDS: Final = 60.0


class Failures:
    """Watches how often a rule fails.

    Args:
        most: Failures within a minute from which on a rule may be taken for failing.
        share: Part of its evaluations in that minute above which it is failing.
    """

    def __init__(self, most: int, share: float) -> None:
        self._most = most
        self._share = share
        self._seen: list[tuple[float, int, int]] = []

    def add(self, at: float, evaluated: int, failed: int) -> bool:
        """Take the present counters; tell whether the rule fails too often.

        Args:
            at: Seconds of a monotonic clock.
            evaluated: How many records it was evaluated on in this run of the engine.
            failed: How often the version in force has failed.
        """
        if not self._seen:
            self._seen.append((at, 0, 0))
        # One reading older than the window stays, to measure the window from.
        while len(self._seen) > 1 and self._seen[1][0] <= at - WINDOW_SECONDS:
            self._seen.pop(0)
        self._seen.append((at, evaluated, failed))
        _, evaluated_before, failed_before = self._seen[0]
        failures = failed - failed_before
        return failures >= self._most and failures > self._share * (evaluated - evaluated_before)

    def restart(self) -> None:
        """Count from now on, for another version, which has not failed yet."""
        self._seen = [(at, evaluated, 0) for at, evaluated, _ in self._seen[-1:]]
