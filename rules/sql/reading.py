"""From a user's text to the tree of its one statement.

sqlglot makes tokens and trees. Those allowed are on lists; any other is refused.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parser import Parser
from sqlglot.tokenizer_core import Token, TokenType

from rules.sql.errors import SqlError

Pass = Callable[[Any], None]
"""Changes its argument, or refuses it."""

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END)
_MOST_TRIES = 10_000  # 0.4 s
_PREFIXES = (TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE)


class Reading:
    """A statement on its way from text to tree; each language makes a class of its own of it.

    Args:
        text: As the user wrote it.
        characters: Most that it may have.
        depth: Bound of brackets, CASE and signs inside each other.

    """

    NOUN: ClassVar[str]  # name of such a statement
    DIALECT: ClassVar[Dialect]
    PARSER: ClassVar[type[Parser]]
    ERROR: ClassVar[type[SqlError]]
    REFUSED: ClassVar[Mapping[TokenType, str]]  # tokens that no statement has, with their errors
    KINDS: ClassVar[frozenset[type[exp.Expr]]]  # of nodes, all that a tree may have
    UNLISTED: ClassVar[str]  # error of a node of another kind, which `{}` stands for
    UNPARSED: ClassVar[str]  # error where the parser gives up, at the token `{!r}`
    QUOTES: ClassVar[str] = ""  # hint where a quote is not closed
    PASSES: ClassVar[tuple[Pass, ...]]  # in this order

    tokens: list[Token]
    tree: exp.Expr

    def __init__(self, text: str, *, characters: int, depth: int) -> None:
        self.text = text
        self._characters = characters
        self._depth = depth

    def read(self) -> None:
        """Go through the passes.

        Raises:
            SqlError: One refuses the statement.
        """
        try:
            for one in self.PASSES:
                one(self)
        except RecursionError as exc:  # a name of a thousand parts, say, is as deep
            raise self.ERROR(f"the {self.NOUN} is nested too deeply") from exc

    def fail(self, node: exp.Expr, problem: str, hint: str = "") -> NoReturn:
        """Refuse the statement at a node."""
        raise self.ERROR.at_node(self.text, node, problem, hint)

    def fail_at(self, token: Token, problem: str) -> NoReturn:
        """Refuse the statement at a token."""
        raise self.ERROR.at(self.text, token.start, token.end + 1, problem)

    # Passes

    def tokenize(self) -> None:
        """Take the text apart."""
        text = self.text
        if len(text) > self._characters:
            raise self.ERROR(
                f"the {self.NOUN} has {len(text)} characters, "
                f"at most {self._characters} are allowed"
            )
        if (place := text.find("\0")) >= 0:
            raise self.ERROR.at(text, place, place + 1, f"the {self.NOUN} holds U+0000")
        try:
            self.tokens = self.DIALECT.tokenize(text)
        except SqlglotError as exc:
            # sqlglot tells the offset of the opening mark, in the text of the error's cause.
            found = re.search(r"[0-9]+:([0-9]+)\Z", str(exc.__cause__ or exc))
            start = min(int(found[1]), len(text) - 1) if found else 0
            problem = "a quote or a comment is not closed"
            raise self.ERROR.at(text, start, len(text), problem, self.QUOTES) from exc
        while self.tokens and self.tokens[-1].token_type == TokenType.SEMICOLON:
            self.tokens.pop()

    def check_tokens(self) -> None:
        """Refuse tokens of the list, such as the semicolon between two statements."""
        for token in self.tokens:
            problem = self.REFUSED.get(token.token_type)
            if problem is not None:
                self.fail_at(token, problem)

    def check_depth(self) -> None:
        """Refuse nesting before the parser, which is recursive, meets it."""
        depth = prefixes = 0
        for token in self.tokens:
            kind = token.token_type
            depth += (kind in _OPENING) - (kind in _CLOSING)
            prefixes = prefixes + 1 if kind in _PREFIXES else 0
            if depth > self._depth or prefixes > self._depth:
                self.fail_at(token, f"the {self.NOUN} is nested too deeply")

    def check_tries(self) -> None:
        """Refuse what takes sqlglot's parser time exponential in its depth.

        It tries `date(…)` and `ARRAY[…]` as types first and then again as values, which is twice
        the work for all that is within.
        """
        work, tries = 0, [1]
        for index, token in enumerate(self.tokens):
            if token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET):
                before = self.tokens[index - 1].token_type if index else None
                tries.append(tries[-1] * (2 if before in self.PARSER.TYPE_TOKENS else 1))
            elif token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET) and len(tries) > 1:
                tries.pop()
            work += tries[-1] - 1
            if work > _MOST_TRIES:
                self.fail_at(token, f"the {self.NOUN} is nested too deeply")

    def parse(self) -> None:
        """Make the tree."""
        parser = self.PARSER(error_level=ErrorLevel.IMMEDIATE, dialect=self.DIALECT)
        try:
            (self.tree,) = parser.parse(self.tokens, self.text)  # type: ignore[assignment]
        except ParseError as exc:
            raise self._unparsed(exc) from exc
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as exc:
            # The parser meets input here that it was not made for.
            raise self.ERROR(f"the {self.NOUN} does not parse") from exc

    def check_kinds(self) -> None:
        """Refuse nodes of a kind that is not on the list."""
        for node in self.tree.walk():
            if type(node) not in self.KINDS:
                self.fail(node, self.UNLISTED.format(kind_of(node)))

    def _unparsed(self, error: ParseError) -> SqlError:
        first = error.errors[0] if error.errors else {}
        found, column = str(first.get("highlight") or ""), first.get("col")
        if column is not None:  # of the last character
            column = max(1, column - max(0, len(found) - 1))
        problem = self.UNPARSED.format(found)
        return self.ERROR(problem, line=first.get("line"), column=column, fragment=found)


def kind_of(node: exp.Expr) -> str:
    """Return the kind of a node, for errors."""
    return type(node).__name__.upper()
