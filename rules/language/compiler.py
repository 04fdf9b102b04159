"""From a rule's text to what the engine runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from rules.errors import RuleError
from rules.language import dialect
from rules.language.choosing import all_of, conjuncts
from rules.language.compiled import CompiledRule, Condition, Field
from rules.language.expressions import Expressions
from rules.language.limits import DEFAULT_LIMITS, Limits
from rules.language.output import Tree, names, put, row
from rules.language.parsing import parse
from rules.language.scope import Scope
from rules.language.sources import decode_payload, read_source
from rules.language.stateful import References, StatefulCompiler, is_stateful
from rules.language.values import Value, as_array, as_condition, as_possible, failure, json
from rules.schemas.registry import NO_SCHEMAS, SchemaLookup

_ITEM: Final = "foreach_item"
_INDEX: Final = "foreach_index"
"""The lambda's variables. Names of rules never reach the expression, so none can be equal."""

_EVERYTHING: Final = dialect.Item(this=exp.Star())
"""What FOREACH without DO yields."""


def compile_rule(
    sql: str,
    references: References | None = None,
    *,
    schemas: SchemaLookup = NO_SCHEMAS,
    limits: Limits = DEFAULT_LIMITS,
) -> CompiledRule:
    """Compile a rule.

    Args:
        sql: `SELECT … FROM …` or `FOREACH … FROM …`, see `docs/rules.md`.
        references: The reference tables there are, of each the names and types of its columns;
            None leaves open whether there are those that the rule joins.
        limits: How large it may be.
        schemas: What payloads can be decoded by.

    Raises:
        RuleError: It is not a rule, or asks for what the language does not have.
    """
    statement = parse(sql, limits)
    if is_stateful(statement):
        return StatefulCompiler(sql, statement, limits, references, schemas).compile()
    return _Compiler(sql, statement, limits, schemas).compile()


class _Compiler:
    """Compiles one rule over single messages; `limits` bound what it may become."""

    def __init__(
        self, sql: str, statement: dialect.Statement, limits: Limits, schemas: SchemaLookup
    ) -> None:
        self._sql = sql
        self._statement = statement
        self._limits = limits
        self._schemas = schemas

    def compile(self) -> CompiledRule:
        statement = self._statement
        source = read_source(self._sql, statement.args["filters"], self._limits)
        self._scope = Scope(source.columns, statement.args.get("alias"))
        self._expressions = Expressions(self._sql, self._scope, self._limits, self._schemas)
        decode_payload(self._expressions, self._scope, source, statement.args.get("decoding"))
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
            filters=source.filters,
            is_events=source.is_events,
            expression=self._whole(expression),
            conditions=tuple(
                replace(
                    one,
                    expression=self._whole(one.expression),
                    fields=tuple(map(self._whole_field, one.fields)),
                )
                for one in conditions
            ),
            fields=tuple(map(self._whole_field, self._scope.reads.values())),
            columns=tuple(names(tree)),
            deterministic=True,
            schemas=tuple(self._expressions.schemas.uses),
        )

    def _whole(self, expression: str) -> str:
        """Return an expression with the layouts that it names."""
        return self._expressions.schemas.whole(expression)

    def _whole_field(self, field: Field) -> Field:
        return replace(field, expression=self._whole(field.expression))

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
            put(tree, path or self._expressions.name_of(item.this), value)
        return tree

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
            # A decoded payload may be longer as JSON than its bytes.
            sizes = [
                "octet_length(payload)",
                *(
                    f"octet_length(to_json(mqlake_decode(payload, '{hash_}')))"
                    for hash_ in self._expressions.schemas.layouts
                ),
            ]
            longest = f"greatest({', '.join(sizes)})" if len(sizes) > 1 else sizes[0]
            size = f"CAST(size({listed}) AS BIGINT) * {longest}"
            too_much = failure("FOREACH repeats too large a payload too often")
            rows = f"IF({size} > {self._limits.foreach_bytes}, {too_much}, {rows})"
        return rows, tree

    # WHERE

    def _where(self, node: exp.Expr | None) -> tuple[tuple[Condition, ...], list[str]]:
        conditions = []
        tests = []
        for one in conjuncts(node):
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
