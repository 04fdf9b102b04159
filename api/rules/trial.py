"""Try a rule on one made-up message: Spark evaluates the very expression that runs live."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from api.rules import plans
from api.rules.history import binary, guarded, text
from api.spark.connect import EvaluationError, SparkConnect
from mqlake.topics.matching import filter_matches
from rules.columns import ROW
from rules.language.compiled import CompiledRule, Condition, Field
from rules.language.plan import Plan
from rules.sql.confined import Confined, GivenRows

TIMEOUT_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A made-up message, or a made-up event.

    Attributes:
        columns: Column of the row -> value: text, number, truth value, bytes or None; VARIANT
            columns hold JSON text. Those that are absent are NULL.
    """

    topic: str
    columns: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason why a rule gave nothing.

    Attributes:
        sentence: For people.
        condition: Condition of WHERE, as the rule writes it; None for another step.
        values: Field that the condition reads -> its value.
        missing: Fields that the condition reads and the message lacks.
    """

    sentence: str
    condition: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a trial; without an error and a reason there are outputs."""

    outputs: tuple[Any, ...] = ()
    error: str | None = None
    reason: Reason | None = None


def try_rule(
    rule: CompiledRule, sample: Sample, spark: SparkConnect, tenant: str = "default"
) -> Outcome:
    """Evaluate a rule on a sample; a stateful one as if it were the only message.

    Args:
        rule: Which.
        sample: The message or event.
        spark: Session that evaluates it.
        tenant: Owner of the reference tables that it may join.

    Raises:
        SparkAway: Spark does not answer.
        OperationalError: No system runs.
    """
    if not any(_matches(one, sample.topic) for one in rule.filters):
        said = " or ".join(map(repr, rule.filters))
        return Outcome(reason=Reason(f"topic {sample.topic!r} does not match {said}"))
    if rule.plan is not None:
        return _try_plan(rule, rule.plan, sample, spark, tenant)
    try:
        query = _query(f"{rule.expression} AS outputs", sample)
        (row,) = spark.rows(query, TIMEOUT_SECONDS, tenant=tenant)
    except EvaluationError as exc:
        return Outcome(error=str(exc))
    outputs = tuple(json.loads(one) for one in row["outputs"] or ())
    if outputs:
        return Outcome(outputs)
    return Outcome(reason=_reason(rule, sample, spark, tenant))


def _try_plan(
    rule: CompiledRule, plan: Plan, sample: Sample, spark: SparkConnect, tenant: str
) -> Outcome:
    source = GivenRows(_row(sample))
    sources = {stream.name: source for stream in plan.streams}
    concerned = [
        stream
        for stream in plan.streams
        if any(_matches(one, sample.topic) for one in stream.filters)
    ]
    try:
        taken = [
            row["found"]
            for stream in concerned
            for row in spark.rows(
                _query(f"{plans.unguarded(stream)} AS found", sample),
                TIMEOUT_SECONDS,
                tenant=tenant,
            )
        ]
        rows = spark.rows(plans.rows(plan, sources, tenant), TIMEOUT_SECONDS, tenant=tenant)
    except EvaluationError as exc:
        return Outcome(error=str(exc))
    outputs = tuple(json.loads(row["row"]) for row in rows if row["row"] is not None)
    if outputs:
        return Outcome(outputs)
    if rows:
        return Outcome(error="what the rule selects cannot be computed")
    if any(taken):
        return Outcome(
            reason=Reason("the message is taken in, but gives no output before others come")
        )
    return Outcome(reason=_reason(rule, sample, spark, tenant))


def constant_conditions(rule: CompiledRule, spark: SparkConnect, tenant: str) -> list[str]:
    """Return the conditions that read nothing of a message and are not true.

    Raises:
        EvaluationError: One of them fails.
        SparkAway: Spark does not answer.
    """
    constant = [one for one in rule.conditions if not one.fields]
    if not constant or not rule.deterministic:
        return []
    wanted = ", ".join(f"{one.expression} AS c{at}" for at, one in enumerate(constant))
    (row,) = spark.rows(_query(wanted, Sample("", {})), TIMEOUT_SECONDS, tenant=tenant)
    return [one.text for at, one in enumerate(constant) if row[f"c{at}"] is not True]


def _reason(rule: CompiledRule, sample: Sample, spark: SparkConnect, tenant: str) -> Reason:
    """Find the first condition that is not true; fields are asked in the same query."""
    if not rule.conditions:
        return Reason(
            "the array of FOREACH gives no rows" if rule.plan is None else "a condition is not true"
        )
    wanted = [
        f"{guarded(f'array(CAST({one.expression} AS STRING))')} AS c{at}"
        for at, one in enumerate(rule.conditions)
    ]
    fields = {read.name: read for one in rule.conditions for read in one.fields}
    wanted += [f"{_value(read)} AS f{at}" for at, read in enumerate(fields.values())]
    wanted.append("payload IS NOT NULL AND payload_json IS NULL AS opaque")
    (row,) = spark.rows(_query(", ".join(wanted), sample), TIMEOUT_SECONDS, tenant=tenant)
    values = {name: _read_value(row[f"f{at}"]) for at, name in enumerate(fields) if row[f"f{at}"]}
    for at, condition in enumerate(rule.conditions):
        said = row[f"c{at}"]
        if said is None or said != b"true":
            return _explain(condition, values, said, is_opaque=row["opaque"])
    return Reason("every condition is true, but no row is left: see INCASE")


def _explain(
    condition: Condition, values: dict[str, Any], said: bytes | None, *, is_opaque: bool
) -> Reason:
    read = {one.name: values.get(one.name) for one in condition.fields}
    missing = tuple(name for name, value in read.items() if value is None)
    if said is None:
        sentence = f"the condition {condition.text} cannot be evaluated"
    else:
        sentence = f"the condition {condition.text} is not true"
    if missing:
        sentence += f": the message has no {', '.join(missing)}"
        if is_opaque and any(name.startswith("payload.") for name in missing):
            sentence += ", its payload is not JSON"
    elif read:
        shown = ", ".join(f"{name} is {_shown(value)}" for name, value in read.items())
        sentence += f": {shown}"
    return Reason(sentence, condition.text, read, missing)


def _value(read: Field) -> str:
    """Return the expression of a field's value as JSON, `{}` without one."""
    expression = f"to_json(named_struct('v', {read.expression}))"
    return guarded(f"array({expression})")


def _read_value(data: bytes) -> Any:
    return json.loads(data).get("v")


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 100 else f"{shown[:100]}…"


def _matches(topic_filter: str, topic: str) -> bool:
    if topic_filter.startswith("$events/"):
        return topic_filter == topic
    return filter_matches(topic_filter, topic)


def _query(wanted: str, sample: Sample) -> Confined:
    return Confined(f"SELECT {wanted} FROM made_up", {"made_up": GivenRows(_row(sample))})  # noqa: S608


def _row(sample: Sample) -> str:
    columns = ", ".join(
        f"{_literal(sample.columns.get(column.name), column.type)} AS {column.name}"
        for column in ROW
    )
    return f"SELECT {columns}"


def _literal(value: Any, type_: str) -> str:
    if value is None:
        return f"CAST(NULL AS {type_})"
    if type_ == "VARIANT":
        return f"try_parse_json({text(value)})"
    if isinstance(value, bytes):
        return binary(value)
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return f"CAST({value:d} AS {type_})"
    return text(str(value))
