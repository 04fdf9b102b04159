"""Common base of the compilers of stateless and of stateful rules."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, NoReturn

from sqlglot import exp

from rules.errors import RuleError
from rules.language.compiled import CompiledRule, Condition, Field
from rules.language.expressions import TOO_LARGE, TOO_LARGE_HINT, Expressions
from rules.language.limits import Limits
from rules.language.output import Tree, names, put
from rules.language.scope import Scope
from rules.language.syntax import nodes
from rules.language.values import as_condition, as_possible
from rules.schemas.registry import Noted, SchemaLookup
from rules.sql.reading import Pass


class Compilation:
    """A rule on its way from its tree to the engine's form; see `compiler.compile_rule`."""

    PASSES: ClassVar[tuple[Pass, ...]]  # in this order

    def __init__(
        self, sql: str, statement: nodes.Statement, limits: Limits, schemas: SchemaLookup
    ) -> None:
        self._sql = sql
        self._args = statement.args
        self._limits = limits
        self._schemas = Noted(schemas)
        self._tree: Tree = {}

    def compile(self) -> CompiledRule:
        """Go through the passes.

        Raises:
            RuleError: One refuses the rule.
        """
        for one in self.PASSES:
            one(self)
        made, size = self._compiled()
        if size > self._limits.expression_characters:
            raise RuleError(TOO_LARGE, hint=TOO_LARGE_HINT)
        whole = self._schemas.whole
        return replace(
            made,
            expression=None if made.expression is None else whole(made.expression),
            conditions=tuple(
                replace(one, expression=whole(one.expression), fields=self._whole(one.fields))
                for one in made.conditions
            ),
            fields=self._whole(made.fields),
            columns=tuple(names(self._tree)),
            schemas=tuple(self._schemas.uses),
        )

    def _compiled(self) -> tuple[CompiledRule, int]:
        """Return the rule as the passes made it, without layouts, and its size in characters."""
        raise NotImplementedError

    def _whole(self, fields: Iterable[Field]) -> tuple[Field, ...]:
        """Return fields with the layouts that they name."""
        whole = self._schemas.whole
        return tuple(replace(one, expression=whole(one.expression)) for one in fields)

    # Passes

    def _check_lists(self) -> None:
        most = self._limits.select_items
        for listed in (self._args["items"], self._args.get("do") or ()):
            if len(listed) > most:
                self._fail(listed[most], f"more than {most} expressions are listed")

    # For passes

    def _fail(self, node: exp.Expr, problem: str, *, hint: str = "") -> NoReturn:
        raise RuleError.at_node(self._sql, node, problem, hint)

    def _put(self, item: exp.Expr, scope: Scope, expressions: Expressions) -> None:
        """Put an item of SELECT into the output's row, and give it the name that it has there."""
        with scope.reading() as reads:
            value = expressions.value(item.this)
        path = item.args.get("path")
        if path:
            scope.give(path, value, reads)
        put(self._tree, path or expressions.name_of(item.this), value)

    def _condition(
        self, node: exp.Expr, scope: Scope, expressions: Expressions
    ) -> tuple[Condition, str]:
        """Return a condition of WHERE, and its test, whose NULL means false."""
        with scope.reading() as reads:
            value = expressions.condition(node)
        text = expressions.text_of(node)
        return Condition(text, as_condition(value), tuple(reads.values())), as_possible(value)
