"""Rules with memory: from a statement with GROUP BY, JOIN or a detection to a plan."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from rules.errors import RuleError
from rules.language import dialect
from rules.language.carrying import Projection
from rules.language.choosing import all_of, conjuncts
from rules.language.compiled import CompiledRule, Condition, Field
from rules.language.detecting import TOLD, detection_in, read_detection
from rules.language.expressions import Expressions
from rules.language.grouping import WINDOW_COLUMNS, GroupedExpressions, Rows, has_aggregate
from rules.language.joining import Joining
from rules.language.limits import Limits
from rules.language.names import WINDOWS
from rules.language.output import Tree, names, put, row
from rules.language.places import error_at
from rules.language.plan import (
    AT_COLUMN,
    DETECTED,
    EVENT_TIME,
    HOPS,
    ROW_COLUMN,
    Detection,
    Plan,
)
from rules.language.relations import JoinedExpressions, JoinedScope, Side, Table
from rules.language.scope import Scope
from rules.language.sources import Source, decode_payload, read_source
from rules.language.values import as_condition, as_possible
from rules.language.windows import read_window, receive_time
from rules.schemas.registry import Noted, SchemaLookup, wrap

References = Mapping[str, tuple[tuple[str, str], ...]]
"""The reference tables there are: of each its columns, name and type."""

_STREAMS: Final = 2
_NAMES: Final = re.compile(r"\b[cp][0-9]+\b")


def is_stateful(statement: dialect.Statement) -> bool:
    """Tell whether a rule needs more than the message that it is evaluated on."""
    args = statement.args
    return bool(
        args.get("joins")
        or args.get("group")
        or args.get("having")
        or any(detection_in(one) for one in conjuncts(args.get("where")))
    )


class StatefulCompiler:
    """Compiles one rule with memory.

    Args:
        sql: Its text.
        statement: What was parsed of it.
        limits: How large it may be.
        references: The reference tables there are; None when that is not known here.
        schemas: What payloads can be decoded by.
    """

    def __init__(
        self,
        sql: str,
        statement: dialect.Statement,
        limits: Limits,
        references: References | None,
        schemas: SchemaLookup,
    ) -> None:
        self._sql = sql
        self._args = statement.args
        self._limits = limits
        self._references = references
        self._schemas = Noted(schemas)
        self._sides: list[Side] = []
        self._tables: list[Table] = []
        self._filters: list[str] = []
        """Tests of rows that are not of one stream alone."""

    def compile(self) -> CompiledRule:
        items = self._args["items"]
        if self._args["is_foreach"]:
            problem = "FOREACH has neither GROUP BY, JOIN nor detections"
            self._fail(items[0], problem, hint="make two rules; the first publishes what is joined")
        if len(items) > self._limits.select_items:
            limit = self._limits.select_items
            self._fail(items[limit], f"more than {limit} expressions are listed")
        source = read_source(self._sql, self._args["filters"], self._limits)
        decoding = self._args.get("decoding")
        first = self._side(source, self._args.get("alias"), self._args["filters"][0], decoding)
        call = self._detection_call()
        scopes: list[tuple[Scope, Expressions]] = []
        scope: JoinedScope | None = None
        joined: JoinedExpressions | None = None
        if self._args.get("joins") or call is not None:
            told = TOLD if call is not None else {}
            scope = JoinedScope(self._sides, self._tables, told)
            joined = JoinedExpressions(self._sql, scope, self._limits, first)
            joined.is_grouped = True
            scopes.append((scope, joined))
            relation = self._join(scope, joined, is_detected=call is not None)
        else:
            relation = first.name
        scopes += [(side.scope, side.expressions) for side in self._sides]
        grouped = self._grouping(call)
        self._give_names(items, scopes, is_grouped=grouped is not None)
        detection = self._where(call, scope, joined)
        if grouped is not None:
            tree, query = self._grouped(items, grouped, relation, scope, joined)
        else:
            assert scope is not None
            assert joined is not None
            tree, query = self._rows(items, relation, scope, joined, is_detected=call is not None)
        return self._compiled(tree, query, detection, scope)

    # Sources

    def _side(
        self, source: Source, alias: str | None, node: exp.Expr, decoding: exp.Expr | None
    ) -> Side:
        self._check_alias(alias, node)
        name = f"s{len(self._sides)}"
        side = Side(self._sql, source, name, alias, self._limits, self._schemas)
        decode_payload(side.expressions, side.scope, source, decoding)
        self._sides.append(side)
        return side

    def _check_alias(self, alias: str | None, node: exp.Expr) -> None:
        if alias is None:
            return
        columns = {column.name for side in self._sides for column in side.source.columns}
        known = {side.alias for side in self._sides} | {one.alias for one in self._tables}
        if alias in known:
            self._fail(node, f"two sources are named {alias[:100]}", hint="AS gives another name")
        if alias in columns or alias in TOLD or alias in WINDOW_COLUMNS:
            self._fail(node, f"{alias[:100]} is a column", hint="AS gives the source another name")

    def _join(self, scope: JoinedScope, joined: Expressions, *, is_detected: bool) -> str:
        first = self._sides[0]
        if is_detected:
            first.relation = DETECTED
        nodes = self._args.get("joins") or []
        made = [(node, self._joined_source(node, is_detected=is_detected)) for node in nodes]
        joining = Joining(joined, scope, self._sides)
        return " ".join((first.relation, *(joining.join(node, new) for node, new in made)))

    def _joined_source(self, node: exp.Expr, *, is_detected: bool) -> Side | Table:
        if not node.args.get("filters"):
            return self._table(node)
        if len(self._sides) == _STREAMS or is_detected:
            problem = "a rule joins two streams at most, and none to a detection"
            self._fail(node, problem, hint="make two rules; the first publishes what is joined")
        first = self._sides[0]
        alias = node.args.get("alias")
        if alias is None or first.alias is None:
            problem = "two streams need a name each"
            self._fail(node, problem, hint='FROM "a/+" AS a JOIN "b/+" AS b')
        source = read_source(self._sql, node.args["filters"], self._limits)
        side = self._side(source, alias, node, node.args.get("decoding"))
        side.may_lack = node.args["is_left"]
        return side

    def _table(self, node: exp.Expr) -> Table:
        table = node.args["table"].this
        if len(self._tables) == self._limits.references:
            self._fail(node, f"more than {self._limits.references} reference tables are joined")
        columns = None
        if self._references is not None:
            columns = self._references.get(table)
            if columns is None:
                there_are = ", ".join(self._references) or "none"
                problem = f"there is no reference table {table[:100]}"
                self._fail(node.args["table"], problem, hint=f"there are: {there_are}")
        elif not table.replace("_", "").isalnum() or not table.isascii():
            self._fail(node.args["table"], "this is no name of a reference table")
        alias = node.args.get("alias") or table
        self._check_alias(alias, node)
        made = Table(f"r{len(self._tables)}", table, alias, columns)
        self._tables.append(made)
        return made

    # Names

    def _give_names(
        self,
        items: Sequence[exp.Expr],
        scopes: Sequence[tuple[Scope, Expressions]],
        *,
        is_grouped: bool,
    ) -> None:
        """Give the names of SELECT where WHERE and GROUP BY are compiled."""
        of_groups = set(WINDOW_COLUMNS) if is_grouped else set()
        for item in items:
            path = item.args.get("path")
            if isinstance(item.this, exp.Star):
                continue
            if is_grouped and (has_aggregate(item.this) or _reads(item.this, of_groups)):
                if path:
                    of_groups.add(path[0])
                    for scope, _ in scopes:
                        scope.hide(path[0], "it is of a group: HAVING, not WHERE")
                continue
            for place, (scope, expressions) in enumerate(scopes):
                try:
                    with scope.reading() as reads:
                        value = expressions.value(item.this)
                except RuleError:
                    if place == 0:
                        raise
                    continue
                if path:
                    scope.give(path, value, reads)

    # WHERE

    def _detection_call(self) -> dialect.Call | None:
        found = [
            call
            for one in conjuncts(self._args.get("where"))
            if (call := detection_in(one)) is not None
        ]
        if len(found) > 1:
            self._fail(found[1], "a rule has one detection", hint="make two rules")
        return found[0] if found else None

    def _where(
        self, call: dialect.Call | None, scope: JoinedScope | None, joined: Expressions | None
    ) -> Detection | None:
        for one in conjuncts(self._args.get("where")):
            if detection_in(one) is not None:
                continue
            side: Side | None = self._sides[0]
            if scope is not None and joined is not None:
                with scope.scratch(), scope.reading() as reads:
                    joined.condition(one)
                side = self._side_of(scope.origins(reads), one)
            if side is None:
                assert joined is not None
                self._filters.append(as_possible(joined.condition(one)))
                continue
            with side.scope.reading() as reads:
                value = side.expressions.condition(one)
            side.tests.append(as_possible(value))
            side.conditions.append(
                Condition(
                    text=side.expressions.text_of(one),
                    expression=as_condition(value),
                    fields=tuple(reads.values()),
                )
            )
        if call is None:
            return None
        return read_detection(call, self._sides[0], self._args.get("group") or ())

    def _side_of(self, origins: frozenset[str], node: exp.Expr) -> Side | None:
        """Return the stream whose messages alone a condition is about."""
        if "" in origins:
            problem = "what a detection tells is not known in WHERE"
            self._fail(node, problem, hint="HAVING comes after the detection")
        for side in self._sides:
            if origins <= {side.name} and not side.may_lack:
                return side
        return None

    # GROUP BY

    def _grouping(self, call: dialect.Call | None) -> tuple[dialect.Call, list[exp.Expr]] | None:
        """Return the window and the keys of GROUP BY."""
        group = self._args.get("group") or []
        if len(group) > self._limits.group_keys:
            self._fail(group[-1], f"more than {self._limits.group_keys} keys")
        windows = [one for one in group if isinstance(one, dialect.Call) and one.this in WINDOWS]
        keys = [one for one in group if one not in windows]
        if call is not None:
            if windows:
                self._fail(windows[0], "a detection has no window", hint="GROUP BY lists its keys")
            return None
        if len(self._sides) > 1 and group:
            problem = "the join of two streams has no GROUP BY"
            self._fail(group[0], problem, hint="make two rules; the first publishes what is joined")
        if len(windows) > 1:
            self._fail(windows[1], "a rule has one window")
        if group and not windows:
            problem = "GROUP BY needs a window"
            self._fail(group[-1], problem, hint="GROUP BY clientid, tumble(timestamp, '1 minute')")
        having = self._args.get("having")
        if having is not None and not windows:
            self._fail(having, "HAVING needs GROUP BY and a window, or a detection", hint="WHERE")
        return (windows[0], keys) if windows else None

    def _grouped(
        self,
        items: Sequence[exp.Expr],
        grouping: tuple[dialect.Call, list[exp.Expr]],
        relation: str,
        scope: JoinedScope | None,
        joined: Expressions | None,
    ) -> tuple[Tree, str]:
        (side,) = self._sides
        window = read_window(grouping[0], side.expressions)
        side.time, side.lateness_ms = window.time, window.lateness_ms
        side.size_ms, side.slide_ms = window.size_ms, window.slide_ms
        if scope is None or joined is None:
            place = ("log_partition", "log_offset")
            rows = Rows(side.expressions, side.projection, lambda: place, is_guarded=False)
        else:
            projection = Projection("p")
            rows = Rows(joined, projection, lambda: _qualified(side), is_guarded=True)
        grouped = GroupedExpressions(self._sql, rows, window)
        for key in grouping[1]:
            value = rows.expressions.value(key)
            if value.literal is not None:
                self._fail(key, "a constant groups nothing")
            grouped.add_key(value)
        tree: Tree = {}
        for item in items:
            if isinstance(item.this, exp.Star):
                self._fail(item, "* has no meaning for a group of messages", hint="last(payload)")
            self._put(tree, item, grouped.scope, grouped)
        tests = [as_possible(grouped.condition(one)) for one in conjuncts(self._args.get("having"))]
        groups = grouped.relation(relation if joined is None else "joined")
        if joined is not None:
            groups = groups.replace(" FROM joined ", f" FROM ({self._joined(relation, rows)}) ", 1)
        return tree, _outputs(row(tree), "window_end", HOPS, f"({groups})", tests)

    def _joined(self, relation: str, rows: Rows) -> str:
        """Return the rows that are grouped, where they are of several relations."""
        (side,) = self._sides
        columns = [f"{one.expression} AS {one.name}" for one in rows.projection.columns()]
        own = (f"{side.relation}.{name}" for name in (EVENT_TIME, HOPS))
        listed = ", ".join((*own, *columns))
        test = all_of(self._filters) if self._filters else "true"
        if "raise_error" in test:
            test = f"CAST(try_to_binary(CAST({test} AS STRING), 'utf-8') AS STRING) = 'true'"
        return f"SELECT {listed} FROM {relation} WHERE {test}"  # noqa: S608

    # Rows that are not grouped

    def _rows(
        self,
        items: Sequence[exp.Expr],
        relation: str,
        scope: JoinedScope,
        joined: Expressions,
        *,
        is_detected: bool,
    ) -> tuple[Tree, str]:
        tree: Tree = {}
        for item in items:
            if isinstance(item.this, exp.Star):
                if len(self._sides) > 1:
                    self._fail(item, "* of which stream?", hint="list the columns")
                tree.update(scope.selected())
                continue
            self._put(tree, item, scope, joined)
        for one in conjuncts(self._args.get("having")):
            self._filters.append(as_possible(joined.condition(one)))
        for side in self._sides:
            side.time = side.time or receive_time(side.expressions)
        at, hops = (_greatest(self._sides, name) for name in (EVENT_TIME, HOPS))
        if is_detected:
            at = f"{DETECTED}.{AT_COLUMN}"
        return tree, _outputs(row(tree), at, hops, relation, self._filters)

    def _put(self, tree: Tree, item: exp.Expr, scope: Scope, expressions: Expressions) -> None:
        with scope.reading() as reads:
            value = expressions.value(item.this)
        path = item.args.get("path")
        if path:
            scope.give(path, value, reads)
        put(tree, path or expressions.name_of(item.this), value)

    # The whole

    def _compiled(
        self, tree: Tree, query: str, detection: Detection | None, scope: JoinedScope | None
    ) -> CompiledRule:
        used = set(_NAMES.findall(query))
        if detection is not None:
            used.update(detection.keys, detection.order)
            used.update(one for one in (detection.condition, detection.value) if one is not None)
        streams = tuple(side.stream(frozenset(used)) for side in self._sides)
        # The query reads the streams: what it decodes by itself is known by then.
        named = [one for hash_, one in self._schemas.layouts.items() if hash_ in query]
        streams = tuple(replace(one, condition=wrap(one.condition, named)) for one in streams)
        parts = [query]
        for stream in streams:
            parts += [stream.condition, stream.event_time]
            parts += [column.expression for column in stream.columns]
        if sum(map(len, parts)) > self._limits.expression_characters:
            raise RuleError(
                "the rule is too large once its names are put in",
                hint="names given with AS are put in wherever they are used",
            )
        fields: dict[str, Field] = {}
        if scope is not None:
            fields.update((one.name, one) for one in scope.fields())
        if len(self._sides) == 1:
            fields.update(self._sides[0].scope.reads)
        conditions = [one for side in self._sides for one in side.conditions]
        return CompiledRule(
            filters=tuple(dict.fromkeys(one for stream in streams for one in stream.filters)),
            is_events=streams[0].is_events,
            expression=None,
            conditions=tuple(map(self._whole, conditions)),
            fields=tuple(map(self._whole_field, fields.values())),
            columns=tuple(names(tree)),
            deterministic=True,
            plan=Plan(
                streams=streams,
                references=tuple(table.reference() for table in self._tables),
                detection=detection,
                query=query,
            ),
            schemas=tuple(self._schemas.uses),
        )

    def _whole(self, condition: Condition) -> Condition:
        """Return a condition with the layouts that it names."""
        return replace(
            condition,
            expression=self._schemas.whole(condition.expression),
            fields=tuple(map(self._whole_field, condition.fields)),
        )

    def _whole_field(self, field: Field) -> Field:
        return replace(field, expression=self._schemas.whole(field.expression))

    def _fail(self, node: exp.Expr, problem: str, *, hint: str = "") -> None:
        start, end = node.meta["start"], node.meta["end"]
        raise error_at(self._sql, start, end + 1, problem, hint)


def _reads(node: exp.Expr, wanted: set[str]) -> bool:
    """Tell whether an expression has one of the names."""
    return any(isinstance(one, dialect.Path) and one.this in wanted for one in node.walk())


def _qualified(side: Side) -> tuple[str, str]:
    partition, offset = side.place()
    return f"{side.relation}.{partition}", f"{side.relation}.{offset}"


def _greatest(sides: Sequence[Side], column: str) -> str:
    """Return the greatest value that the streams have in a column."""
    columns = [f"{side.relation}.{column}" for side in sides]
    return columns[0] if len(columns) == 1 else f"greatest({', '.join(columns)})"


def _outputs(made: str, at: str, hops: str, relation: str, tests: Sequence[str]) -> str:
    """Return the query of the outputs; one whose making fails is NULL, see `plan.ROW_COLUMN`."""
    test = all_of(tests) if tests else "true"
    times = f"{at} AS {AT_COLUMN}, {hops} AS {HOPS}"
    if "raise_error" not in made + test:
        return (
            f"SELECT {made} AS {ROW_COLUMN}, {times} "  # noqa: S608
            f"FROM {relation} WHERE {test}"
        )
    chosen = f"CASE WHEN {test} THEN {made} ELSE '' END"
    guarded = f"CAST(try_to_binary({chosen}, 'utf-8') AS STRING)"
    inner = f"SELECT {guarded} AS {ROW_COLUMN}, {times} FROM {relation}"  # noqa: S608
    return (
        f"SELECT {ROW_COLUMN}, {AT_COLUMN}, {HOPS} FROM ({inner}) "  # noqa: S608
        f"WHERE {ROW_COLUMN} IS NULL OR {ROW_COLUMN} <> ''"
    )
