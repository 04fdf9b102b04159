"""From a rule's text to what the engine runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from mqlake.errors import InvalidTopic
from mqlake.topics import SHARE_PREFIX, validate_topic_filter
from rules.columns import EVENTS, EVENTS_NOT_TOLD, MESSAGE, Column
from rules.errors import RuleError
from rules.language import dialect
from rules.language.choosing import all_of
from rules.language.compiled import CompiledRule, Condition
from rules.language.expressions import Expressions
from rules.language.limits import DEFAULT_LIMITS, Limits
from rules.language.output import Tree, names, put, row
from rules.language.parsing import parse
from rules.language.places import error_at
from rules.language.scope import Scope
from rules.language.values import Value, as_array, as_condition, as_possible, failure, json

EVENTS_PREFIX: Final = "$events/"
_ITEM: Final = "foreach_item"
_INDEX: Final = "foreach_index"
"""The lambda's variables. Names of rules never reach the expression, so none can be equal."""

_EVERYTHING: Final = dialect.Item(this=exp.Star())
"""What FOREACH without DO yields."""


def compile_rule(sql: str, limits: Limits = DEFAULT_LIMITS) -> CompiledRule:
    """Compile a rule.

    Args:
        sql: `SELECT … FROM …` or `FOREACH … FROM …`, see `docs/rules.md`.
        limits: How large it may be.

    Raises:
        RuleError: It is not a rule, or asks for what the language does not have.
    """
    return _Compiler(sql, limits).compile()


class _Compiler:
    """Compiles one rule; `limits` bound what it may become."""

    def __init__(self, sql: str, limits: Limits) -> None:
        self._sql = sql
        self._limits = limits

    def compile(self) -> CompiledRule:
        statement = parse(self._sql, self._limits)
        filters, columns = self._sources(statement.args["filters"])
        self._scope = Scope(columns)
        self._expressions = Expressions(self._sql, self._scope, self._limits)
        for listed in (statement.args["items"], statement.args.get("do") or ()):
            if len(listed) > self._limits.select_items:
                limit = self._limits.select_items
                self._expressions.fail(listed[limit], f"more than {limit} expressions are listed")
        if statement.args["is_foreach"]:
            array, item_names = self._foreach(statement.args["items"])
        else:
            tree = self._select(statement.args["items"])
        conditions, tests = self._where(statement.args.get("where"))
        if statement.args["is_foreach"]:
            rows, tree = self._each(statement, array, item_names)
        else:
            rows = f"array({row(tree)})"
        expression = f"CASE WHEN {all_of(tests)} THEN {rows} END" if tests else rows
        if len(expression) > self._limits.expression_characters:
            raise RuleError(
                "the rule is too large once its names are put in",
                hint="names given with AS are put in wherever they are used",
            )
        return CompiledRule(
            filters=filters,
            is_events=filters[0].startswith(EVENTS_PREFIX),
            expression=expression,
            conditions=conditions,
            fields=tuple(self._scope.reads.values()),
            columns=tuple(names(tree)),
            deterministic=True,
        )

    # FROM

    def _sources(self, listed: Sequence[exp.Expr]) -> tuple[tuple[str, ...], tuple[Column, ...]]:
        if len(listed) > self._limits.filters:
            self._refuse(listed[-1], f"more than {self._limits.filters} topic filters")
        events = [one for one in listed if one.this.startswith(EVENTS_PREFIX)]
        if not events:
            filters = dict.fromkeys(self._topic_filter(one) for one in listed)
            return tuple(filters), MESSAGE
        if len(events) < len(listed):
            self._refuse(
                events[0], "events and topics cannot be in one rule", hint="make two rules"
            )
        found = dict.fromkeys(self._event(one) for one in events)
        return tuple(EVENTS_PREFIX + name for name in found), _event_columns(found)

    def _topic_filter(self, node: exp.Expr) -> str:
        topic_filter: str = node.this
        if topic_filter.startswith(SHARE_PREFIX):
            self._refuse(
                node, "a rule has no shared subscriptions", hint="leave out $share/<name>/"
            )
        try:
            validate_topic_filter(topic_filter)
        except InvalidTopic as exc:
            self._refuse(node, f"not a topic filter: {exc}")
        return topic_filter

    def _event(self, node: exp.Expr) -> str:
        name: str = node.this.removeprefix(EVENTS_PREFIX).replace("/", "_").replace(".", "_")
        if name in EVENTS_NOT_TOLD:
            self._refuse(node, f"there is no $events/{name}", hint=EVENTS_NOT_TOLD[name])
        if name not in EVENTS:
            self._refuse(node, "unknown event", hint=f"there are: {', '.join(EVENTS)}")
        return name

    def _refuse(self, node: exp.Expr, problem: str, *, hint: str = "") -> None:
        start, end = node.meta["start"], node.meta["end"]
        raise error_at(self._sql, start, end + 1, problem, hint)

    # SELECT

    def _select(self, items: Sequence[exp.Expr]) -> Tree:
        tree: Tree = {}
        for item in items:
            if isinstance(item.this, exp.Star):
                for name, value in self._scope.selected():
                    tree[name] = value
                continue
            with self._scope.reading() as reads:
                value = self._expressions.value(item.this)
            path = item.args.get("path")
            if path:
                self._scope.give(path, value, reads)
            put(tree, path or self._name_of(item.this), value)
        return tree

    def _name_of(self, node: exp.Expr) -> Sequence[str]:
        """Return the name of what has none of its own: its path, else what the rule says there."""
        if isinstance(node, dialect.Path):
            segments = node.args.get("segments") or ()
            if any(isinstance(segment, int) for segment in segments):
                self._expressions.fail(
                    node, "an element of an array needs a name", hint="add AS and a name"
                )
            return (node.this, *segments)
        return (self._expressions.text_of(node),)

    # FOREACH

    def _foreach(self, items: Sequence[exp.Expr]) -> tuple[Value, tuple[str, ...]]:
        """Give the names before the last; return the array gone through and its element's names."""
        *before, last = items
        for item in before:
            self._select([item])
        with self._scope.reading() as reads:
            array = self._expressions.value(last.this)
        path = last.args.get("path")
        if path is None:
            return array, ("item",)
        if len(path) > 1:
            self._expressions.fail(last, "the name of an element has no dot")
        self._scope.give(path, array, reads)
        return array, tuple(path)

    def _each(
        self, statement: exp.Expr, array: Value, item_names: tuple[str, ...]
    ) -> tuple[str, Tree]:
        self._scope.give_item(item_names, json(_ITEM, name=item_names[0]))
        self._expressions.index = _INDEX
        listed = as_array(array)
        limit = self._limits.foreach_elements
        too_many = failure(f"FOREACH over more than {limit} elements")
        elements = f"IF(size({listed}) > {limit}, {too_many}, {listed})"
        incase = statement.args.get("incase")
        if incase is not None:
            condition = as_condition(self._expressions.condition(incase))
            elements = f"filter({elements}, ({_ITEM}, {_INDEX}) -> {condition})"
        with self._scope.reading() as reads:
            tree = self._select(statement.args.get("do") or [_EVERYTHING])
        rows = f"transform({elements}, ({_ITEM}, {_INDEX}) -> {row(tree)})"
        if any(name.partition(".")[0] in ("payload", "pub_props") for name in reads):
            # Each row repeats a part of the message, which may be as long as the array.
            size = f"CAST(size({listed}) AS BIGINT) * octet_length(payload)"
            too_much = failure("FOREACH repeats too large a payload too often")
            rows = f"IF({size} > {self._limits.foreach_bytes}, {too_much}, {rows})"
        return rows, tree

    # WHERE

    def _where(self, node: exp.Expr | None) -> tuple[tuple[Condition, ...], list[str]]:
        conditions = []
        tests = []
        for one in _conjuncts(node):
            with self._scope.reading() as reads:
                value = self._expressions.condition(one)
            tests.append(as_possible(value))
            conditions.append(
                Condition(
                    text=self._expressions.text_of(one),
                    expression=as_condition(value),
                    fields=tuple(reads.values()),
                )
            )
        return tuple(conditions), tests


def _event_columns(events: Iterable[str]) -> tuple[Column, ...]:
    """Return the columns of several events; of a name that some make differently, the first."""
    columns: dict[str, Column] = {}
    for event in events:
        for column in EVENTS[event]:
            known = columns.setdefault(column.name, column)
            if column.expression not in known.expression:
                both = f"coalesce({known.expression}, {column.expression})"
                columns[column.name] = replace(known, expression=both)
    return tuple(columns.values())


def _conjuncts(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """Yield what AND joins, from left to right, without recursion."""
    pending = [] if node is None else [node]
    while pending:
        one = pending.pop()
        if isinstance(one, exp.And):
            pending += (one.expression, one.this)
        else:
            yield one
