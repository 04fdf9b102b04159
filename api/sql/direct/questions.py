"""Recognises small questions among queries, and writes them in the SQL of DataFusion.

A small question reads one table once: conditions on its columns, groups and their counts, an order.
What is here has the same answer as from Spark: `tests/streaming/test_small_questions.py` asks both.
All else is for Spark: a part that is not listed here makes a query none of these.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlglot import exp

from api.messages.retained import literal
from api.relations.views import BY_NAME, TENANT, view_columns
from api.sql.dialect import Verbatim
from api.sql.direct.expressions import (
    COMPARISONS,
    SORTABLE,
    NotSmall,
    SmallExpressions,
    SmallValue,
    matches,
    need,
)
from mqlake.tables.catalogue import AUDIT_LOG, OF_TOPICS
from rules.sql.names import folded

_PARTS: Final[dict[type[exp.Expr], set[str]]] = {
    exp.Select: {
        "expressions",
        "distinct",
        "from_",
        "where",
        "group",
        "having",
        "order",
        "limit",
        "offset",
    },
    exp.Table: {"this", "alias"},
    exp.Group: {"expressions", "all"},
    exp.Order: {"expressions"},
    exp.Ordered: {"this", "desc", "nulls_first"},
    exp.Limit: {"expression"},
    exp.Offset: {"expression"},
    exp.Distinct: {"expressions"},
    exp.Alias: {"this", "alias"},
    exp.Column: {"this", "table"},
    exp.Identifier: {"this", "quoted"},
    exp.Literal: {"this", "is_string"},
    exp.Anonymous: {"this", "expressions"},
    exp.In: {"this", "expressions"},
    exp.Between: {"this", "low", "high"},
    exp.Like: {"this", "expression", "negate"},
    exp.Cast: {"this", "to"},
    exp.Interval: {"this", "unit"},
    **{kind: {"this"} for kind in (exp.From, exp.TableAlias, exp.Where, exp.Having, exp.Paren)},
    **{kind: {"this"} for kind in (exp.Boolean, exp.Not, exp.Neg, exp.Var, Verbatim)},
    **{kind: {"this", "expression"} for kind in (exp.And, exp.Or, exp.Is, exp.Add, exp.Sub)},
    **{kind: {"this", "expression"} for kind in COMPARISONS},
    exp.DataType: {"this"},
}
"""Kinds of nodes that are known here, and what is known of them."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of the answer: name and type as Spark gives them."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class SmallQuestion:
    """A query in the SQL of DataFusion.

    Attributes:
        table: Name of the table, in its SQL too.
        select: All of it up to LIMIT; columns are called c0, c1 and so on.
        columns: Columns of the answer.
        most: LIMIT of the query itself.
        skipped: OFFSET of the query itself.
    """

    table: str
    select: str
    columns: tuple[Shown, ...]
    most: int | None = None
    skipped: int = 0

    def first(self, rows: int) -> str:
        """Return the SQL that gives at most `rows` rows."""
        most = rows if self.most is None else min(rows, self.most)
        skipped = f" OFFSET {self.skipped}" if self.skipped else ""
        return f"{self.select} LIMIT {most}{skipped}"


def question_of(
    tree: exp.Expr, tenant: str, topic_filters: Sequence[str] | None, now: datetime
) -> SmallQuestion | None:
    """Return a checked query as a small question; None when it is none.

    Args:
        tree: As it is confined (`api.sql.checking`), with the names of tables in place.
        tenant: Whose rows there are.
        topic_filters: Topics whose rows are shown; None: all.
        now: The time of the query.
    """
    try:
        return _Reading(tree, tenant, topic_filters, now).question()
    except NotSmall:
        return None


class _Reading:
    def __init__(
        self, tree: exp.Expr, tenant: str, topic_filters: Sequence[str] | None, now: datetime
    ) -> None:
        for node in tree.walk():
            parts = {name for name, value in node.args.items() if value}
            need(parts <= _PARTS.get(type(node), set()))
        self._tree = tree
        self._tenant = tenant
        self._topic_filters = topic_filters
        self._table, alias = _one_table(tree)
        self._columns = {column.name: column for column in view_columns(BY_NAME[self._table])}
        self._expressions = SmallExpressions(self._columns, alias, now)
        self._items: list[tuple[Shown, SmallValue]] = []
        self._keys: list[SmallValue] = []
        self._is_grouped = False

    def question(self) -> SmallQuestion:
        for item in self._tree.expressions:
            self._add(item)
        distinct = self._tree.args.get("distinct")
        select = (
            f"SELECT {self._listed(distinct)} FROM {self._table}"  # noqa: S608
            f"{self._where()}{self._group()}{self._having()}{self._order(bool(distinct))}"
        )
        need(not distinct or not self._is_grouped)
        shown = tuple(shown for shown, _ in self._items)
        most, skipped = self._count("limit"), self._count("offset")
        return SmallQuestion(self._table, select, shown, most, skipped or 0)

    # Clauses

    def _add(self, item: exp.Expr) -> None:
        if isinstance(item, exp.Star):
            need(not any(item.args.values()))
            for name in self._columns:
                value = self._expressions.column(name)
                self._items.append((Shown(name, value.type), value))
            return
        name = ""
        if isinstance(item, exp.Alias):
            name, item = item.alias, item.this
        value = self._expressions.value(item, has_aggregates=True)
        need(bool(name or value.name))
        self._items.append((Shown(name or value.name, value.type), value))

    def _listed(self, distinct: exp.Distinct | None) -> str:
        word = ""
        if distinct:
            need(not distinct.expressions)
            need(all(shown.type in SORTABLE for shown, _ in self._items))
            word = "DISTINCT "
        listed = (f"{value.sql} AS c{number}" for number, (_, value) in enumerate(self._items))
        return word + ", ".join(listed)

    def _where(self) -> str:
        conditions = [f"{TENANT} = {literal(self._tenant)}"]
        if self._topic_filters is not None:
            column = OF_TOPICS.get(self._table)
            if column is None:
                raise NotSmall
            within = [_within(column, one) for one in self._topic_filters]
            conditions.append(f"({' OR '.join(['false', *within])})")
        if where := self._tree.args.get("where"):
            conditions.append(self._expressions.condition(where.this))
        return f" WHERE {' AND '.join(conditions)}"

    def _group(self) -> str:
        group = self._tree.args.get("group")
        if group is None:
            self._is_grouped = any(value.is_aggregate for _, value in self._items)
            need(not self._is_grouped or all(value.is_aggregate for _, value in self._items))
            return ""
        self._is_grouped = True
        if group.args.get("all"):
            self._keys = [value for _, value in self._items if not value.is_aggregate]
        else:
            self._keys = [self._key(one) for one in group.expressions]
        need(bool(self._keys) and all(key.type in SORTABLE for key in self._keys))
        keys = self._key_texts()
        need(all(value.is_aggregate or value.sql in keys for _, value in self._items))
        return f" GROUP BY {', '.join(key.sql for key in self._keys)}"

    def _having(self) -> str:
        having = self._tree.args.get("having")
        if having is None:
            return ""
        need(self._is_grouped)
        self._check_names(having)
        return f" HAVING {self._expressions.condition(having.this, self._key_texts())}"

    def _check_names(self, node: exp.Expr) -> None:
        """Leave to Spark a column that may also be an item of SELECT."""
        for column in node.find_all(exp.Column):
            if not column.table and folded(column.name) in self._columns:
                sql = self._expressions.column(folded(column.name)).sql
                named = [
                    value
                    for shown, value in self._items
                    if folded(shown.name) == folded(column.name)
                ]
                need(all(value.sql == sql for value in named))

    def _key(self, node: exp.Expr) -> SmallValue:
        if isinstance(node, exp.Literal):
            value = self._items[self._ordinal(node)][1]
        elif _bare(node) and folded(node.name) not in self._columns:
            value = self._named(node.name)
        else:
            value = self._expressions.value(node)
        need(not value.is_aggregate)
        return value

    def _order(self, is_distinct: bool) -> str:
        order = self._tree.args.get("order")
        if order is None:
            return ""
        parts = []
        for one in order.expressions:
            need(isinstance(one, exp.Ordered) and not one.args.get("with_fill"))
            value = self._ordered(one.this, is_distinct)
            need(value.type in SORTABLE)
            direction = "DESC" if one.args.get("desc") else "ASC"
            nulls = "FIRST" if one.args.get("nulls_first") else "LAST"
            parts.append(f"{value.sql} {direction} NULLS {nulls}")
        return f" ORDER BY {', '.join(parts)}"

    def _ordered(self, node: exp.Expr, is_distinct: bool) -> SmallValue:
        if isinstance(node, exp.Literal):
            number = self._ordinal(node)
            return replace(self._items[number][1], sql=f"c{number}")
        names = [folded(shown.name) for shown, _ in self._items]
        if _bare(node) and folded(node.name) in names:
            value = self._named(node.name)
        else:
            self._check_names(node)
            value = self._expressions.value(node, has_aggregates=self._is_grouped)
        for number, (_, item) in enumerate(self._items):
            if item.sql == value.sql:
                return replace(value, sql=f"c{number}")
        need(not is_distinct)
        is_of_groups = value.is_aggregate or value.sql in self._key_texts()
        need(is_of_groups or not self._is_grouped)
        return value

    def _key_texts(self) -> set[str]:
        return {key.sql for key in self._keys}

    def _named(self, name: str) -> SmallValue:
        """Return the one item of SELECT that has a name."""
        found = self._all_named(name)
        need(len(found) == 1)
        return found[0]

    def _all_named(self, name: str) -> list[SmallValue]:
        return [value for shown, value in self._items if folded(shown.name) == folded(name)]

    def _ordinal(self, node: exp.Literal) -> int:
        need(not node.is_string and bool(re.fullmatch(r"[1-9][0-9]{0,3}", str(node.this))))
        number = int(node.this) - 1
        need(number < len(self._items))
        return number

    def _count(self, name: str) -> int | None:
        clause = self._tree.args.get(name)
        if clause is None:
            return None
        node = clause.expression
        need(isinstance(node, exp.Literal) and not node.is_string)
        need(bool(re.fullmatch(r"[0-9]{1,9}", str(node.this))))
        return int(node.this)


def _one_table(tree: exp.Expr) -> tuple[str, str]:
    """Return the one table of a query and the name that it has there."""
    source = tree.find(exp.From)
    if source is None or not isinstance(source.this, exp.Table):
        raise NotSmall
    table = source.this
    need(isinstance(table.this, exp.Identifier) and table.name in BY_NAME)
    need(BY_NAME[table.name] is not AUDIT_LOG)  # whose rows there are is another question there
    need(not table.args["alias"].columns)
    need(len(list(tree.find_all(exp.Query))) == 1)
    return table.name, folded(table.alias)


def _bare(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and not node.table


def _within(column: str, topic_filter: str) -> str:
    """Return the condition of `api.sql.confining` for rows of some topics."""
    condition = matches(column, topic_filter)
    if topic_filter.endswith("#"):
        return f"({condition})"
    return f"({condition} AND right({column}, 1) <> '#')"
