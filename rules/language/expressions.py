"""Expressions of the language to Spark SQL, one method for each kind of node."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn
from zlib import crc32

from sqlglot import exp

from rules.errors import RuleError
from rules.language import aggregates
from rules.language.choosing import all_of, choose, is_missing, one_of
from rules.language.comparing import NotComparable, compare, contains
from rules.language.functions import FUNCTIONS
from rules.language.functions.function import Unusable
from rules.language.limits import Limits
from rules.language.names import DETECTIONS, WINDOWS
from rules.language.scope import Scope, UnknownName
from rules.language.syntax import nodes
from rules.language.values import (
    NULL,
    NUMERIC,
    TEXTUAL,
    Value,
    ValueKind,
    as_condition,
    as_possible,
    as_text,
    as_variant,
    boolean,
    constant,
    failure,
    field_of,
    is_condition,
    operand,
    text,
)
from rules.schemas.registry import Noted
from rules.sql.errors import did_you_mean
from rules.sql.patterns import InvalidPattern, like, topic_pattern
from rules.sql.quoting import quoted

_COMPARISONS: Final = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
TOO_LARGE: Final = "the rule is too large once its names are put in"
TOO_LARGE_HINT: Final = "names given with AS are put in wherever they are used"
_MAX_OPERATORS: Final = 100
"""Most operators in a chain without parentheses, `a + b + c`; Spark walks it recursively."""

_MAX_PRODUCED: Final = 64
"""Text of all parts of a rule, as a multiple of the largest expression: it bounds the work."""


class Expressions:
    """Compiles the expressions of one rule.

    Args:
        sql: The rule's text, for errors.
        scope: Its names.
        limits: How large it may be.
        schemas: Schemas that can decode payloads; it notes the ones used.

    Attributes:
        limits, schemas: See the arguments.
        index: Spark SQL of the place in FOREACH, empty outside.
        is_grouped: Whether the rule has GROUP BY, so that aggregates are only misplaced here.
    """

    def __init__(self, sql: str, scope: Scope, limits: Limits, schemas: Noted) -> None:
        self._sql = sql
        self._scope = scope
        self.limits = limits
        self._depth = 0
        self._seeds = 0
        self._produced = 0
        self.index = ""
        self.is_grouped = False
        self.schemas = schemas

    def value(self, node: exp.Expr) -> Value:
        """Compile an expression.

        Raises:
            RuleError: It uses a thing that the language does not have, or is too large.
        """
        compile_node = self.NODES.get(type(node))
        if compile_node is None:
            hint = ""
            if isinstance(node, nodes.Interval):  # pragma: no branch - the parser makes no other
                hint = "INTERVAL is for the ON of a join; times are milliseconds"
            self.fail(node, "this is not part of the rule language", hint=hint)
        self._depth += 1
        if self._depth > _MAX_OPERATORS:
            self.fail(node, "the expression is nested too deeply")
        try:
            value: Value = compile_node(self, node)
        finally:
            self._depth -= 1
        size = len(value.sql) + len(value.exact)
        self._produced += size
        largest = self.limits.expression_characters
        if size > largest or self._produced > largest * _MAX_PRODUCED:
            self.fail(node, TOO_LARGE, hint=TOO_LARGE_HINT)
        return value

    def condition(self, node: exp.Expr) -> Value:
        """Compile an expression that must be true or false."""
        value = self.value(node)
        if not is_condition(value):
            self.fail(node, f"expected a condition, this is {value.kind.value}")
        return value

    def column(self, name: str, *path: str | int) -> Value:
        """Return a column, also where the rule gives its name to another. See `Context`."""
        return self._scope.column(name, path)

    def seed(self) -> str:
        """Return a seed that tells this call on this message from all others. See `Context`."""
        self._seeds += 1
        self._scope.note_position()
        rule = crc32(self._sql.encode(errors="replace"))
        index = f", {self.index}" if self.index else ""
        return f"id, log_partition, log_offset, {rule}L, {self._seeds}{index}"

    def layout(self, name: str, version: int | None, message_type: str | None) -> str:
        """Return the hash of a schema's layout. See `Context`."""
        found = self.schemas.find(name, version, message_type)
        return found.hash

    def fail(self, node: exp.Expr, problem: str, *, hint: str = "") -> NoReturn:
        """Refuse the rule at a node."""
        raise RuleError.at_node(self._sql, node, problem, hint)

    def text_of(self, node: exp.Expr) -> str:
        """Return the rule's text of a node."""
        return self._sql[node.meta["start"] : node.meta["end"] + 1]

    def name_of(self, node: exp.Expr) -> Sequence[str]:
        """Return the name of an item without one of its own: its path, else its text."""
        if isinstance(node, nodes.Path):
            segments = node.args.get("segments") or ()
            if any(not isinstance(segment, str) for segment in segments):
                self.fail(node, "an element of an array needs a name", hint="add AS and a name")
            return (node.this, *segments)
        return (self.text_of(node),)

    # Operands

    def _literal(self, node: exp.Literal) -> Value:
        if node.is_string:
            return constant(node.this)
        written = node.this
        try:
            return constant(int(written) if written.isdecimal() else _finite(float(written)))
        except ValueError:
            self.fail(node, "not a number")

    def _null(self, _node: exp.Null) -> Value:
        return NULL

    def _boolean(self, node: exp.Boolean) -> Value:
        return constant(bool(node.this))

    def _paren(self, node: exp.Paren) -> Value:
        return self.value(node.this)

    def _path(self, node: nodes.Path) -> Value:
        segments = node.args.get("segments") or ()
        if len(segments) > self.limits.path_segments:
            self.fail(node, f"more than {self.limits.path_segments} fields inside each other")
        try:
            return self._scope.value_of(node.this, segments)
        except UnknownName as exc:
            self.fail(node, str(exc), hint=exc.hint)

    def _list(self, node: nodes.ListOf) -> Value:
        elements = [as_variant(self.value(one)) for one in self._listed(node)]
        if not elements:
            return Value(ValueKind.ARRAY, "CAST(array() AS ARRAY<VARIANT>)")
        return Value(ValueKind.ARRAY, f"array({', '.join(elements)})")

    def _listed(self, node: exp.Expr) -> list[exp.Expr]:
        listed = node.expressions
        if len(listed) > self.limits.list_items:
            self.fail(node, f"the list has more than {self.limits.list_items} elements")
        return listed

    def _call(self, node: nodes.Call) -> Value:
        function = FUNCTIONS.get(node.this)
        of_aggregates = node.args.get("distinct") or node.args.get("where")
        if of_aggregates or any(isinstance(one, exp.Star) for one in node.expressions):
            function = None
        if function is None:
            self._check_place(node)
            hint = did_you_mean(node.this, FUNCTIONS, 0.7) or "docs/rules.md lists the functions"
            self.fail(node, f"unknown function {node.this[:100]}", hint=hint)
        arguments = self._listed(node)
        self.check_count(node, arguments, function.minimum, function.maximum)
        with self.using(node, arguments):
            return function.emit([self.value(one) for one in arguments], self)

    def check_count(
        self, node: nodes.Call, arguments: Sequence[exp.Expr], least: int, most: int | None
    ) -> None:
        """Refuse a call with fewer or more arguments; `most` of None: as many as one likes."""
        if len(arguments) < least or (most is not None and len(arguments) > most):
            expected = str(least) if least == most else f"{least} to {most or 'any number'}"
            self.fail(node, f"{node.this} takes {expected} argument(s), here are {len(arguments)}")

    @contextmanager
    def using(self, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Iterator[None]:
        """Refuse the rule at an argument that a function cannot use."""
        try:
            yield
        except Unusable as exc:
            at = arguments[exc.argument] if exc.argument < len(arguments) else node
            self.fail(at, str(exc))
        except UnknownName as exc:
            self.fail(node, str(exc), hint=exc.hint)

    def _inside(self, node: nodes.Inside) -> Value:
        segments = node.args["segments"]
        if len(segments) > self.limits.path_segments:
            self.fail(node, f"more than {self.limits.path_segments} fields inside each other")
        value = self.value(node.this)
        for segment in segments:
            value = field_of(value, segment)
        return value

    def _check_place(self, node: nodes.Call) -> None:
        """Say where a call that is no function of one message belongs."""
        name = node.this
        if name in aggregates.FUNCTIONS and self.is_grouped:
            problem = f"the aggregate {name} cannot stand here"
            self.fail(node, problem, hint="not in WHERE, GROUP BY or another aggregate; in HAVING")
        if name in aggregates.FUNCTIONS:
            problem = f"{name} is an aggregate; it needs GROUP BY and a window"
            self.fail(node, problem, hint="GROUP BY clientid, tumble(timestamp, '1 minute')")
        if name in WINDOWS:
            self.fail(node, f"{name} is a window; it stands in GROUP BY")
        if name in DETECTIONS:
            problem = f"{name} is one of the conditions that AND joins in WHERE, and the only such"
            self.fail(node, problem)
        if name in FUNCTIONS:
            self.fail(node, f"{name} is no aggregate; it takes neither DISTINCT nor FILTER")

    # Conditions

    def _and(self, node: exp.And) -> Value:
        return boolean(all_of([as_possible(one) for one in self._spine(node)]))

    def _or(self, node: exp.Or) -> Value:
        return boolean(one_of([as_possible(one) for one in self._spine(node)]))

    def _spine(self, node: exp.Expr) -> list[Value]:
        """Compile all conditions that one operator joins, without going deeper for each."""
        joined: list[exp.Expr] = []
        kind = type(node)
        while isinstance(node, kind):
            joined.append(node.expression)
            node = node.this
        joined.append(node)
        return [self.condition(one) for one in reversed(joined)]

    def _not(self, node: exp.Not) -> Value:
        return boolean(f"(NOT {as_condition(self.condition(node.this))})")

    def _comparison(self, node: exp.Binary) -> Value:
        return self._compared(node, _COMPARISONS[type(node)], node.this, node.expression)

    def _compared(self, node: exp.Expr, operator: str, left: exp.Expr, right: exp.Expr) -> Value:
        try:
            return compare(operator, self.value(left), self.value(right))
        except NotComparable as exc:
            self.fail(node, str(exc))

    def _between(self, node: exp.Between) -> Value:
        low = self._compared(node, ">=", node.this, node.args["low"])
        high = self._compared(node, "<=", node.this, node.args["high"])
        return boolean(f"({low.sql} AND {high.sql})")

    def _in(self, node: exp.In) -> Value:
        candidates = [self.value(one) for one in self._listed(node)]
        if not candidates:
            self.fail(node, "the list after IN is empty")
        try:
            return contains(self.value(node.this), candidates)
        except NotComparable as exc:
            self.fail(node, str(exc))

    def _is(self, node: exp.Is) -> Value:
        value = self.value(node.this)
        if isinstance(node.expression, exp.Null):
            return boolean(is_missing(value))
        wanted = "true" if node.expression.this else "false"
        if not is_condition(value):
            self.fail(node.this, f"expected a condition, this is {value.kind.value}")
        if value.kind is ValueKind.JSON:
            return boolean(f"({value.get('string')} = '{wanted}')")
        return boolean(as_condition(value) if wanted == "true" else f"(NOT {as_condition(value)})")

    def _like(self, node: exp.Like) -> Value:
        return self._liked(node, None)

    def _escape(self, node: exp.Escape) -> Value:
        return self._liked(node.this, node.expression)

    def _liked(self, node: exp.Like, escape: exp.Expr | None) -> Value:
        try:
            pattern = like(self._pattern(node), None if escape is None else escape.name)
        except InvalidPattern as exc:
            self.fail(node.expression if escape is None else escape, str(exc))
        matched = f"({as_text(self.value(node.this))} LIKE {quoted(pattern)})"
        if node.args.get("negate"):
            return boolean(f"(NOT coalesce({matched}, false))")
        return boolean(matched)

    def _rlike(self, node: exp.RegexpLike) -> Value:
        regex_match = FUNCTIONS["regex_match"].emit
        try:
            return regex_match([self.value(node.this), self.value(node.expression)], self)
        except Unusable as exc:
            self.fail(node.expression, str(exc))

    def _topic_match(self, node: nodes.TopicMatch) -> Value:
        try:
            pattern = topic_pattern(self._pattern(node))
        except InvalidPattern as exc:
            self.fail(node.expression, str(exc))
        return boolean(f"({as_text(self.value(node.this))} RLIKE {pattern})")

    def _pattern(self, node: exp.Binary) -> str:
        literal = self.value(node.expression).literal
        if not isinstance(literal, str):
            self.fail(node.expression, "expected a pattern written as text in single quotes")
        return literal

    def _case(self, node: exp.Case) -> Value:
        branches = []
        for branch in node.args["ifs"]:
            when = branch.this
            if node.this is None:
                condition = self.condition(when)
            else:
                condition = self._compared(when, "=", node.this, when)
            branches.append((as_possible(condition), self.value(branch.args["true"])))
        default = node.args.get("default")
        return choose(branches, NULL if default is None else self.value(default))

    # Arithmetic

    def _add(self, node: exp.Add) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        if left.kind in TEXTUAL or right.kind in TEXTUAL:
            return text(f"concat({as_text(left)}, {as_text(right)})")
        return self._arithmetic(node, left, right, "try_add({}, {})", "({} + {})")

    def _sub(self, node: exp.Sub) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        return self._arithmetic(node, left, right, "try_subtract({}, {})", "({} - {})")

    def _mul(self, node: exp.Mul) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        return self._arithmetic(node, left, right, "try_multiply({}, {})", "({} * {})")

    def _div(self, node: exp.Div) -> Value:
        _, left = self._operand(node, self.value(node.this))
        _, right = self._operand(node, self.value(node.expression))
        by_zero = f"CAST({failure('division by zero')} AS DOUBLE)"
        quotient = f"coalesce(try_divide({left}, {right}), {by_zero})"
        return Value(ValueKind.NUMBER, quotient, exact="CAST(NULL AS BIGINT)")

    def _int_div(self, node: exp.IntDiv) -> Value:
        left, right = self._integers(node)
        quotient = f"IF({right} = 0L, NULL, {left} div {right})"
        return Value(ValueKind.INTEGER, f"coalesce({quotient}, {_failed('div')})")

    def _mod(self, node: exp.Mod) -> Value:
        left, right = self._integers(node)
        return Value(ValueKind.INTEGER, f"coalesce(try_mod({left}, {right}), {_failed('mod')})")

    def _integers(self, node: exp.Binary) -> tuple[str, str]:
        left, _ = self._operand(node, self.value(node.this))
        right, _ = self._operand(node, self.value(node.expression))
        return left, right

    def _neg(self, node: exp.Neg) -> Value:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return constant(-self._literal(node.this).literal)
        value = self.value(node.this)
        return self._arithmetic(node, constant(0), value, "try_subtract({}, {})", "({} - {})")

    def _arithmetic(
        self, node: exp.Expr, left: Value, right: Value, exact: str, inexact: str
    ) -> Value:
        exact_left, left_sql = self._operand(node, left)
        exact_right, right_sql = self._operand(node, right)
        return Value(
            ValueKind.NUMBER,
            inexact.format(left_sql, right_sql),
            exact=exact.format(exact_left, exact_right),
            name=self.text_of(node),
        )

    def _operand(self, node: exp.Expr, value: Value) -> tuple[str, str]:
        if value.kind not in NUMERIC and value.kind is not ValueKind.JSON:
            self.fail(node, f"arithmetic takes numbers, this is {value.kind.value}")
        return operand(value)

    def _concatenation(self, node: exp.DPipe) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        return text(f"concat({as_text(left)}, {as_text(right)})")

    NODES: Final[dict[type[exp.Expr], Callable[[Any, Any], Value]]] = {
        exp.Literal: _literal,
        exp.Null: _null,
        exp.Boolean: _boolean,
        exp.Paren: _paren,
        nodes.Path: _path,
        nodes.ListOf: _list,
        nodes.Call: _call,
        nodes.Inside: _inside,
        exp.And: _and,
        exp.Or: _or,
        exp.Not: _not,
        **dict.fromkeys(_COMPARISONS, _comparison),
        exp.Between: _between,
        exp.In: _in,
        exp.Is: _is,
        exp.Like: _like,
        exp.Escape: _escape,
        exp.RegexpLike: _rlike,
        nodes.TopicMatch: _topic_match,
        exp.Case: _case,
        exp.Add: _add,
        exp.Sub: _sub,
        exp.Mul: _mul,
        exp.Div: _div,
        exp.IntDiv: _int_div,
        exp.Mod: _mod,
        exp.Neg: _neg,
        exp.DPipe: _concatenation,
    }


def _failed(name: str) -> str:
    return f"CAST({failure(f'{name} takes two integers, the second not 0')} AS BIGINT)"


def _finite(number: float) -> float:
    if number in (float("inf"), float("-inf")):
        raise ValueError
    return number
