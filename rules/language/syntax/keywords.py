"""The words of the rule language: keywords, words that begin clauses, and SQL that it refuses."""

from typing import Final

from sqlglot.tokenizer_core import TokenType

KEYWORDS: Final = {
    "SELECT": TokenType.SELECT,
    "FOREACH": TokenType.FOR,
    "DO": TokenType.EXECUTE,
    "INCASE": TokenType.QUALIFY,
    "FROM": TokenType.FROM,
    "WHERE": TokenType.WHERE,
    "AS": TokenType.ALIAS,
    "AND": TokenType.AND,
    "OR": TokenType.OR,
    "NOT": TokenType.NOT,
    "IN": TokenType.IN,
    "IS": TokenType.IS,
    "LIKE": TokenType.LIKE,
    "RLIKE": TokenType.RLIKE,
    "REGEXP": TokenType.RLIKE,
    "BETWEEN": TokenType.BETWEEN,
    "CASE": TokenType.CASE,
    "WHEN": TokenType.WHEN,
    "THEN": TokenType.THEN,
    "ELSE": TokenType.ELSE,
    "END": TokenType.END,
    "NULL": TokenType.NULL,
    "TRUE": TokenType.TRUE,
    "FALSE": TokenType.FALSE,
    "DIV": TokenType.DIV,
    "MOD": TokenType.MOD,
}

REFUSED: Final = {
    "RIGHT": "only JOIN and LEFT JOIN are supported",
    "FULL": "only JOIN and LEFT JOIN are supported",
    "CROSS": "only JOIN and LEFT JOIN are supported, with ON",
    "NATURAL": "only JOIN and LEFT JOIN are supported, with ON",
    "USING": "a join takes ON and a condition",
    "WINDOW": "windows are tumble, hop and session in GROUP BY",
    "OVER": "OVER is not supported; windows are tumble, hop and session in GROUP BY",
    "ORDER": "ORDER BY has no meaning for a stream of messages",
    "LIMIT": "LIMIT has no meaning for a stream of messages",
    "UNION": "a rule is one SELECT or FOREACH; UNION is not supported",
    "EXCEPT": "a rule is one SELECT or FOREACH; EXCEPT is not supported",
    "INTERSECT": "a rule is one SELECT or FOREACH; INTERSECT is not supported",
    "LATERAL": "LATERAL is not supported; FOREACH goes through an array",
}
"""Words of SQL that end an expression and are not supported, with their errors."""

CLAUSES: Final = frozenset(
    ("JOIN", "INNER", "LEFT", "ON", "WITHIN", "LATENESS", "WHERE", "GROUP", "HAVING")
)
"""Words that begin a clause. They are no keywords: a field or a function may be named so."""
