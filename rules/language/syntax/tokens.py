"""Reading the tokens of a rule one after the other, and where in its text nodes and errors are."""

from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

from sqlglot import exp
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from rules.errors import RuleError
from rules.language.syntax.keywords import CLAUSES, KEYWORDS, REFUSED

Node = TypeVar("Node", bound=exp.Expr)

_SHAPE: Final = 'SELECT … FROM "topic/filter" WHERE …; docs/rules.md has examples'
"""Said of errors of syntax about which nothing better is known."""

_OPERANDS: Final = frozenset(
    (
        TokenType.VAR,
        TokenType.IDENTIFIER,
        TokenType.STRING,
        TokenType.NUMBER,
        TokenType.L_PAREN,
        TokenType.L_BRACKET,
        TokenType.CASE,
    )
)


class TokenParser(SparkParser):
    """sqlglot's parser with what all parts of the language need."""

    def _word(self, *words: str) -> bool:
        """Tell whether the next token is one of the words, which are no keywords."""
        token = self._curr
        return bool(token) and token.token_type == TokenType.VAR and token.text.upper() in words

    def _match_word(self, *words: str) -> bool:
        found = self._word(*words)
        if found:
            self._advance()
        return found

    def _expect(self, kind: TokenType, problem: str, *, hint: str = "") -> None:
        """Take the next token, which has to be of a kind."""
        if not self._match(kind):
            self.fail(problem, hint=hint)

    def _key(self, problem: str) -> str:
        token = self._curr
        if not token or token.token_type == TokenType.STAR:
            self.fail(problem)
        is_word = token.text.replace("_", "").replace("$", "").isalnum()
        is_quoted = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
        if not (is_quoted or is_word):
            self.fail(problem)
        self._advance()
        return token.text

    def _text(self, expected: str) -> str:
        if not self._match_set((TokenType.IDENTIFIER, TokenType.STRING)):
            self.fail(f"expected {expected}")
        return str(self._prev.text)

    def _begins_operand(self) -> bool:
        """Tell whether an operand could begin behind the next token, so that it is no name."""
        return bool(self._next) and (
            self._next.token_type in _OPERANDS or self._next.token_type == TokenType.STAR
        )

    def _refused(self) -> str:
        return REFUSED.get(self._curr.text.upper(), "") if self._curr else ""

    # Places in the text

    def expression(
        self, instance: Any, token: Token | None = None, comments: list[str] | None = None
    ) -> Any:
        """Give the nodes that sqlglot makes their place too; its other checks are not needed."""
        first = instance.args.get("this")
        return self.node(instance, first if isinstance(first, exp.Expr) else None)

    def node(self, made: Node, first: exp.Expr | None) -> Node:
        """Place a node from the beginning of its first part to the last token read."""
        meta = made.meta
        meta["start"] = self._prev.start if first is None else first.meta.get("start", 0)
        meta["end"] = self._prev.end
        return made

    @staticmethod
    def at(made: Node, first: Token, last: Token) -> Node:
        """Place a node from one token to another."""
        made.meta["start"] = first.start
        made.meta["end"] = last.end
        return made

    def fail(self, problem: str, *, hint: str = "") -> NoReturn:
        """Refuse the statement at the token that comes next."""
        token = self._curr if self._curr else None
        hint = hint or self._meant() or _SHAPE
        if token is None:
            raise RuleError.at(self.sql, len(self.sql.rstrip()), len(self.sql), problem, hint)
        raise RuleError.at(self.sql, token.start, token.end + 1, problem, hint)

    def _meant(self) -> str:
        """Say which keyword the next word, or the one before it, may have been meant for."""
        known = (*KEYWORDS, *CLAUSES)
        for at in (self._index, self._index - 1):
            if not 0 <= at < len(self._tokens):
                continue
            token = self._tokens[at]
            is_field = at > 0 and self._tokens[at - 1].token_type == TokenType.DOT
            if token.token_type != TokenType.VAR or is_field:
                continue
            for keyword in get_close_matches(token.text.upper(), known, 1, 0.75):
                return f"did you mean {keyword} in place of {token.text[:100]}?"
        return ""
