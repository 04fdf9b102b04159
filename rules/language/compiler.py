"""From a rule's text to the form that the engine runs."""

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from rules.language.choosing import all_of, conjuncts
from rules.language.compilation import Compilation
from rules.language.compiled import CompiledRule
from rules.language.expressions import Expressions
from rules.language.limits import DEFAULT_LIMITS, Limits
from rules.language.output import row
from rules.language.parsing import parse
from rules.language.scope import Scope
from rules.language.sources import decode_payload, read_source
from rules.language.stateful import References, StatefulCompiler, is_stateful
from rules.language.syntax import nodes
from rules.language.values import as_array, as_condition, failure, json
from rules.schemas.registry import NO_SCHEMAS, SchemaLookup

_ITEM: Final = "foreach_item"
_INDEX: Final = "foreach_index"
"""The lambda's variables. Names of rules never reach the expression, so none can be equal."""

_EVERYTHING: Final = nodes.Item(this=exp.Star())
"""The item of FOREACH without DO."""


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
        schemas: Schemas that can decode payloads.

    Raises:
        RuleError: It is not a rule, or asks for a thing that the language does not have.
    """
    statement = parse(sql, limits)
    if is_stateful(statement):
        return StatefulCompiler(sql, statement, limits, references, schemas).compile()
    return _StatelessCompiler(sql, statement, limits, schemas).compile()


class _StatelessCompiler(Compilation):
    """Compiles a rule over single messages."""

    def _open_source(self) -> None:
        self._source = read_source(self._sql, self._args["filters"], self._limits)
        self._scope = Scope(self._source.columns, self._args.get("alias"))
        self._expressions = Expressions(self._sql, self._scope, self._limits, self._schemas)
        decoding = self._args.get("decoding")
        decode_payload(self._expressions, self._scope, self._source, decoding)

    def _give_names(self) -> None:
        """Compile the items of SELECT, or the array of FOREACH: WHERE knows its names."""
        items = self._args["items"]
        if not self._args["is_foreach"]:
            self._select(items)
            return
        *before, last = items
        self._select(before)
        with self._scope.reading() as reads:
            self._array = self._expressions.value(last.this)
        path = last.args.get("path")
        self._item_names = tuple(path or ("item",))
        if len(self._item_names) > 1:
            self._fail(last, "the name of an element has no dot")
        if path:
            self._scope.give(path, self._array, reads)

    def _where(self) -> None:
        listed = conjuncts(self._args.get("where"))
        self._conditions = [self._condition(one, self._scope, self._expressions) for one in listed]

    def _make_rows(self) -> None:
        if self._args["is_foreach"]:
            self._rows = self._each()
        else:
            self._rows = f"array({row(self._tree)})"

    PASSES = (_open_source, Compilation._check_lists, _give_names, _where, _make_rows)

    def _compiled(self) -> tuple[CompiledRule, int]:
        tests = [test for _, test in self._conditions]
        expression = f"CASE WHEN {all_of(tests)} THEN {self._rows} END" if tests else self._rows
        made = CompiledRule(
            filters=self._source.filters,
            is_events=self._source.is_events,
            expression=expression,
            conditions=tuple(condition for condition, _ in self._conditions),
            fields=tuple(self._scope.reads.values()),
        )
        return made, len(expression)

    def _select(self, items: Sequence[exp.Expr]) -> None:
        for item in items:
            if isinstance(item.this, exp.Star):
                self._tree.update(self._scope.selected())
            else:
                self._put(item, self._scope, self._expressions)

    def _each(self) -> str:
        """Return the rows of the elements that FOREACH goes through."""
        self._scope.give_item(self._item_names, json(_ITEM, name=self._item_names[0]))
        self._expressions.index = _INDEX
        listed = as_array(self._array)
        limit = self._limits.foreach_elements
        too_many = failure(f"FOREACH over more than {limit} elements")
        elements = f"IF(size({listed}) > {limit}, {too_many}, {listed})"
        incase = self._args.get("incase")
        if incase is not None:
            condition = as_condition(self._expressions.condition(incase))
            elements = f"filter({elements}, ({_ITEM}, {_INDEX}) -> {condition})"
        self._tree = {}  # items before the array give names, no columns
        with self._scope.reading() as reads:
            self._select(self._args.get("do") or [_EVERYTHING])
        rows = f"transform({elements}, ({_ITEM}, {_INDEX}) -> {row(self._tree)})"
        if not any(name.partition(".")[0] in ("payload", "pub_props") for name in reads):
            return rows
        # Each row repeats a part of the message, which may be as long as the array.
        # A decoded payload may be longer as JSON than its bytes.
        sizes = [
            "octet_length(payload)",
            *(
                f"octet_length(to_json(mqlake_decode(payload, '{hash_}')))"
                for hash_ in self._schemas.layouts
            ),
        ]
        longest = f"greatest({', '.join(sizes)})" if len(sizes) > 1 else sizes[0]
        size = f"CAST(size({listed}) AS BIGINT) * {longest}"
        too_much = failure("FOREACH repeats too large a payload too often")
        return f"IF({size} > {self._limits.foreach_bytes}, {too_much}, {rows})"
