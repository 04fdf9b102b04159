"""Expressions and conditions of small questions, in the SQL of DataFusion."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlglot import exp

from api.messages.retained import literal, to_regex
from api.relations.views import ViewColumn
from api.sql.dialect import Verbatim
from rules.sql.names import folded

_INTEGERS: Final = frozenset({"tinyint", "int", "bigint"})
_TYPES: Final = {*_INTEGERS, "string", "boolean", "timestamp", "binary", "variant", "array<bigint>"}
SORTABLE: Final = {*_INTEGERS, "string", "boolean", "timestamp"}
"""Types that both compare alike: texts by their bytes in UTF-8."""
COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
_EXPRESSIONS: Final = {
    # Bytes that are no text are null.
    "payload_text": "TRY_CAST(payload AS VARCHAR)",
    "payload_bytes": "payload",
}
"""Columns of relations that are no columns of their tables, in the SQL of DataFusion."""
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(?:Z|\+00:00)?)?"
)
_UNITS: Final = {
    unit: timedelta(**{f"{unit.lower()}s": 1})
    for unit in ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK")
}
_TRUNCATED: Final = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
_NOW: Final = ("now", "current_timestamp")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class NotSmall(Exception):  # noqa: N818 - it is no error: Spark answers
    """A query is no small question."""


@dataclass(frozen=True, slots=True)
class SmallValue:
    """An expression.

    Attributes:
        sql: As DataFusion has it.
        type: Its type, as Spark calls it.
        name: That Spark gives it as a column; empty: we do not know.
        is_aggregate: Whether it is one of all rows of a group.
    """

    sql: str
    type: str
    name: str = ""
    is_aggregate: bool = False


class SmallExpressions:
    """Reads expressions over the rows of one table.

    Args:
        columns: Columns of its relation, by name.
        alias: Name of the relation in the query.
        now: The time of the query.
    """

    def __init__(self, columns: Mapping[str, ViewColumn], alias: str, now: datetime) -> None:
        self._columns = columns
        self._alias = alias
        self._now = now

    def value(self, node: exp.Expr, has_aggregates: bool = False) -> SmallValue:
        """Return an expression.

        Raises:
            NotSmall: It is none of a small question; all methods raise it.
        """
        node = node.unnest()
        if isinstance(node, exp.Column):
            return self._column_of(node)
        if not isinstance(node, exp.Anonymous):
            raise NotSmall
        if isinstance(node.this, Verbatim):
            return self._topic_function(node)
        name, arguments = node.name.lower(), node.expressions
        if name in _AGGREGATES:
            need(has_aggregates)
            return _AGGREGATES[name](self, arguments)
        if name == "date_trunc" and len(arguments) == 2:
            unit, time = arguments[0], self.value(arguments[1])
            need(isinstance(unit, exp.Literal) and unit.is_string)
            need(unit.this.lower() in _TRUNCATED and time.type == "timestamp")
            return SmallValue(f"date_trunc('{unit.this.lower()}', {time.sql})", "timestamp")
        if name in ("left", "length", "char_length") and arguments:
            text = self.value(arguments[0])
            need(text.type == "string")
            if name == "left":
                need(len(arguments) == 2)
                return SmallValue(f"left({text.sql}, {_integer(arguments[1])})", "string")
            need(len(arguments) == 1)
            return SmallValue(f"character_length({text.sql})", "int")
        raise NotSmall

    def _column_of(self, node: exp.Column) -> SmallValue:
        need(not node.table or folded(node.table) == self._alias)
        need(folded(node.name) in self._columns)
        value = self.column(folded(node.name))
        return replace(value, name=node.name)

    def column(self, name: str) -> SmallValue:
        column = self._columns[name]
        need(column.type in _TYPES)
        return SmallValue(_EXPRESSIONS.get(name, name), column.type, name)

    def _topic_function(self, node: exp.Anonymous) -> SmallValue:
        topic, given = node.expressions
        value = self.value(topic)
        need(value.type == "string" and isinstance(given, exp.Literal))
        if str(node.this.this).endswith(".topic_matches"):
            need(given.is_string)
            return SmallValue(f"({matches(value.sql, given.this)})", "boolean")
        level = _integer(given)
        need(level > 0)
        # Of a level beyond the last one split_part makes an empty text, as of one that is empty.
        levels = (
            f"(character_length({value.sql}) - character_length(replace({value.sql}, '/', '')))"
        )
        part = f"split_part({value.sql}, '/', {level})"
        return SmallValue(f"(CASE WHEN {levels} >= {level - 1} THEN {part} END)", "string")

    # Aggregates

    def count(self, arguments: Sequence[exp.Expr]) -> SmallValue:
        need(len(arguments) == 1)
        counted = arguments[0]
        if isinstance(counted, exp.Star):
            return SmallValue("count(*)", "bigint", "count(1)", is_aggregate=True)
        word = ""
        if isinstance(counted, exp.Distinct):
            need(len(counted.expressions) == 1)
            word, counted = "DISTINCT ", counted.expressions[0]
        value = self.value(counted)
        need(value.type in (SORTABLE if word else {*SORTABLE, "binary"}))
        name = f"count({word}{value.name})" if value.name else ""
        return SmallValue(f"count({word}{value.sql})", "bigint", name, is_aggregate=True)

    def least(self, arguments: Sequence[exp.Expr]) -> SmallValue:
        return self._extreme("min", arguments)

    def greatest(self, arguments: Sequence[exp.Expr]) -> SmallValue:
        return self._extreme("max", arguments)

    def _extreme(self, word: str, arguments: Sequence[exp.Expr]) -> SmallValue:
        need(len(arguments) == 1)
        value = self.value(arguments[0])
        need(value.type in SORTABLE)
        name = f"{word}({value.name})" if value.name else ""
        return SmallValue(f"{word}({value.sql})", value.type, name, is_aggregate=True)

    # Conditions

    def condition(self, node: exp.Expr, keys: Collection[str] | None = None) -> str:
        """Return a condition.

        Args:
            node: The condition.
            keys: SQL of what rows are grouped by: it is about groups. None: about rows.
        """
        node = node.unnest()
        if isinstance(node, exp.And | exp.Or):
            word = "AND" if isinstance(node, exp.And) else "OR"
            sides = [self.condition(one, keys) for one in (node.this, node.expression)]
            return f"({sides[0]} {word} {sides[1]})"
        if isinstance(node, exp.Not):
            return f"(NOT {self.condition(node.this, keys)})"
        if isinstance(node, exp.Is):
            need(isinstance(node.expression, exp.Null))
            return f"({self._of(node.this, keys).sql} IS NULL)"
        if isinstance(node, exp.Like):
            return self._like(node)
        if isinstance(node, exp.In):
            value = self._of(node.this, keys)
            given = [self._given(one, value.type) for one in node.expressions]
            need(bool(given))
            return f"({value.sql} IN ({', '.join(given)}))"
        if isinstance(node, exp.Between):
            value = self._of(node.this, keys)
            low, high = (self._given(node.args[one], value.type) for one in ("low", "high"))
            return f"({value.sql} >= {low} AND {value.sql} <= {high})"
        if type(node) in COMPARISONS:
            return self._comparison(node, keys)
        value = self._of(node, keys)
        need(value.type == "boolean")
        return value.sql

    def _of(self, node: exp.Expr, keys: Collection[str] | None) -> SmallValue:
        """Return a value that a condition is about."""
        value = self.value(node, has_aggregates=keys is not None)
        need(value.type in {*SORTABLE, "binary"})
        need(keys is None or value.is_aggregate or value.sql in keys)
        return value

    def _comparison(self, node: exp.Expr, keys: Collection[str] | None) -> str:
        left, right = node.this, node.expression
        word = COMPARISONS[type(node)]
        if _is_value(left) and _is_value(right):
            values = [self._of(one, keys) for one in (left, right)]
            kinds = {"integer" if one.type in _INTEGERS else one.type for one in values}
            need(len(kinds) == 1 and "binary" not in kinds)
            return f"({values[0].sql} {word} {values[1].sql})"
        if _is_value(left):
            value = self._of(left, keys)
            return f"({value.sql} {word} {self._given(right, value.type)})"
        value = self._of(right, keys)
        return f"({self._given(left, value.type)} {word} {value.sql})"

    def _like(self, node: exp.Like) -> str:
        value, pattern = self.value(node.this), node.expression
        need(value.type == "string" and isinstance(pattern, exp.Literal) and pattern.is_string)
        need("\\" not in pattern.this)
        word = "NOT LIKE" if node.args.get("negate") else "LIKE"
        return f"({value.sql} {word} {literal(pattern.this)})"

    def _given(self, node: exp.Expr, type_: str) -> str:
        """Return a literal of the type that it is compared with."""
        node = node.unnest()
        if type_ == "timestamp":
            return _time(self._moment(node))
        if type_ in _INTEGERS:
            number = _integer(node)
            need(-(2**63) <= number < 2**63)
            return str(number)
        if type_ == "boolean":
            need(isinstance(node, exp.Boolean))
            return "true" if node.this else "false"
        need(type_ == "string" and isinstance(node, exp.Literal) and node.is_string)
        return literal(node.this)

    def _moment(self, node: exp.Expr) -> datetime:
        node = node.unnest()
        if isinstance(node, exp.CurrentTimestamp) or _is_now(node):
            return self._now
        if isinstance(node, exp.Add | exp.Sub):
            need(isinstance(node.expression, exp.Interval))
            span = _span(node.expression)
            moment = self._moment(node.this)
            try:
                return moment + span if isinstance(node, exp.Add) else moment - span
            except OverflowError:  # no year between 1 and 9999
                raise NotSmall from None
        if isinstance(node, exp.Cast):
            need(node.to.this in (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ))
            node = node.this
        need(isinstance(node, exp.Literal) and node.is_string)
        found = _TIME.fullmatch(node.this)
        if found is None:
            raise NotSmall
        try:
            return datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}+00:00")
        except ValueError:
            raise NotSmall from None


_AGGREGATES: Final[dict[str, Callable[[SmallExpressions, Sequence[exp.Expr]], SmallValue]]] = {
    "count": SmallExpressions.count,
    "min": SmallExpressions.least,
    "max": SmallExpressions.greatest,
}


def need(holds: bool) -> None:
    """Leave to Spark what does not hold.

    Raises:
        NotSmall: It does not.
    """
    if not holds:
        raise NotSmall


def _is_value(node: exp.Expr) -> bool:
    """Tell whether an operand is of the row, not written out."""
    node = node.unnest()
    return isinstance(node, exp.Column | exp.Anonymous) and not _is_now(node)


def _is_now(node: exp.Expr) -> bool:
    """Tell whether a node is a call of `now()`, or of its other name."""
    is_call = isinstance(node, exp.Anonymous) and isinstance(node.this, str)
    return is_call and node.this.lower() in _NOW and not node.expressions


def _integer(node: exp.Expr) -> int:
    sign = 1
    if isinstance(node, exp.Neg):
        sign, node = -1, node.this
    need(isinstance(node, exp.Literal) and not node.is_string)
    need(bool(re.fullmatch(r"[0-9]{1,19}", str(node.this))))
    return sign * int(node.this)


def _span(node: exp.Interval) -> timedelta:
    unit, number = node.args.get("unit"), node.this
    need(isinstance(unit, exp.Var) and isinstance(number, exp.Literal))
    length = _UNITS.get(str(unit and unit.this).upper().removesuffix("S"))
    if length is None or not re.fullmatch(r"[0-9]{1,6}", str(number.this)):
        raise NotSmall
    return int(number.this) * length


def _time(moment: datetime) -> str:
    microseconds = (moment - _EPOCH) // timedelta(microseconds=1)
    return f"""arrow_cast({microseconds}, 'Timestamp(Microsecond, Some("UTC"))')"""


def matches(sql: str, topic_filter: str) -> str:
    """Return the condition that a text is one that a valid topic filter matches."""
    return f"{sql} ~ {literal(to_regex(topic_filter))}"
