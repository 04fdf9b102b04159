"""Stateful rules: from a statement with GROUP BY, JOIN or a detection to a plan."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from rules.errors import RuleError
from rules.language.carrying import Projection
from rules.language.choosing import all_of, conjuncts
from rules.language.compilation import Compilation
from rules.language.compiled import CompiledRule, Field
from rules.language.detecting import TOLD, detection_in, read_detection
from rules.language.grouping import WINDOW_COLUMNS, GroupedExpressions, Rows, has_aggregate
from rules.language.joining import Joining
from rules.language.limits import Limits
from rules.language.names import WINDOWS
from rules.language.output import row
from rules.language.plan import (
    AT_COLUMN,
    DETECTED,
    EVENT_TIME,
    HOPS,
    ROW_COLUMN,
    Detection,
    Plan,
)
from rules.language.relations import JoinedExpressions, JoinedScope, ReferenceTable, Side
from rules.language.sources import RuleSource, decode_payload, read_source
from rules.language.syntax import nodes
from rules.language.values import as_possible
from rules.language.windows import read_window, receive_time
from rules.schemas.registry import SchemaLookup, wrap

References = Mapping[str, tuple[tuple[str, str], ...]]
"""The reference tables there are: of each its columns, name and type."""

_STREAMS: Final = 2
_NAMES: Final = re.compile(r"\b[cp][0-9]+\b")


def is_stateful(statement: nodes.Statement) -> bool:
    """Tell whether a rule needs more than the message that it is evaluated on."""
    args = statement.args
    return bool(
        args.get("joins")
        or args.get("group")
        or args.get("having")
        or any(detection_in(one) for one in conjuncts(args.get("where")))
    )


class StatefulCompiler(Compilation):
    """Compiles one stateful rule; `references` of None: it is not known here which there are."""

    def __init__(
        self,
        sql: str,
        statement: nodes.Statement,
        limits: Limits,
        references: References | None,
        schemas: SchemaLookup,
    ) -> None:
        super().__init__(sql, statement, limits, schemas)
        self._references = references
        self._sides: list[Side] = []
        self._tables: list[ReferenceTable] = []
        self._call: nodes.Call | None = None
        self._detection: Detection | None = None
        self._joined: JoinedExpressions | None = None
        """Over the rows of all relations, where they have come together."""
        self._grouping: tuple[nodes.Call, list[exp.Expr]] | None = None
        """The window and the keys of GROUP BY."""
        self._filters: list[str] = []
        """Tests of rows that are not of one stream alone."""

    # Sources

    def _check_form(self) -> None:
        if self._args["is_foreach"]:
            problem = "FOREACH has neither GROUP BY, JOIN nor detections"
            hint = "make two rules; the first publishes what is joined"
            self._fail(self._args["items"][0], problem, hint=hint)

    def _open_source(self) -> None:
        source = read_source(self._sql, self._args["filters"], self._limits)
        decoding = self._args.get("decoding")
        first = self._side(source, self._args.get("alias"), self._args["filters"][0], decoding)
        self._relation = first.name

    def _side(
        self, source: RuleSource, alias: str | None, node: exp.Expr, decoding: exp.Expr | None
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

    def _find_detection(self) -> None:
        conditions = conjuncts(self._args.get("where"))
        found = [call for one in conditions if (call := detection_in(one)) is not None]
        if len(found) > 1:
            self._fail(found[1], "a rule has one detection", hint="make two rules")
        self._call = found[0] if found else None

    def _join(self) -> None:
        nodes = self._args.get("joins") or []
        if not nodes and self._call is None:
            return
        first = self._sides[0]
        scope = JoinedScope(self._sides, self._tables, {} if self._call is None else TOLD)
        self._joined = JoinedExpressions(self._sql, scope, self._limits, first)
        self._joined.is_grouped = True
        if self._call is not None:
            first.relation = DETECTED
        made = [(node, self._joined_source(node)) for node in nodes]
        joining = Joining(self._joined, scope, self._sides)
        self._relation = " ".join((first.relation, *(joining.join(*one) for one in made)))

    def _joined_source(self, node: exp.Expr) -> Side | ReferenceTable:
        if not node.args.get("filters"):
            return self._table(node)
        if len(self._sides) == _STREAMS or self._call is not None:
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

    def _table(self, node: exp.Expr) -> ReferenceTable:
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
        made = ReferenceTable(f"r{len(self._tables)}", table, alias, columns)
        self._tables.append(made)
        return made

    # GROUP BY

    def _read_grouping(self) -> None:
        group = self._args.get("group") or []
        if len(group) > self._limits.group_keys:
            self._fail(group[-1], f"more than {self._limits.group_keys} keys")
        windows = [one for one in group if isinstance(one, nodes.Call) and one.this in WINDOWS]
        keys = [one for one in group if one not in windows]
        if self._call is not None:
            if windows:
                self._fail(windows[0], "a detection has no window", hint="GROUP BY lists its keys")
            return
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
        self._grouping = (windows[0], keys) if windows else None

    # Names

    def _give_names(self) -> None:
        """Give the names of SELECT where WHERE and GROUP BY are compiled."""
        scopes = [(side.scope, side.expressions) for side in self._sides]
        if self._joined is not None:
            scopes.insert(0, (self._joined.scope, self._joined))
        is_grouped = self._grouping is not None
        of_groups = set(WINDOW_COLUMNS) if is_grouped else set()
        for item in self._args["items"]:
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

    def _where(self) -> None:
        for one in conjuncts(self._args.get("where")):
            if detection_in(one) is not None:
                continue
            side: Side | None = self._sides[0]
            if self._joined is not None:
                scope = self._joined.scope
                with scope.scratch(), scope.reading() as reads:
                    self._joined.condition(one)
                side = self._side_of(scope.origins(reads), one)
                if side is None:
                    self._filters.append(as_possible(self._joined.condition(one)))
                    continue
            assert side is not None
            condition, test = self._condition(one, side.scope, side.expressions)
            side.tests.append(test)
            side.conditions.append(condition)
        if self._call is not None:
            group = self._args.get("group") or ()
            self._detection = read_detection(self._call, self._sides[0], group)

    def _side_of(self, origins: frozenset[str], node: exp.Expr) -> Side | None:
        """Return the stream whose messages alone a condition is about."""
        if "" in origins:
            problem = "columns of a detection are not known in WHERE"
            self._fail(node, problem, hint="HAVING comes after the detection")
        for side in self._sides:
            if origins <= {side.name} and not side.may_lack:
                return side
        return None

    # Rows

    def _make_rows(self) -> None:
        if self._grouping is not None:
            self._query = self._groups(*self._grouping)
        else:
            assert self._joined is not None
            self._query = self._single_rows(self._joined)

    def _groups(self, call: nodes.Call, keys: Sequence[exp.Expr]) -> str:
        (side,) = self._sides
        joined = self._joined
        window = read_window(call, side.expressions)
        side.time, side.lateness_ms = window.time, window.lateness_ms
        side.size_ms, side.slide_ms = window.size_ms, window.slide_ms
        if joined is None:
            position = ("log_partition", "log_offset")
            rows = Rows(side.expressions, side.projection, lambda: position, is_guarded=False)
        else:
            rows = Rows(joined, Projection("p"), lambda: _qualified(side), is_guarded=True)
        grouped = GroupedExpressions(self._sql, rows, window)
        for key in keys:
            value = rows.expressions.value(key)
            if value.literal is not None:
                self._fail(key, "a constant groups nothing")
            grouped.add_key(value)
        for item in self._args["items"]:
            if isinstance(item.this, exp.Star):
                self._fail(item, "* has no meaning for a group of messages", hint="last(payload)")
            self._put(item, grouped.scope, grouped)
        tests = [as_possible(grouped.condition(one)) for one in conjuncts(self._args.get("having"))]
        groups = grouped.relation(self._relation if joined is None else "joined")
        if joined is not None:
            groups = groups.replace(" FROM joined ", f" FROM ({self._joined_rows(rows)}) ", 1)
        return _outputs(row(self._tree), "window_end", HOPS, f"({groups})", tests)

    def _joined_rows(self, rows: Rows) -> str:
        """Return the rows that are grouped, where they are of several relations."""
        (side,) = self._sides
        columns = [f"{one.expression} AS {one.name}" for one in rows.projection.columns()]
        own = (f"{side.relation}.{name}" for name in (EVENT_TIME, HOPS))
        listed = ", ".join((*own, *columns))
        test = all_of(self._filters) if self._filters else "true"
        if "raise_error" in test:
            test = f"CAST(try_to_binary(CAST({test} AS STRING), 'utf-8') AS STRING) = 'true'"
        return f"SELECT {listed} FROM {self._relation} WHERE {test}"  # noqa: S608

    def _single_rows(self, joined: JoinedExpressions) -> str:
        """Return the rows where nothing groups them."""
        for item in self._args["items"]:
            if isinstance(item.this, exp.Star):
                if len(self._sides) > 1:
                    self._fail(item, "* of which stream?", hint="list the columns")
                self._tree.update(joined.scope.selected())
                continue
            self._put(item, joined.scope, joined)
        for one in conjuncts(self._args.get("having")):
            self._filters.append(as_possible(joined.condition(one)))
        for side in self._sides:
            side.time = side.time or receive_time(side.expressions)
        at, hops = (_greatest(self._sides, name) for name in (EVENT_TIME, HOPS))
        if self._call is not None:
            at = f"{DETECTED}.{AT_COLUMN}"
        return _outputs(row(self._tree), at, hops, self._relation, self._filters)

    PASSES = (
        _check_form,
        Compilation._check_lists,
        _open_source,
        _find_detection,
        _join,
        _read_grouping,
        _give_names,
        _where,
        _make_rows,
    )

    def _compiled(self) -> tuple[CompiledRule, int]:
        query, detection = self._query, self._detection
        used = set(_NAMES.findall(query))
        if detection is not None:
            used.update(detection.keys, detection.order)
            used.update(one for one in (detection.condition, detection.value) if one is not None)
        streams = tuple(side.stream(frozenset(used)) for side in self._sides)
        # The query reads the streams: payloads that it decodes by itself are known by then.
        named = [one for hash_, one in self._schemas.layouts.items() if hash_ in query]
        streams = tuple(replace(one, condition=wrap(one.condition, named)) for one in streams)
        parts = [query]
        for stream in streams:
            parts += [stream.condition, stream.event_time]
            parts += [column.expression for column in stream.columns]
        fields: dict[str, Field] = {}
        if self._joined is not None:
            fields.update((one.name, one) for one in self._joined.scope.fields())
        if len(self._sides) == 1:
            fields.update(self._sides[0].scope.reads)
        made = CompiledRule(
            filters=tuple(dict.fromkeys(one for stream in streams for one in stream.filters)),
            is_events=streams[0].is_events,
            expression=None,
            conditions=tuple(one for side in self._sides for one in side.conditions),
            fields=tuple(fields.values()),
            plan=Plan(
                streams=streams,
                references=tuple(table.reference() for table in self._tables),
                detection=detection,
                query=query,
            ),
        )
        return made, sum(map(len, parts))


def _reads(node: exp.Expr, wanted: set[str]) -> bool:
    """Tell whether an expression has one of the names."""
    return any(isinstance(one, nodes.Path) and one.this in wanted for one in node.walk())


def _qualified(side: Side) -> tuple[str, str]:
    partition, offset = side.position()
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
