"""Detections: the one condition of WHERE that looks at the messages of a key over time."""

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from rules.language import dialect
from rules.language.aggregates import number_columns
from rules.language.carrying import stored
from rules.language.expressions import Expressions
from rules.language.names import DETECTIONS
from rules.language.plan import AT_COLUMN, DETECTED, SINCE, STATE, Detection, DetectionKind
from rules.language.relations import Side
from rules.language.values import Value, as_condition, integer, text
from rules.language.windows import SHORTEST_MS, span_of

TOLD: Final = {
    STATE: text(f"{DETECTED}.{STATE}"),
    SINCE: integer(f"unix_millis({DETECTED}.{SINCE})"),
    AT_COLUMN: integer(f"unix_millis({DETECTED}.{AT_COLUMN})"),
}
"""What a rule may select of a detection."""

_KINDS: Final[dict[str, DetectionKind]] = {
    "absent": "absence",
    "debounce": "debounce",
    "hysteresis": "hysteresis",
    "n_of_m": "n_of_m",
}


def detection_in(node: exp.Expr) -> dialect.Call | None:
    """Return the detection that a condition is."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, dialect.Call) and node.this in DETECTIONS:
        return node
    return None


def read_detection(node: dialect.Call, side: Side, keys: Sequence[exp.Expr]) -> Detection:
    """Compile a detection over the messages of a stream.

    Args:
        node: The detection.
        side: The stream; it gets the columns that the detection needs.
        keys: What GROUP BY lists; without it the topic.

    Raises:
        RuleError: It has other arguments, or exceeds the limits.
    """
    expressions = side.expressions
    names = DETECTIONS[node.this]
    given = node.expressions
    if len(given) != len(names) or any(isinstance(one, dialect.Named) for one in given):
        expressions.fail(node, f"it is {node.this}({', '.join(names)})")
    arguments = dict(zip(names, given, strict=True))
    listed = [expressions.value(key) for key in keys] or [side.scope.column("topic", ())]
    columns = [side.projection.add(*column) for value in listed for column in stored(value)]
    made = Detection(
        kind=_KINDS[node.this],
        stream=side.name,
        keys=tuple(dict.fromkeys(columns)),
        order=side.place(),
        condition=_condition(arguments, side),
        value=_value(arguments, side),
        duration_ms=_duration(arguments, expressions),
        high=_number(arguments, "high", expressions),
        low=_number(arguments, "low", expressions),
        least=_count(arguments, "n", expressions),
        last=_count(arguments, "m", expressions),
    )
    if node.this == "hysteresis" and made.low >= made.high:
        expressions.fail(node, "high must be above low", hint="hysteresis(value, high, low)")
    if made.least > made.last:
        expressions.fail(node, "n must not be above m", hint="n_of_m(condition, n, m)")
    return made


def _condition(arguments: dict[str, exp.Expr], side: Side) -> str | None:
    if "condition" not in arguments:
        return None
    condition = as_condition(side.expressions.condition(arguments["condition"]))
    return side.projection.add("BOOLEAN", condition)


def _value(arguments: dict[str, exp.Expr], side: Side) -> str | None:
    if "value" not in arguments:
        return None
    value = side.expressions.value(arguments["value"])
    _, number = number_columns(value)
    return side.projection.add("DOUBLE", number)


def _duration(arguments: dict[str, exp.Expr], expressions: Expressions) -> int:
    if "duration" not in arguments:
        return 0
    longest = expressions.limits.detection_ms
    return span_of(arguments["duration"], expressions, SHORTEST_MS, longest)


def _number(arguments: dict[str, exp.Expr], name: str, expressions: Expressions) -> float:
    if name not in arguments:
        return 0.0
    literal = _literal(arguments[name], expressions)
    if isinstance(literal, bool) or not isinstance(literal, int | float):
        expressions.fail(arguments[name], f"{name} must be a number written out")
    return float(literal)


def _count(arguments: dict[str, exp.Expr], name: str, expressions: Expressions) -> int:
    if name not in arguments:
        return 0
    literal = _literal(arguments[name], expressions)
    most = expressions.limits.detection_messages
    if isinstance(literal, bool) or not isinstance(literal, int) or not 1 <= literal <= most:
        problem = f"{name} must be an integer written out, from 1 to {most}"
        expressions.fail(arguments[name], problem)
    return literal


def _literal(node: exp.Expr, expressions: Expressions) -> object:
    value: Value = expressions.value(node)
    return value.literal
