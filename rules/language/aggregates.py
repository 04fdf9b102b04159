"""Aggregates over the messages of a group.

Each is made of aggregates of Spark's that keep a bounded state, can be merged, and do not depend on
the order in which messages come, so that a stream and a batch over the same messages give the same:
a sum of doubles is added up in decimals where they can be, and the first or last message is settled
by the time and then by the position in the log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rules.language.functions.function import Unusable, literal_integer
from rules.language.limits import Limits
from rules.language.values import (
    NUMERIC,
    TEXTUAL,
    Value,
    ValueKind,
    as_condition,
    as_double,
    as_finite,
    as_integer,
    as_variant,
    boolean,
    double,
    integer,
    is_condition,
)

_EXACT_DISTINCT: Final = 12
"""Logarithm of the size of a theta sketch, which counts up to 4,096 different values exactly."""

_ACCURACY: Final = 1_000
"""Accuracy of percentiles: the rank is off by a thousandth of the messages at most."""


class Group(Protocol):
    """The messages of a group, as an aggregate sees them."""

    limits: Limits

    def typed(self, spark_type: str, expression: str) -> str:
        """Give the messages a column, of an expression over one of them; return its name."""

    def columns(self, value: Value) -> tuple[str, ...]:
        """Give the messages the columns that a value needs; return their names."""

    def aggregated(self, expression: str) -> str:
        """Give the group a column, of an expression over the messages' columns."""

    def restored(self, value: Value, names: Sequence[str]) -> Value:
        """Return the value whose columns, as `columns` gave them, the group has under `names`."""

    def kept(self, expression: str) -> str:
        """Return an expression over a message, or NULL where FILTER leaves the message out."""

    @property
    def chosen(self) -> str | None:
        """BOOLEAN over a message: the condition of FILTER, None without it."""

    @property
    def order(self) -> str:
        """Expression that is greater for later messages; no two messages have the same value."""


Emitter = Callable[[Sequence[Value], Group], Value]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate.

    Attributes:
        minimum: Number of arguments.
        maximum: Number of arguments.
        emit: Makes its Spark SQL.
    """

    minimum: int
    maximum: int
    emit: Emitter


def number_columns(value: Value) -> tuple[str, str]:
    """Return the BIGINT (NULL where it is none) and the DOUBLE of a number, else NULL."""
    if value.kind is ValueKind.INTEGER:
        return as_integer(value), as_double(value)
    if value.kind is ValueKind.NUMBER:
        return value.exact, as_finite(value)
    if value.kind is ValueKind.JSON:
        exact = f"IF({value.json_type} = 'BIGINT', {value.get('bigint')}, NULL)"
        return exact, as_finite(value)
    return "CAST(NULL AS BIGINT)", as_finite(value)


def _numbers(value: Value, group: Group) -> tuple[str, str]:
    if value.kind not in NUMERIC and value.kind not in TEXTUAL and value.kind is not ValueKind.JSON:
        raise Unusable(f"expected a number, this is {value.kind.value}")
    exact, fraction = number_columns(value)
    return (
        group.typed("BIGINT", group.kept(exact)),
        group.typed("DOUBLE", group.kept(fraction)),
    )


def _present(value: Value, group: Group) -> tuple[tuple[str, ...], str]:
    """Return a value's columns, and the condition that a message has it."""
    names = group.columns(value)
    return names, " OR ".join(f"{name} IS NOT NULL" for name in names)


def _total(number: str) -> str:
    """The sum of a DOUBLE column: of decimals, which have no order, except beyond their range.

    They hold 18 digits before the point and 20 behind; the digits cut off are less than doubles
    lose where the largest number is not small.
    """
    largest = f"max(abs({number}))"
    in_range = f"{largest} = 0.0D OR {largest} BETWEEN 0.001D AND 1.0E17D"
    decimals = f"try_sum(try_cast({number} AS DECIMAL(38,20)))"
    return f"coalesce(CAST(IF({in_range}, {decimals}, NULL) AS DOUBLE), sum({number}))"


def _count(arguments: Sequence[Value], group: Group) -> Value:
    if not arguments:
        if group.chosen is None:
            return integer(group.aggregated("count(*)"))
        return integer(group.aggregated(f"count_if({group.typed('BOOLEAN', group.chosen)})"))
    if arguments[0].kind is ValueKind.BOOLEAN:
        raise Unusable(
            "a condition is always there; count_if counts the messages for which it is true"
        )
    _, present = _present(arguments[0], group)
    return integer(group.aggregated(f"count_if({present})"))


def _count_if(arguments: Sequence[Value], group: Group) -> Value:
    return integer(group.aggregated(f"count_if({_condition(arguments[0], group)})"))


def count_distinct(arguments: Sequence[Value], group: Group) -> Value:
    """`count(DISTINCT x)`; as sketches pass over empty texts, a character is before each."""
    names, _ = _present(arguments[0], group)
    write = "hex({})" if arguments[0].kind is ValueKind.BINARY else "CAST({} AS STRING)"
    texts = ", ".join(write.format(name) for name in names)
    sketch = f"theta_sketch_agg(concat('.', coalesce({texts})), {_EXACT_DISTINCT})"
    return integer(group.aggregated(f"theta_sketch_estimate({sketch})"))


def _sum(arguments: Sequence[Value], group: Group) -> Value:
    exact, fraction = _numbers(arguments[0], group)
    integers = f"IF(count({fraction}) = count({exact}), try_sum({exact}), NULL)"
    total = group.aggregated(_total(fraction))
    return Value(ValueKind.NUMBER, total, exact=group.aggregated(integers))


def _avg(arguments: Sequence[Value], group: Group) -> Value:
    _, fraction = _numbers(arguments[0], group)
    return double(group.aggregated(f"try_divide({_total(fraction)}, count({fraction}))"))


def _extreme(name: str, at_least: str) -> Emitter:
    def emit(arguments: Sequence[Value], group: Group) -> Value:
        value = arguments[0]
        if value.kind is ValueKind.TEXT:
            (column,) = group.columns(value)
            return Value(ValueKind.TEXT, group.aggregated(f"{name}({column})"))
        exact, fraction = _numbers(value, group)
        if value.kind is ValueKind.INTEGER:
            return integer(group.aggregated(f"{name}({exact})"))
        is_whole = f"CAST({name}({exact}) AS DOUBLE) {at_least} {name}({fraction})"
        whole = group.aggregated(f"IF({is_whole}, {name}({exact}), NULL)")
        return Value(ValueKind.NUMBER, group.aggregated(f"{name}({fraction})"), exact=whole)

    return emit


def _end(name: str) -> Emitter:
    def emit(arguments: Sequence[Value], group: Group) -> Value:
        names, present = _present(arguments[0], group)
        return group.restored(arguments[0], [_at_end(name, one, present, group) for one in names])

    return emit


def _at_end(name: str, column: str, present: str, group: Group) -> str:
    return group.aggregated(f"{name}({column}, {group.order}) FILTER (WHERE {present})")


def _delta(arguments: Sequence[Value], group: Group) -> Value:
    exact, fraction = _numbers(arguments[0], group)
    present = f"{fraction} IS NOT NULL"
    ends = [
        _at_end(name, column, present, group)
        for name in ("max_by", "min_by")
        for column in (exact, fraction)
    ]
    whole = f"try_subtract({ends[0]}, {ends[2]})"
    return Value(ValueKind.NUMBER, f"({ends[1]} - {ends[3]})", exact=whole)


def _statistic(name: str) -> Emitter:
    def emit(arguments: Sequence[Value], group: Group) -> Value:
        _, fraction = _numbers(arguments[0], group)
        return double(group.aggregated(f"{name}({fraction})"))

    return emit


def _median(arguments: Sequence[Value], group: Group) -> Value:
    return _percentile_of(arguments[0], "0.5D", group)


def _percentile(arguments: Sequence[Value], group: Group) -> Value:
    share = arguments[1].literal
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise Unusable("the share must be a number written out, from 0 to 1", 1)
    return _percentile_of(arguments[0], f"{float(share)!r}D", group)


def _percentile_of(value: Value, share: str, group: Group) -> Value:
    _, fraction = _numbers(value, group)
    return double(group.aggregated(f"percentile_approx({fraction}, {share}, {_ACCURACY})"))


def _collect_list(arguments: Sequence[Value], group: Group) -> Value:
    names, present = _present(arguments[0], group)
    limit = _limit(arguments, group)
    parts = ", ".join(f"'{name}', {name}" for name in names)
    listed = f"min_by(named_struct({parts}), {group.order}, {limit}) FILTER (WHERE {present})"
    column = group.aggregated(f"coalesce({listed}, array())")
    element = as_variant(group.restored(arguments[0], [f"e.{name}" for name in names]))
    return Value(ValueKind.ARRAY, f"transform({column}, e -> {element})")


def _limit(arguments: Sequence[Value], group: Group) -> int:
    most = group.limits.collected
    if len(arguments) == 1:
        return most
    return literal_integer(arguments, 1, "the number of elements", 1, most)


def _condition(value: Value, group: Group) -> str:
    if not is_condition(value):
        raise Unusable(f"expected a condition, this is {value.kind.value}")
    return group.typed("BOOLEAN", group.kept(as_condition(value)))


def _logical(name: str) -> Emitter:
    def emit(arguments: Sequence[Value], group: Group) -> Value:
        return boolean(group.aggregated(f"{name}({_condition(arguments[0], group)})"))

    return emit


_AVG: Final = Aggregate(1, 1, _avg)
_FIRST: Final = Aggregate(1, 1, _end("min_by"))
_LAST: Final = Aggregate(1, 1, _end("max_by"))
_STDDEV: Final = Aggregate(1, 1, _statistic("stddev_samp"))
_VARIANCE: Final = Aggregate(1, 1, _statistic("var_samp"))
_PERCENTILE: Final = Aggregate(2, 2, _percentile)
_LIST: Final = Aggregate(1, 2, _collect_list)
_ANY: Final = Aggregate(1, 1, _logical("bool_or"))
_EVERY: Final = Aggregate(1, 1, _logical("bool_and"))

FUNCTIONS: Final[dict[str, Aggregate]] = {
    "count": Aggregate(0, 1, _count),
    "count_if": Aggregate(1, 1, _count_if),
    "approx_count_distinct": Aggregate(1, 1, count_distinct),
    "sum": Aggregate(1, 1, _sum),
    "avg": _AVG,
    "mean": _AVG,
    "min": Aggregate(1, 1, _extreme("min", "<=")),
    "max": Aggregate(1, 1, _extreme("max", ">=")),
    "first": _FIRST,
    "first_value": _FIRST,
    "last": _LAST,
    "last_value": _LAST,
    "delta": Aggregate(1, 1, _delta),
    "stddev": _STDDEV,
    "stddev_samp": _STDDEV,
    "stddev_pop": Aggregate(1, 1, _statistic("stddev_pop")),
    "variance": _VARIANCE,
    "var_samp": _VARIANCE,
    "var_pop": Aggregate(1, 1, _statistic("var_pop")),
    "median": Aggregate(1, 1, _median),
    "percentile": _PERCENTILE,
    "percentile_approx": _PERCENTILE,
    "approx_percentile": _PERCENTILE,
    "collect_list": _LIST,
    "array_agg": _LIST,
    "any": _ANY,
    "some": _ANY,
    "bool_or": _ANY,
    "every": _EVERY,
    "all": _EVERY,
    "bool_and": _EVERY,
}
