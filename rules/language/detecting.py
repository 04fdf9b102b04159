"""Detections: the one condition of WHERE that looks at the messages of a key over time."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlglot import exp

from rules.language.aggregates import number_columns
from rules.language.carrying import stored
from rules.language.names import DETECTIONS
from rules.language.plan import AT_COLUMN, DETECTED, SINCE, STATE, Detection, DetectionKind
from rules.language.relations import Side
from rules.language.syntax import nodes
from rules.language.values import as_condition, integer, text
from rules.language.windows import SHORTEST_MS, span_of

TOLD: Final = {
    STATE: text(f"{DETECTED}.{STATE}"),
    SINCE: integer(f"unix_millis({DETECTED}.{SINCE})"),
    AT_COLUMN: integer(f"unix_millis({DETECTED}.{AT_COLUMN})"),
}
"""Columns that a rule may select of a detection."""

_KINDS: Final[dict[str, DetectionKind]] = {
    "absent": "absence",
    "debounce": "debounce",
    "hysteresis": "hysteresis",
    "n_of_m": "n_of_m",
}


def detection_in(node: exp.Expr) -> nodes.Call | None:
    """Return the detection that a condition is."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, nodes.Call) and node.this in DETECTIONS:
        return node
    return None


def read_detection(node: nodes.Call, side: Side, keys: Sequence[exp.Expr]) -> Detection:
    """Compile a detection over the messages of a stream.

    Args:
        node: The detection.
        side: The stream; it gets the columns that the detection needs.
        keys: Items of GROUP BY; without it the topic.

    Raises:
        RuleError: It has other arguments, or exceeds the limits.
    """
    expressions = side.expressions
    names = DETECTIONS[node.this]
    given = node.expressions
    if len(given) != len(names) or any(isinstance(one, nodes.Named) for one in given):
        expressions.fail(node, f"it is {node.this}({', '.join(names)})")
    arguments = dict(zip(names, given, strict=True))
    listed = [expressions.value(key) for key in keys] or [side.scope.column("topic", ())]
    columns = [side.projection.add(*column) for value in listed for column in stored(value)]
    order = side.position()
    found = {name: _READ[name](given, name, side) for name, given in arguments.items()}
    made = Detection(
        kind=_KINDS[node.this],
        stream=side.name,
        keys=tuple(dict.fromkeys(columns)),
        order=order,
        condition=found.get("condition"),
        value=found.get("value"),
        duration_ms=found.get("duration", 0),
        high=found.get("high", 0.0),
        low=found.get("low", 0.0),
        least=found.get("n", 0),
        last=found.get("m", 0),
    )
    if node.this == "hysteresis" and made.low >= made.high:
        expressions.fail(node, "high must be above low", hint="hysteresis(value, high, low)")
    if made.least > made.last:
        expressions.fail(node, "n must not be above m", hint="n_of_m(condition, n, m)")
    return made


def _condition(node: exp.Expr, _name: str, side: Side) -> str:
    return side.projection.add("BOOLEAN", as_condition(side.expressions.condition(node)))


def _value(node: exp.Expr, _name: str, side: Side) -> str:
    _, number = number_columns(side.expressions.value(node))
    return side.projection.add("DOUBLE", number)


def _duration(node: exp.Expr, _name: str, side: Side) -> int:
    expressions = side.expressions
    return span_of(node, expressions, SHORTEST_MS, expressions.limits.detection_ms)


def _number(node: exp.Expr, name: str, side: Side) -> float:
    literal = side.expressions.value(node).literal
    if isinstance(literal, bool) or not isinstance(literal, int | float):
        side.expressions.fail(node, f"{name} must be a number written out")
    return float(literal)


def _count(node: exp.Expr, name: str, side: Side) -> int:
    literal = side.expressions.value(node).literal
    most = side.expressions.limits.detection_messages
    if isinstance(literal, bool) or not isinstance(literal, int) or not 1 <= literal <= most:
        problem = f"{name} must be an integer written out, from 1 to {most}"
        side.expressions.fail(node, problem)
    return literal


_READ: Final[dict[str, Callable[[exp.Expr, str, Side], Any]]] = {
    "condition": _condition,
    "value": _value,
    "duration": _duration,
    "high": _number,
    "low": _number,
    "n": _count,
    "m": _count,
}
