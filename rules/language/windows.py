"""Windows: `tumble`, `hop` and `session` in GROUP BY, and the time of messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from rules.language.expressions import Expressions
from rules.language.functions import FUNCTIONS
from rules.language.names import WINDOWS
from rules.language.syntax import nodes
from rules.language.values import (
    NUMERIC,
    TEXTUAL,
    Value,
    ValueKind,
    as_integer,
    constant,
    failure,
    text,
)
from rules.sql.durations import InvalidDuration, milliseconds, shown

SHORTEST_MS: Final = 1_000
AHEAD_MS: Final = 600_000
"""How much later than its arrival a message's own time may be: so long its window is kept."""

RECEIVE_LATENESS_MS: Final = 2_000
PAYLOAD_LATENESS_MS: Final = 10_000
"""Lateness when the rule says nothing."""


@dataclass(frozen=True, slots=True)
class Time:
    """The time of a message, as a rule has it.

    Attributes:
        expression: TIMESTAMP over the row; it throws where a message has none.
        is_receive_time: Whether it is when the gateway accepted the message.
    """

    expression: str
    is_receive_time: bool

    @property
    def lateness_ms(self) -> int:
        """How long late messages are waited for when the rule says nothing."""
        return RECEIVE_LATENESS_MS if self.is_receive_time else PAYLOAD_LATENESS_MS


@dataclass(frozen=True, slots=True)
class Window:
    """A window of GROUP BY.

    Attributes:
        call: Spark SQL of it, over the column `event_time`.
        column: Spark's name of the result.
        time: Spark SQL of a message's time.
        lateness_ms: How long messages are waited for.
        size_ms: How long it is; of a session the gap that ends it.
        slide_ms: From one to the next; 0 for a session.
    """

    call: str
    column: str
    time: Time
    lateness_ms: int
    size_ms: int
    slide_ms: int


def read_window(node: nodes.Call, expressions: Expressions) -> Window:
    """Compile a window; `expressions` are those of the stream's rows.

    Raises:
        RuleError: It has other arguments, or exceeds the limits.
    """
    limits = expressions.limits
    parameters = WINDOWS[node.this]
    given = _arguments(node, expressions, ("time", *parameters, "lateness"))
    for name in ("time", *parameters):
        if name not in given:
            shown_as = f"{node.this}(timestamp, {', '.join(parameters)})"
            expressions.fail(node, f"{name} is missing", hint=f"it is {shown_as}")
    spans = [
        span_of(given[name], expressions, SHORTEST_MS, limits.window_ms) for name in parameters
    ]
    time = time_of(given["time"], expressions)
    lateness = time.lateness_ms
    if "lateness" in given:
        lateness = span_of(given["lateness"], expressions, 0, limits.lateness_ms)
    if node.this == "hop":
        _check_hop(node, expressions, *spans)
    texts = ", ".join(f"'{span} milliseconds'" for span in spans)
    column = "session_window" if node.this == "session" else "window"
    return Window(
        call=f"{column}(event_time, {texts})",
        column=column,
        time=time,
        lateness_ms=lateness,
        size_ms=spans[0],
        slide_ms=0 if node.this == "session" else spans[-1],
    )


def _arguments(
    node: nodes.Call, expressions: Expressions, names: Sequence[str]
) -> dict[str, exp.Expr]:
    given: dict[str, exp.Expr] = {}
    for index, one in enumerate(node.expressions):
        name = one.this if isinstance(one, nodes.Named) else ""
        if not name and index < len(names):
            name = names[index]
        if name not in names or name in given:
            expressions.fail(one, f"{node.this} takes {', '.join(names)}, each once")
        given[name] = one.expression if isinstance(one, nodes.Named) else one
    return given


def _check_hop(node: nodes.Call, expressions: Expressions, size: int, slide: int) -> None:
    if slide > size:
        problem = "the windows of a hop would leave gaps"
        expressions.fail(node, problem, hint="the size comes first: hop(timestamp, size, slide)")
    if size > slide * expressions.limits.hops:
        limit = expressions.limits.hops
        expressions.fail(node, f"one message would be in more than {limit} windows")


def span_of(node: exp.Expr, expressions: Expressions, low: int, high: int) -> int:
    """Return the milliseconds that a rule writes, within bounds."""
    while isinstance(node, exp.Paren):
        node = node.this
    written = node.this if isinstance(node, nodes.Interval) else None
    if isinstance(node, exp.Literal) and node.is_string:
        written = node.this
    if not isinstance(written, str):
        problem = "expected a span of time in single quotes"
        expressions.fail(node, problem, hint="for example '30 seconds'")
    try:
        span = milliseconds(written)
    except InvalidDuration as exc:
        expressions.fail(node, str(exc))
    if not low <= span <= high:
        expressions.fail(node, f"expected {shown(low)} to {shown(high)}")
    return span


def time_of(node: exp.Expr, expressions: Expressions) -> Time:
    """Compile the expression that a rule has for the time of a message.

    Raises:
        RuleError: It cannot be a time.
    """
    value = expressions.value(node)
    name = expressions.text_of(node)[:100]
    received = expressions.column("timestamp")
    missing = f"CAST({failure(f'{name} is no time')} AS BIGINT)"
    if value.sql in (received.sql, "publish_received_at") and value.kind is ValueKind.INTEGER:
        return receive_time(expressions)
    ms = _milliseconds(value, expressions)
    if ms is None:
        problem = f"expected a time, this is {value.kind.value}"
        expressions.fail(node, problem, hint="timestamp, or a field of the payload")
    ahead = f"CAST({failure(f'{name} is too far ahead of its arrival')} AS BIGINT)"
    checked = (
        f"CASE WHEN {ms} IS NULL OR {ms} < 0L THEN {missing} "
        f"WHEN {ms} > {received.sql} + {AHEAD_MS}L THEN {ahead} ELSE {ms} END"
    )
    return Time(f"timestamp_millis({checked})", is_receive_time=False)


def receive_time(expressions: Expressions) -> Time:
    """Return when the gateway accepted the message, for rules that do not say."""
    missing = f"CAST({failure('the message has no time')} AS BIGINT)"
    received = expressions.column("timestamp").sql
    return Time(f"timestamp_millis(coalesce({received}, {missing}))", is_receive_time=True)


def _milliseconds(value: Value, expressions: Expressions) -> str | None:
    """BIGINT since 1970: a number is that, a text is RFC 3339."""
    if value.kind in NUMERIC:
        return as_integer(value)
    if value.kind is not ValueKind.JSON and value.kind not in TEXTUAL:
        return None
    from_text = FUNCTIONS["rfc3339_to_unix_ts"].emit([value, constant("millisecond")], expressions)
    if value.kind is ValueKind.JSON:
        as_text = FUNCTIONS["rfc3339_to_unix_ts"].emit(
            [text(value.get("string")), constant("millisecond")], expressions
        )
        is_number = f"left({value.json_type}, 3) IN ('BIG', 'DOU', 'DEC')"
        return f"IF({is_number}, {value.get('bigint')}, {as_text.sql})"
    return from_text.sql
