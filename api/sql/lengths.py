"""An upper estimate of the length of each value in a query, so that none is too long for Spark.

A query that makes a text of gigabytes out of twenty characters (`replace` of `replace`) would end
Spark for all who ask it. So a value that the query makes has at most 1 MiB, and holds at most
`MOST_TIMES` copies of a stored one; the rows that it makes of such values are bound, too. Names
are looked up as Spark does, and wherever it is not known which of several values one is, it is any
of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from math import inf
from typing import Final, NoReturn

from sqlglot import exp

from api.sql.dialect import Verbatim, is_text
from api.sql.growth import (
    FOLD,
    GROWTH,
    LONGEST_MESSAGE,
    NUMBER,
    SHORT,
    Lambda,
    Length,
    cut_by,
    joined,
    longest,
    made,
    product,
    stored,
    sum_of,
)
from rules.sql.names import folded

MOST_BYTES: Final = LONGEST_MESSAGE
"""That a value has which a query makes."""
MOST_TIMES: Final = 128
"""That a stored value is in another one, or in a row."""
MOST_ROW_BYTES: Final = 16 * MOST_BYTES
"""Bound of all that a query makes for a row."""

MOST_OF_ALL_BYTES: Final = 64 * MOST_BYTES
"""Bound of all values that are made for a row, whatever becomes of them; constants are kept with
the query's plan."""

# fmt: off
_SHORT: Final = (
    exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE,
    exp.LT, exp.LTE, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.BitwiseAnd,
    exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.Exists, exp.Interval, exp.Extract,
    exp.StrPosition, exp.CurrentDate, exp.CurrentTimestamp, exp.Null, exp.Boolean,
)
# fmt: on
"""Kinds of nodes that are a number, a time or a truth."""
# fmt: off
_ONE_OF: Final = (
    exp.Case, exp.If, exp.Paren, exp.Trim, exp.Filter, exp.IgnoreNulls, exp.RespectNulls,
    exp.Bracket, exp.Escape, exp.Ordered, exp.Distinct, exp.JSONExtract, exp.Where, exp.Group,
    exp.Having, exp.Order, exp.Cube, exp.Rollup, exp.GroupingSets, exp.WindowSpec,
)
# fmt: on
"""Kinds that are one of the values in them, or a part of one; clauses."""
_LONGEST_NUMBER: Final = 48
"""Bytes of a decimal, or a time with its zone, as text."""
_ELEMENT: Final = "\0element"
"""Beginning of the names of elements; no column has such a name."""

Columns = list[tuple[str, Length]]
Fail = Callable[[exp.Expr, str, str], NoReturn]


@dataclass(slots=True)
class _Relation:
    """A relation after FROM."""

    alias: str
    columns: Columns
    others: Length | None = None
    """Length of a column of any other name; None: there is none."""
    is_stored: bool = False
    """It is a table, and may have columns of other names."""

    def find(self, name: str) -> Iterator[Length]:
        found = [length for one, length in self.columns if one == name]
        yield from found
        if not found and self.is_stored:
            yield stored(name)
        elif not found and self.others is not None:
            yield self.others

    def all(self) -> Length:
        """Return the length of one row."""
        lengths = [length for _, length in self.columns]
        if self.is_stored:
            lengths.append(stored("*"))
        if self.others is not None:
            lengths.append(self.others)
        return sum_of(lengths)


@dataclass(slots=True)
class _Scope:
    """Names that an expression may use: relations, aliases and parameters of functions."""

    around: "_Scope | None" = None
    ctes: dict[str, Columns] = field(default_factory=dict)
    relations: list[_Relation] = field(default_factory=list)
    named: dict[str, list[Length]] = field(default_factory=dict)
    hides: bool = False
    """Names of this level hide all others: they are parameters."""

    def outwards(self) -> "Iterator[_Scope]":
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.around

    def cte(self, name: str) -> Columns | None:
        return next((one.ctes[name] for one in self.outwards() if name in one.ctes), None)

    def has_parameter(self, name: str) -> bool:
        return any(one.hides and name in one.named for one in self.outwards())

    def find(self, parts: Sequence[str]) -> Length:
        """Return the bound of all that a name may be, with dots or without."""
        found: list[Length] = []
        for scope in self.outwards():
            found += scope.named.get(parts[0], [])
            if found and scope.hides:
                break
            aliases = {relation.alias for relation in scope.relations}
            for relation in scope.relations:
                if not (relation.is_stored and len(parts) > 1 and parts[0] in aliases):
                    found += relation.find(parts[0])
                for part, behind in pairwise(parts):
                    found += relation.find(behind) if relation.alias == part else []
        if found:
            return longest(found)
        # The name that Spark makes for an expression: any value of what is there.
        return longest(one.all() for scope in self.outwards() for one in scope.relations)


class Lengths:
    """Estimates a query.

    Args:
        fail: Refuses it at a node, with a reason and a hint.
    """

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._elements: dict[str, Length] = {}
        """By the names that stand for elements of lists: how long these may be."""
        self._all = 0.0
        """Bytes that were made so far, in all places."""
        self._peak = NUMBER
        """Largest length since the function of a fold began."""

    def check(self, query: exp.Expr) -> None:
        """Refuse a query with a value, or a row, that may become too long."""
        self.columns(query)

    def columns(self, query: exp.Expr) -> Columns:
        """Return the columns of a query, with the bounds of their values."""
        return self._query(query, _Scope())

    # Queries

    def _query(self, query: exp.Expr, around: _Scope) -> Columns:
        scope = _Scope(around)
        if (head := query.args.get("with_")) is not None:
            for cte in head.expressions:
                columns = self._query(cte.this, scope)
                scope.ctes[folded(cte.alias)] = _renamed(columns, cte.args.get("alias"))
        if isinstance(query, exp.Subquery):
            columns = self._query(query.this, scope)
            self._rest(query, ("this", "with_", "alias"), scope)
            return columns
        if isinstance(query, exp.SetOperation):
            left, right = (self._query(one, scope) for one in (query.this, query.expression))
            columns = [
                (one[0], longest([one[1], other[1]]))
                for one, other in zip_longest(left, right, fillvalue=("", NUMBER))
            ]
            scope.relations.append(_Relation("", columns))
            self._rest(query, ("this", "expression", "with_"), scope)
            return columns
        return self._select(query, scope)

    def _select(self, select: exp.Expr, scope: _Scope) -> Columns:
        source = select.args.get("from_")
        joins = select.args.get("joins") or ()
        laterals = select.args.get("laterals") or ()
        for one in [*([source.this] if source else ()), *joins, *laterals]:
            self._relation(one, scope)
        columns: Columns = []
        for item in select.expressions:
            for name, length in self._item(item, scope):
                columns.append((name, length))
                scope.named.setdefault(name, []).append(length)
        row = sum_of(length for _, length in columns)
        if row.made > MOST_ROW_BYTES or row.times > MOST_TIMES:
            self._fail(select, f"a row of this may be too long: {_said(row)}", _HINT)
        self._rest(select, ("expressions", "from_", "joins", "laterals", "with_"), scope)
        return columns

    def _rest(self, query: exp.Expr, but: Sequence[str], scope: _Scope) -> None:
        """Estimate the other clauses."""
        for name, value in query.args.items():
            if name not in but:
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, exp.Expr):
                        self.of(one, scope)

    def _relation(self, node: exp.Expr, scope: _Scope) -> None:
        """Add what stands after FROM, JOIN or LATERAL to the names that there are."""
        inner = node.this
        if isinstance(node, exp.Join):
            self._relation(inner, scope)
            self._rest(node, ("this",), scope)
            return
        alias = node.args.get("alias")
        name = folded(node.alias or node.name)
        if isinstance(node, exp.Table) and isinstance(inner, exp.Identifier):
            known = None if node.db or node.catalog else scope.cte(folded(node.name))
            relation = _Relation(name, known or [], is_stored=known is None)
        elif isinstance(node, exp.Query):
            relation = _Relation(name, self._query(node, scope))
        elif isinstance(inner, exp.Subquery):
            relation = _Relation(name, self._query(inner, scope))
        else:  # a function that gives rows
            relation = _Relation(name, [], others=self.of(inner, scope))
        relation.columns = _renamed(relation.columns, alias)
        if relation.others is not None and alias is not None:
            # LATERAL VIEW has the names of its columns with that of the table.
            relation.columns = [(folded(one.name), relation.others) for one in alias.columns]
        elif relation.is_stored and alias is not None and alias.columns:
            relation.columns = [(name, stored(name)) for name in map(_name, alias.columns)]
        scope.relations.append(relation)
        self._rest(node, ("this", "alias", "with_", "joins"), scope)
        for join in node.args.get("joins") or ():
            self._relation(join, scope)

    def _item(self, item: exp.Expr, scope: _Scope) -> Columns:
        """Return the columns that an item of SELECT is."""
        if isinstance(item, exp.Star):
            return self._star(item, None, scope)
        if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
            return self._star(item.this, folded(item.table), scope)
        if isinstance(item, exp.Aliases):
            length = self.of(item.this, scope)
            return [(_name(one), length) for one in item.aliases]
        return [(folded(item.alias or _own_name(item)), self.of(item, scope))]

    def _star(self, star: exp.Star, of: str | None, scope: _Scope) -> Columns:
        """Return all columns; of one relation, or a struct, if a name stands before the star."""
        found: Columns = []
        for relation in scope.relations:
            if of in (None, relation.alias):
                found += relation.columns
                found += [("*", stored("*"))] if relation.is_stored else []
                found += [] if relation.others is None else [("", relation.others)]
        if of is not None and not found:
            found.append(("", scope.find([of])))
        for given in ("replace", "rename"):
            for one in star.args.get(given) or ():
                found += self._item(one, scope)
        return found

    # Expressions

    def of(self, node: exp.Expr, scope: _Scope) -> Length:
        """Return the bound of a value; refuse one that is too long."""
        length = self._of(node, scope)
        self._check(node, length)
        self._all += length.made
        if self._all > MOST_OF_ALL_BYTES:
            self._fail(
                node, f"all this may be too long: more than {MOST_OF_ALL_BYTES} bytes", _HINT
            )
        self._peak |= length
        return length

    def _check(self, node: exp.Expr, length: Length) -> None:
        whole = self._with_elements(length)
        if whole.made > MOST_BYTES or whole.times > MOST_TIMES:
            self._fail(node, f"this may be too long: {_said(whole)}", _HINT)

    def _with_elements(self, length: Length) -> Length:
        """Put the lengths of elements in the place of their names."""
        whole = made(length.made)
        for name, times in length.stored.items():
            known = self._elements.get(name)
            whole += (stored(name) if known is None else known) * times
        return whole

    def _of(self, node: exp.Expr, scope: _Scope) -> Length:
        if isinstance(node, exp.Query):
            return longest(length for _, length in self._query(node, scope))
        if isinstance(node, exp.Anonymous):
            return self._call(node, scope)
        if isinstance(node, exp.Star) or isinstance(node.this, exp.Star):
            return sum_of(length for _, length in self._item(node, scope))
        if isinstance(node, exp.Column):
            return scope.find(list(map(_name, node.parts)))
        if isinstance(node, exp.Literal | exp.RawString | exp.HexString | Verbatim):
            written = len(str(node.this).encode("utf-8", "surrogatepass"))
            return made(written if is_text(node) else SHORT + written)
        if isinstance(node, exp.Identifier) and scope.has_parameter(_name(node)):
            return scope.find([_name(node)])
        if isinstance(node, exp.Identifier | exp.Var | exp.DataType):
            return made(len(node.sql().encode("utf-8", "surrogatepass")))
        if isinstance(node, exp.Dot):
            return self.of(node.this, scope)  # a field
        lengths = [self.of(one, scope) for one in _inside(node)]
        if isinstance(node, _SHORT):
            return NUMBER
        if isinstance(node, exp.Alias | exp.PropertyEQ | exp.Kwarg):
            name = len((node.alias or node.name).encode("utf-8", "surrogatepass"))
            return longest(lengths) + made(name)  # a struct shows it
        if isinstance(node, exp.Cast | exp.TryCast):
            return _cast(node, lengths)
        if isinstance(node, exp.Window):
            return lengths[0]
        if isinstance(node, exp.Substring):
            return cut_by(lengths[0], node.args.get("length"))
        if isinstance(node, _ONE_OF):
            return longest(lengths)
        if isinstance(node, exp.Concat | exp.DPipe):
            return joined(lengths)
        return sum_of(lengths)

    def _call(self, node: exp.Anonymous, scope: _Scope) -> Length:
        called = node.this.this if isinstance(node.this, Verbatim) else node.name
        name = str(called).lower().rpartition(".")[2]
        arguments = node.expressions
        growth = GROWTH[name]
        if name == "count":
            for one in arguments:
                if not isinstance(one, exp.Star):
                    self.of(one, scope)
            return NUMBER
        functions = [one for one in arguments if isinstance(one, exp.Lambda)]
        values = [one for one in arguments if not isinstance(one, exp.Lambda)]
        lengths = [self.of(one, scope) for one in values]
        if growth == FOLD:
            return self._fold(lengths, functions, scope)
        if isinstance(growth, Lambda):
            return self._each(growth, lengths, functions, scope)
        for function in functions:  # of two elements, which is the greater one
            self._body(function, [longest(lengths)], scope)
        assert callable(growth)
        return growth(values, lengths)

    def _each(
        self,
        growth: Lambda,
        lengths: Sequence[Length],
        functions: Sequence[exp.Lambda],
        scope: _Scope,
    ) -> Length:
        listed = sum_of(lengths[: growth.lists])
        found = [listed] if growth.keeps else []
        for function in functions:
            names, body = self._body(function, [listed], scope)
            if growth.makes:
                found.append(self._for_each(names, body, listed))
        return longest(found) if len(found) < 2 else sum_of(found)

    def _fold(
        self, lengths: Sequence[Length], functions: Sequence[exp.Lambda], scope: _Scope
    ) -> Length:
        listed, start = longest(lengths[:1]), longest(lengths[1:])
        if not functions:
            return sum_of(lengths)
        around, self._peak = self._peak, NUMBER
        names, body = self._body(functions[0], [start, listed], scope)
        peak, self._peak = self._peak, around | self._peak
        steps, elements = names[:1], names[1:]
        if any(body.stored.get(name, 0.0) > 1.0 for name in steps):
            whole = made(inf)  # each step makes more of what the one before has made
        else:
            added = self._for_each(elements, self._without(steps, body), listed)
            whole = sum_of([start, added])
        self._check(functions[0], self._put(steps, body, whole))
        self._check(functions[0], self._put(steps, peak, whole))
        for function in functions[1:]:
            names, body = self._body(function, [whole], scope)
            whole = self._put(names, body, whole)
        return whole

    def _body(
        self, function: exp.Lambda, lengths: Sequence[Length], scope: _Scope
    ) -> tuple[list[str], Length]:
        """Return the names that the parameters have in the estimate, and the estimate."""
        inside = _Scope(scope, hides=True)
        names = []
        for number, parameter in enumerate(function.expressions):
            name = f"{_ELEMENT}{len(self._elements)}"
            whole = self._with_elements(lengths[min(number, len(lengths) - 1)])
            self._elements[name] = whole
            inside.named[folded(parameter.name)] = [stored(name, whole.bytes)]
            names.append(name)
        return names, self.of(function.this, inside)

    def _for_each(self, names: Sequence[str], body: Length, listed: Length) -> Length:
        """Return the bound of what a function makes of all elements of a list.

        What it repeats of an element is in the list once; what else it makes comes for each.
        """
        of_elements = sum(body.stored.get(name, 0.0) for name in names)
        return listed * of_elements + product(listed, self._without(names, body))

    def _put(self, names: Sequence[str], body: Length, value: Length) -> Length:
        """Put a value in the place of the names in an estimate."""
        times = sum(body.stored.get(name, 0.0) for name in names)
        return self._without(names, body) + value * times

    def _without(self, names: Sequence[str], body: Length) -> Length:
        rest = made(body.made)
        for name, times in body.stored.items():
            if name not in names:
                known = self._elements.get(name)
                rest += (stored(name) if known is None else stored(name, known.bytes)) * times
        return rest


def _cast(node: exp.Expr, lengths: Sequence[Length]) -> Length:
    kind = node.args["to"]
    name = kind.this.name if isinstance(kind.this, exp.DType) else ""
    if name in ("TEXT", "VARCHAR", "CHAR", "BINARY", "VARBINARY", "VARIANT"):
        return longest(lengths[:1]) | made(_LONGEST_NUMBER)
    if kind.args.get("nested"):
        return sum_of(lengths)
    return NUMBER


def _inside(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the values in a node: all that it has, without names."""
    for key, value in node.args.items():
        if key == "alias" or (isinstance(node, exp.JSONExtract) and key == "expression"):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, exp.Expr):
                yield one


def _renamed(columns: Columns, alias: exp.Expr | None) -> Columns:
    """Give columns the names in brackets behind that of their relation."""
    names = [_name(one) for one in alias.args.get("columns") or ()] if alias else []
    if not names:
        return columns
    if any(name in ("", "*") for name, _ in columns):  # which is which is not known
        most = longest(length for _, length in columns)
        return [(name, most) for name in names]
    return [(name, length) for name, (_, length) in zip(names, columns, strict=False)]


def _name(node: exp.Expr) -> str:
    return folded(node.name)


def _own_name(item: exp.Expr) -> str:
    """Return the name that Spark gives an item of SELECT; empty when it makes one."""
    item = item.unnest()
    if isinstance(item, exp.Dot):
        return str(item.expression.name)
    return str(item.name) if isinstance(item, exp.Column) else ""


def _said(length: Length) -> str:
    """Tell which bound a length is beyond."""
    if length.times > MOST_TIMES:
        return f"more than {MOST_TIMES} times a stored value"
    return f"more than {MOST_BYTES} bytes"


_HINT: Final = "shorten what it is made of, as left(x, 100) does"
