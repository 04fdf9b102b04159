"""GROUP BY with a window: keys, aggregates, and expressions over them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqlglot import exp

from rules.errors import RuleError
from rules.language import aggregates
from rules.language.carrying import Projection, restored, stored
from rules.language.expressions import Expressions
from rules.language.plan import HOPS
from rules.language.scope import Scope, UnknownName
from rules.language.syntax import nodes
from rules.language.values import Segment, Value, as_condition, integer
from rules.language.windows import Window

WINDOW_COLUMNS: Final = {"window_start": "start", "window_end": "end"}

_GUARD: Final = "CAST(CAST(try_to_binary(CAST({} AS STRING), 'utf-8') AS STRING) AS {})"
"""NULL where a typed expression throws (design: rules, 9)."""


class Rows:
    """The rows that are grouped.

    Attributes:
        expressions: Over one of them.
        projection: The columns that aggregates read.
        position: Makes the expressions of a row's position in the log.
        is_guarded: Whether an expression that fails is NULL, as no message is to blame.
    """

    def __init__(
        self,
        expressions: Expressions,
        projection: Projection,
        position: Callable[[], tuple[str, str]],
        *,
        is_guarded: bool,
    ) -> None:
        self.expressions = expressions
        self.projection = projection
        self.position = position
        self.is_guarded = is_guarded

    def column(self, spark_type: str, expression: str) -> str:
        """Return the name of the column that an expression becomes."""
        if self.is_guarded and "raise_error" in expression:
            expression = _GUARD.format(expression, spark_type)
        return self.projection.add(spark_type, expression)


class GroupedScope(Scope):
    """The names that stand for something of a group: its window, and names the rule gives."""

    def __init__(self) -> None:
        super().__init__(())

    def column(self, name: str, segments: Sequence[Segment]) -> Value:
        if name in WINDOW_COLUMNS and not segments:
            return integer(f"unix_millis({name})")
        shown = name + "".join(f".{one}" for one in segments if isinstance(one, str))
        problem = f"{shown[:100]} is neither in GROUP BY nor in an aggregate"
        raise UnknownName(problem, f"last({shown[:100]}) is the newest of the window's messages")


class GroupedExpressions(Expressions):
    """Compiles expressions over a group; it is the `aggregates.Group` of their aggregates.

    Args:
        sql: The rule's text.
        rows: The grouped rows.
        window: By which time.
    """

    def __init__(self, sql: str, rows: Rows, window: Window) -> None:
        scope = GroupedScope()
        super().__init__(sql, scope, rows.expressions.limits, rows.expressions.schemas)
        self.scope = scope
        self._rows = rows
        self._window = window
        self._keys: list[tuple[Value, Value]] = []
        self._key_columns: dict[str, None] = {}
        self._aggregated: dict[str, str] = {}
        self.chosen: str | None = None
        self._is_inside = False

    def add_key(self, value: Value) -> None:
        """Group by an expression over a row."""
        names = [self._rows.column(*column) for column in stored(value)]
        self._key_columns.update(dict.fromkeys(names))
        self._keys.append((value, restored(value, names)))

    def relation(self, rows: str) -> str:
        """Return the groups of the relation `rows`, as a query."""
        keys = list(self._key_columns)
        if not keys and self._window.slide_ms == 0:
            # Spark has no sessions of a stream without a key.
            keys = [self._rows.column("BOOLEAN", "tenant IS NULL")]
        bounds = [
            f"{self._window.column}.`{field}` AS {name}" for name, field in WINDOW_COLUMNS.items()
        ]
        made = [f"{expression} AS {name}" for expression, name in self._aggregated.items()]
        listed = ", ".join((*keys, *bounds, *made, f"max({HOPS}) AS {HOPS}"))
        groups = ", ".join((*keys, self._window.call))
        return f"SELECT {listed} FROM {rows} GROUP BY {groups}"  # noqa: S608 - the compiler's own

    # Expressions

    def value(self, node: exp.Expr) -> Value:
        if isinstance(node, nodes.Call) and node.this in aggregates.FUNCTIONS:
            return self._aggregate(node)
        found = self._key_of(node)
        return super().value(node) if found is None else found

    def _key_of(self, node: exp.Expr) -> Value | None:
        """Return the key that an expression is, in any spelling."""
        if isinstance(node, (exp.Literal, exp.Null, exp.Boolean)) or has_aggregate(node):
            return None
        try:
            value = self._rows.expressions.value(node)
        except RuleError:
            return None
        for of_row, of_group in self._keys:
            if _same(value, of_row):
                return of_group
        return None

    def seed(self) -> str:
        raise UnknownName("this is made of one message, here are many", "")

    def _aggregate(self, node: nodes.Call) -> Value:
        name = node.this
        arguments = node.expressions
        made = aggregates.FUNCTIONS[name]
        emit = made.emit
        if arguments and isinstance(arguments[0], exp.Star):
            arguments = []
        elif name == "count" and not arguments:
            self.fail(node, "count needs an argument", hint="count(*)")
        if node.args.get("distinct"):
            if name != "count" or len(arguments) != 1:
                self.fail(node, "only count takes DISTINCT, with one expression")
            emit = aggregates.count_distinct
        self.check_count(node, arguments, made.minimum, made.maximum)
        with self._choosing(node.args.get("where")), self.using(node, arguments):
            return emit([self._rows.expressions.value(one) for one in arguments], self)

    @contextmanager
    def _choosing(self, node: exp.Expr | None) -> Iterator[None]:
        if node is not None:
            self.chosen = as_condition(self._rows.expressions.condition(node))
        try:
            yield
        finally:
            self.chosen = None

    # aggregates.Group

    def column(self, name: str, *path: str | int) -> Value:
        """Return a column of the group, for functions."""
        return self.scope.value_of(name, path)

    def typed(self, spark_type: str, expression: str) -> str:
        return self._rows.column(spark_type, expression)

    def columns(self, value: Value) -> tuple[str, ...]:
        return tuple(
            self._rows.column(spark_type, self.kept(expression))
            for spark_type, expression in stored(value)
        )

    def aggregated(self, expression: str) -> str:
        return self._aggregated.setdefault(expression, f"a{len(self._aggregated)}")

    def restored(self, value: Value, names: Sequence[str]) -> Value:
        return restored(value, names)

    def kept(self, expression: str) -> str:
        return expression if self.chosen is None else f"IF({self.chosen}, {expression}, NULL)"

    @property
    def order(self) -> str:
        partition, offset = self._rows.position()
        positions = (self._rows.column("INT", partition), self._rows.column("BIGINT", offset))
        return f"struct(event_time, {', '.join(positions)})"


def has_aggregate(node: exp.Expr) -> bool:
    """Tell whether an aggregate is anywhere in an expression."""
    return any(map(_is_aggregate, node.walk()))


def _is_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, nodes.Call) and node.this in aggregates.FUNCTIONS


def _same(left: Value, right: Value) -> bool:
    return (left.kind, left.sql, left.exact, left.path) == (
        right.kind,
        right.sql,
        right.exact,
        right.path,
    )
