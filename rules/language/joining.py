"""JOIN: the condition of ON, taken apart into equalities, the interval of time, and the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from rules.errors import RuleError
from rules.language.choosing import conjuncts
from rules.language.expressions import Expressions
from rules.language.plan import EVENT_TIME
from rules.language.relations import JoinedScope, ReferenceTable, Side
from rules.language.syntax import nodes
from rules.language.values import as_condition, as_text
from rules.language.windows import Time, receive_time, span_of, time_of
from rules.sql.durations import InvalidDuration, interval, milliseconds, shown

_AT_LEAST: Final[dict[type[exp.Expr], int]] = {exp.GTE: 0, exp.GT: 1}
_AT_MOST: Final[dict[type[exp.Expr], int]] = {exp.LTE: 0, exp.LT: 1}
_GUARD: Final = (
    "coalesce(CAST(CAST(try_to_binary(CAST({} AS STRING), 'utf-8') AS STRING) AS BOOLEAN), false)"
)


@dataclass(slots=True)
class _Interval:
    """How long after the first stream's message the second's may be, in milliseconds."""

    low: int | None = None
    high: int | None = None
    times: dict[str, Time] = field(default_factory=dict)

    def narrow(self, low: int | None, high: int | None) -> None:
        if low is not None:
            self.low = low if self.low is None else max(low, self.low)
        if high is not None:
            self.high = high if self.high is None else min(high, self.high)


class Joining:
    """Compiles the conditions of a rule's joins.

    Args:
        expressions: Over all relations.
        scope: Their names.
        sides: The streams.
    """

    def __init__(self, expressions: Expressions, scope: JoinedScope, sides: Sequence[Side]) -> None:
        self._expressions = expressions
        self._scope = scope
        self._sides = sides

    def join(self, node: nodes.Join, new: Side | ReferenceTable) -> str:
        """Return the JOIN in Spark SQL.

        Raises:
            RuleError: ON compares nothing for equality, or two streams without an interval.
        """
        self._interval = _Interval()
        self._equal = False
        # Conditions with an INTERVAL tell which times are compared; the others follow.
        listed = sorted(conjuncts(node.args["on"]), key=lambda one: not _has_interval(one))
        tests = [test for one in listed if (test := self._condition(one, new))]
        if not self._equal:
            problem = "ON needs a field of both sources that is equal"
            name = new.alias
            self._expressions.fail(node.args["on"], problem, hint=f"ON {name}.x = …")
        if isinstance(new, Side):
            tests.append(self._of_times(node, new))
        elif node.args.get("within") or node.args.get("lateness"):
            self._expressions.fail(node, "WITHIN and LATENESS are for the join of two streams")
        kind = "LEFT JOIN" if node.args["is_left"] else "JOIN"
        return f"{kind} {new.name} ON {' AND '.join(tests)}"

    def _condition(self, node: exp.Expr, new: Side | ReferenceTable) -> str:
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(new, Side) and self._is_of_times(node):
            self._narrow(node)
            return ""
        if isinstance(node, exp.EQ) and self._is_between(node, new):
            left, right = (self._expressions.value(one) for one in (node.this, node.expression))
            self._equal = True
            return f"{_guarded_text(as_text(left))} = {_guarded_text(as_text(right))}"
        test = as_condition(self._expressions.condition(node))
        return _GUARD.format(test) if "raise_error" in test else test

    def _is_between(self, node: exp.EQ, new: Side | ReferenceTable) -> bool:
        """Tell whether an equation is between the new relation and those before."""
        left, right = self._origins(node.this), self._origins(node.expression)
        if not left or not right:
            return False
        return (left == {new.name}) != (right == {new.name}) and not (
            new.name in left and new.name in right
        )

    def _origins(self, node: exp.Expr) -> frozenset[str]:
        with self._scope.scratch(), self._scope.reading() as reads:
            self._expressions.value(node)
        return self._scope.origins(reads)

    # Time

    def _is_of_times(self, node: exp.Expr) -> bool:
        if _has_interval(node):
            return True
        if type(node) not in (*_AT_LEAST, *_AT_MOST, exp.Between):
            return False
        operands = [node.this, node.args.get("expression"), *map(node.args.get, ("low", "high"))]
        return all(self._is_time(one) for one in operands if one is not None)

    def _is_time(self, node: exp.Expr) -> bool:
        """Tell whether an expression is the time of a stream: as known so far, else its arrival."""
        origins = self._origins(node)
        for side in self._sides:
            if origins == {side.name}:
                known = self._interval.times.get(side.name) or receive_time(side.expressions)
                try:
                    return time_of(node, side.expressions) == known
                except RuleError:
                    return False
        return False

    def _narrow(self, node: exp.Expr) -> None:
        if isinstance(node, exp.Between):
            self._compare(node, node.this, node.args["low"], is_at_least=True, strict=0)
            self._compare(node, node.this, node.args["high"], is_at_least=False, strict=0)
        elif type(node) in _AT_LEAST:
            strict = _AT_LEAST[type(node)]
            self._compare(node, node.this, node.expression, is_at_least=True, strict=strict)
        elif type(node) in _AT_MOST:
            strict = _AT_MOST[type(node)]
            self._compare(node, node.this, node.expression, is_at_least=False, strict=strict)
        else:
            problem = "an interval of time is compared with BETWEEN, <, <=, > or >="
            self._expressions.fail(node, problem)

    def _compare(
        self, node: exp.Expr, left: exp.Expr, right: exp.Expr, *, is_at_least: bool, strict: int
    ) -> None:
        first, second = self._sides
        left_side, left_ms = self._moment(left)
        right_side, right_ms = self._moment(right)
        if {left_side, right_side} != {first.name, second.name}:
            problem = "an interval is between times of the two streams"
            hint = f"{second.alias}.timestamp and {first.alias}.timestamp"
            self._expressions.fail(node, problem, hint=hint)
        # left + left_ms >= right + right_ms, or <=
        bound = right_ms - left_ms
        if left_side == first.name:
            bound, is_at_least = -bound, not is_at_least
        if is_at_least:
            self._interval.narrow(bound + strict, None)
        else:
            self._interval.narrow(None, bound - strict)

    def _moment(self, node: exp.Expr) -> tuple[str, int]:  # noqa: RET503 - fail raises
        """Return the stream whose time a node is, and the milliseconds that are added."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, (exp.Add, exp.Sub)) and isinstance(node.expression, nodes.Interval):
            name, ms = self._moment(node.this)
            try:
                span = milliseconds(node.expression.this)
            except InvalidDuration as exc:
                self._expressions.fail(node.expression, str(exc))
            return name, ms + (span if isinstance(node, exp.Add) else -span)
        origins = self._origins(node)
        for side in self._sides:
            if origins == {side.name}:
                time = time_of(node, side.expressions)
                if self._interval.times.setdefault(side.name, time) != time:
                    self._expressions.fail(node, "a stream has one time in a join")
                return side.name, 0
        self._expressions.fail(node, "expected the time of one of the two streams")

    def _of_times(self, node: nodes.Join, new: Side) -> str:
        first = self._sides[0]
        found = self._interval
        limit = self._expressions.limits.join_ms
        within = node.args.get("within")
        if within is not None:
            span = span_of(within, self._expressions, 0, limit)
            found.narrow(-span, span)
        if found.low is None or found.high is None:
            problem = "two streams are joined within an interval of time"
            self._expressions.fail(node, problem, hint="add WITHIN '30 seconds'")
        if found.low > found.high:
            self._expressions.fail(node, "no two messages are within this interval")
        if max(-found.low, found.high, found.high - found.low) > limit:
            self._expressions.fail(node, f"the interval is longer than {shown(limit)}")
        lateness = node.args.get("lateness")
        for side in (first, new):
            side.time = found.times.get(side.name) or receive_time(side.expressions)
            if lateness is not None:
                longest = self._expressions.limits.lateness_ms
                side.lateness_ms = span_of(lateness, self._expressions, 0, longest)
        earlier, later = f"{first.name}.{EVENT_TIME}", f"{new.name}.{EVENT_TIME}"
        return (
            f"{later} >= {earlier} + {interval(found.low)} "
            f"AND {later} <= {earlier} + {interval(found.high)}"
        )


def _has_interval(node: exp.Expr) -> bool:
    return any(isinstance(one, nodes.Interval) for one in node.walk())


def _guarded_text(written: str) -> str:
    if "raise_error" not in written:
        return written
    return f"CAST(try_to_binary({written}, 'utf-8') AS STRING)"
