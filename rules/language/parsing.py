"""From a rule's text to its tree."""

from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from rules.errors import RuleError
from rules.language.expressions import Expressions
from rules.language.limits import Limits
from rules.language.syntax import nodes
from rules.language.syntax.dialect import RuleDialect
from rules.language.syntax.statements import RuleParser
from rules.sql.reading import Reading

_KINDS: Final[frozenset[type[exp.Expr]]] = frozenset(
    (
        nodes.Statement,
        nodes.Item,
        nodes.Filter,
        nodes.Decoding,
        nodes.JoinedTable,
        nodes.Join,
        nodes.Interval,
        nodes.Named,
        exp.Star,
        exp.If,
        *Expressions.NODES,
    )
)


def parse(sql: str, limits: Limits) -> nodes.Statement:
    """Parse one rule.

    Raises:
        RuleError: The text is not a rule, or too long or too deep.
    """
    reading = _RuleReading(sql, characters=limits.sql_characters, depth=limits.depth)
    reading.read()
    assert isinstance(reading.tree, nodes.Statement)
    return reading.tree


class _RuleReading(Reading):
    NOUN = "rule"
    DIALECT = RuleDialect()
    PARSER = RuleParser
    KINDS = _KINDS
    ERROR = RuleError
    REFUSED = {TokenType.SEMICOLON: "a rule is one statement"}  # noqa: RUF012
    UNPARSED = "this is not understood"
    UNLISTED = "this is not part of the rule language"
    QUOTES = "text is 'in single quotes'"

    def check_beginning(self) -> None:
        """Refuse a text that is neither SELECT nor FOREACH."""
        if not self.tokens:
            raise RuleError("the rule is empty", line=1, column=1, hint='SELECT * FROM "a/topic"')
        if self.tokens[0].token_type not in (TokenType.SELECT, TokenType.FOR):
            self.fail_at(self.tokens[0], "a rule begins with SELECT or FOREACH")

    PASSES = (
        Reading.tokenize,
        Reading.check_tokens,
        check_beginning,
        Reading.check_depth,
        Reading.parse,
        Reading.check_kinds,
    )
