"""From a rule's text to its tree."""

import re
from collections.abc import Iterable
from typing import Final

from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from rules.errors import RuleError
from rules.language.dialect import RuleDialect, RuleParser, Statement
from rules.language.limits import Limits
from rules.language.places import error_at

_DIALECT: Final = RuleDialect()


def parse(sql: str, limits: Limits) -> Statement:
    """Parse one rule.

    Raises:
        RuleError: The text is not a rule, or too long or too deep.
    """
    if len(sql) > limits.sql_characters:
        raise RuleError(
            f"the rule has {len(sql)} characters, at most {limits.sql_characters} are allowed"
        )
    if "\0" in sql:
        raise RuleError("the rule holds U+0000")
    tokens = _tokens(sql)
    first = tokens[0]
    if first.token_type not in (TokenType.SELECT, TokenType.FOR):
        raise error_at(sql, first.start, first.end + 1, "a rule begins with SELECT or FOREACH")
    _check_depth(sql, tokens, limits)
    parser = RuleParser(error_level=ErrorLevel.IMMEDIATE, dialect=_DIALECT)
    try:
        (statement,) = parser.parse(tokens, sql)
    except RecursionError as exc:
        raise RuleError("the rule is nested too deeply") from exc
    except ParseError as exc:
        raise _translated(sql, exc) from exc
    assert isinstance(statement, Statement)
    return statement


def _tokens(sql: str) -> list[Token]:
    try:
        tokens = _DIALECT.tokenize(sql)
    except SqlglotError as exc:
        # sqlglot tells the offset of what was opened, in the text of the error's cause.
        place = re.search(r"[0-9]+:([0-9]+)\Z", str(exc.__cause__ or exc))
        start = min(int(place[1]), len(sql) - 1) if place else 0
        raise error_at(
            sql, start, len(sql), "a quote or a comment is not closed", "text is 'in single quotes'"
        ) from exc
    if tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            raise error_at(sql, token.start, token.end + 1, "a rule is one statement")
    if not tokens:
        raise RuleError("the rule is empty", line=1, column=1, hint='SELECT * FROM "a/topic"')
    return tokens


def _check_depth(sql: str, tokens: Iterable[Token], limits: Limits) -> None:
    """Refuse nesting before the parser, which is recursive, meets it."""
    depth = 0
    prefixes = 0
    for token in tokens:
        kind = token.token_type
        if kind in (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE):
            depth += 1
        elif kind in (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END):
            depth -= 1
        prefixes = prefixes + 1 if kind in (TokenType.NOT, TokenType.DASH, TokenType.PLUS) else 0
        if depth > limits.depth or prefixes > limits.depth:
            raise error_at(sql, token.start, token.end + 1, "the rule is nested too deeply")


def _translated(sql: str, error: ParseError) -> RuleError:
    first = error.errors[0] if error.errors else {}
    highlight = str(first.get("highlight") or "")
    start = sql.find(highlight) if highlight else 0
    return error_at(sql, max(start, 0), max(start, 0) + len(highlight), "this is not understood")
